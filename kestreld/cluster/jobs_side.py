"""Interface through which jobs learn of the nodes of a cluster and their messages."""

from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Node
from kestreld.queues.slices import Work


class JobsSide:
    """Receiver of events of nodes. See `membership.Watcher` for their order."""

    def receive(self, sender: Node, message: JobMessage) -> None:
        """Handle a message of a member."""

    def loaded(self, timeout_ms: int) -> Work:
        """Begin: the log has been read. `timeout_ms` is the node timeout."""
        return iter(())

    def came_up(self, node: Node) -> None:
        """Handle a node that takes messages (again): earlier ones may be lost."""

    def went_down(self, node: Node) -> None:
        """Handle a node that cannot be reached."""

    def link_broken(self, node: Node) -> None:
        """Handle a broken link: the last messages may be lost. The node comes up again with the next link."""

    def forgotten(self, node: Node) -> None:
        """Handle a node that is no longer a member."""
