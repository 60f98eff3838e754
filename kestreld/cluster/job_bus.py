"""What jobs need of the links to other nodes."""

from typing import Protocol

from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Node


class JobBus(Protocol):
    """The links to other nodes, as far as jobs use them. Messages on one link arrive in the order they were sent.

    A message is lost where there is no link, and with a link that breaks: nobody is told which.
    """

    def send(self, node: Node, message: JobMessage) -> None:
        """Send it at the end of the turn."""

    def send_once_written(self, node: Node, message: JobMessage) -> None:
        """Send it once all that was changed so far is in the log, and synced where replies wait for that.

        Never, if that fails. It may be overtaken by what is sent with `send`.
        """

    def is_crowded(self, node: Node) -> bool:
        """Whether so much waits to be sent to it that what can wait should."""
