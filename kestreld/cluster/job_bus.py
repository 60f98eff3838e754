"""Interface of the links to other nodes, as jobs use them."""

from typing import Protocol

from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Node


class JobBus(Protocol):
    """Links to other nodes. Messages on one link arrive in the order in which they were sent.

    A message is lost if there is no link or if the link breaks; the sender is not told which messages were lost.
    """

    def send(self, node: Node, message: JobMessage) -> None:
        """Send a message at the end of the turn."""

    def send_once_written(self, node: Node, message: JobMessage) -> None:
        """Send a message once all changes made so far are in the log, and synced if replies wait for that.

        If that fails, the message is dropped. A later message of `send` may overtake it.
        """

    def is_crowded(self, node: Node) -> bool:
        """Return True if so much waits to be sent to the node that messages which can wait should."""
