"""Entry point of kestrelctl: signals, descriptors and garbage collection, then the command line."""

import gc
import os
import sys
from typing import Final, NoReturn

from kestrelctl.shell import output
from kestrelctl.shell.endings import exit_code_of
from kestrelctl.shell.signals import catch_signals

# Threshold of garbage collection: a short command needs none, and spent a fifth of its time on it.
GARBAGE_OBJECTS: Final = 100_000


def main() -> NoReturn:
    """Run kestrelctl as the console script does."""
    if sys.argv[1:2] == ["__complete"]:
        # Starts in 30 ms instead of 100; signals keep their default action.
        from kestrelctl.description.completing import complete

        sys.exit(complete(sys.argv[2:]))
    _occupy_closed_descriptors()
    catch_signals()
    gc.set_threshold(GARBAGE_OBJECTS)
    code = run(sys.argv[1:])
    # Without this, Python collects garbage once more at exit, which takes as long as it takes to start.
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code after printing any error to stderr."""
    return exit_code_of(lambda: _run_line(arguments))


def _run_line(line: list[str]) -> int:
    """Run a verb, or explain what is wrong with the line. Raises Ended and Failure."""
    # Most of the start-up time is spent here; signals are already handled, without a traceback.
    from kestrelctl.command_line import mistake, parse
    from kestrelctl.commands.declared import BadValue, regrouped
    from kestrelctl.shell.exit_codes import ExitCode, Failure

    try:
        path, verb, values = parse(line)
    except (BadValue, Failure):
        from kestrelctl.command_tree import explain

        return explain(line)
    try:
        verb(**regrouped(verb, values))
    except BadValue as error:
        raise mistake(path, f"Invalid value: {error}") from error
    return ExitCode.OK


def _occupy_closed_descriptors() -> None:
    """Open /dev/null for closed standard descriptors, so that no connection gets their number.

    Stdin is opened for writing only and stdout for reading only: using them fails as if they were closed.
    """
    for descriptor, mode in (
        (output.STDIN, os.O_WRONLY),
        (output.STDOUT, os.O_RDONLY),
        (output.STDERR, os.O_WRONLY),
    ):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
