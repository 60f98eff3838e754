"""`kestrelctl declare`: set settings of a queue that clients make."""

import os
from typing import Annotated

from kestrelctl.commands.declared import argument
from kestrelctl.commands.options import QueueArgument, Remote
from kestrelctl.shell.output import remark

OptionsArgument = Annotated[
    list[str], argument(metavar="OPTION=VALUE...", help="A setting, such as max_age=1h.", show_default=False)
]


def declare(queue: QueueArgument, options: OptionsArgument, remote: Remote) -> None:
    """Set settings of a queue, and create it if there is none: max_age, max_items, discard_old_when_full, journal,
    idle_delete, fanout_only and key_time, written as in the configuration.

    They are kept until the queue is deleted. The same again changes nothing; a value that contradicts an earlier
    declaration or the configuration is refused.
    """
    fleet = remote.fleet()
    fleet.each(lambda client: client.declare(os.fsencode(queue), [os.fsencode(one) for one in options]))
    remark(f"declared {queue}")
    fleet.end()
