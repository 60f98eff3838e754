"""What jobs are told of the nodes of a cluster."""

from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Node
from kestreld.queues.slices import Work


class JobsSide:
    """Told by whoever knows the nodes. See `membership.Watcher` for when."""

    def receive(self, sender: Node, message: JobMessage) -> None:
        """A message of a member."""

    def loaded(self, timeout_ms: int) -> Work:
        """The log has been read; `timeout_ms` is the node timeout."""
        return iter(())

    def came_up(self, node: Node) -> None:
        """It takes messages (again): what was sent to it before may be lost."""

    def went_down(self, node: Node) -> None:
        """It cannot be reached."""

    def link_broken(self, node: Node) -> None:
        """What was sent to it last may be lost. It comes up again with the next link."""

    def forgotten(self, node: Node) -> None:
        """It is none of the cluster any more."""
