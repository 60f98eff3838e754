"""The console script."""

import gc
import os
import sys
from typing import Final, NoReturn

from kestrelctl.shell import output
from kestrelctl.shell.endings import exit_code_of
from kestrelctl.shell.exit_codes import ExitCode
from kestrelctl.shell.signals import catch_signals

# Between two looks for garbage: what a short command makes goes with it, and looking for it took a fifth of its time.
GARBAGE_OBJECTS: Final = 100_000


def main() -> NoReturn:
    """The console script."""
    if sys.argv[1:2] == ["__complete"]:
        # 30 ms instead of 100, and a signal simply ends it.
        from kestrelctl.description.completing import complete

        sys.exit(complete(sys.argv[2:]))
    _occupy_closed_descriptors()
    catch_signals()
    gc.set_threshold(GARBAGE_OBJECTS)
    code = run(sys.argv[1:])
    # Else Python looks for garbage once more when it ends, for as long as it takes to start.
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code, after saying why on stderr."""

    def invoked() -> int:
        # Most of the start-up time: from here on a signal ends it without a traceback.
        from kestrelctl.plain import plain_command

        if (command := plain_command(arguments)) is not None:
            command()
            return ExitCode.OK
        from kestrelctl.verbs import invoke

        return invoke(arguments)

    return exit_code_of(invoked)


def _occupy_closed_descriptors() -> None:
    """Put something into closed standard descriptors: a connection must not get their number.

    Standard input can then only be written and standard output only read: using them fails as when closed.
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
