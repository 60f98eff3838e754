"""`kestrelctl watch`: run a verb repeatedly."""

import time
from typing import Annotated

from kestrelctl.app import run
from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import duration_ms, line_options
from kestrelctl.shell.exit_codes import Ended
from kestrelctl.shell.output import STDOUT, is_terminal, write_data

CLEAR = b"\x1b[H\x1b[2J"
SIGNAL_CODES = 128


def watch(
    words: Annotated[list[str], argument(metavar="VERB", help="A verb and its arguments.", show_default=False)],
    interval: Annotated[str, option("--interval", "-i", metavar="SPAN", help="Pause between runs.")] = "2s",
    number: Annotated[int | None, option("-n", min=1, metavar="N", help="Stop after N runs.")] = None,
) -> None:
    """Run a verb repeatedly, such as stats, ls, items or readers ls.

    On a terminal each run replaces the one before; elsewhere they follow each other. A run that fails does not end
    it. Options after the verb are for the verb, -s and -c before `watch` too; `top` is made for many queues.

    The exit code is that of the last run.
    """
    interval_ms = duration_ms(interval)
    if interval_ms == 0:
        raise BadValue("--interval must be greater than 0")
    # The options of the whole program that stand before `watch` are meant for the verb.
    line = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in line_options.items()
        if name != "is_literal"
    ]
    line += words
    while True:
        if is_terminal(STDOUT):
            write_data(CLEAR + f"every {interval}: kestrelctl {' '.join(words)}\n\n".encode("utf-8", "surrogateescape"))
        code = run(line)
        number = None if number is None else number - 1
        if number == 0 or code > SIGNAL_CODES:
            raise Ended(code)
        time.sleep(interval_ms / 1000)
