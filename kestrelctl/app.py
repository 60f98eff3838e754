"""The console script, and the one place where every ending becomes a line of words and an exit code."""

import os
import sys
from typing import NoReturn

from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestrelctl.shell.signals import catch_signals


def main() -> NoReturn:
    """The console script."""
    if sys.argv[1:2] == ["__complete"]:
        # 30 ms instead of 100, and a signal simply ends it.
        from kestrelctl.description.completing import complete

        sys.exit(complete(sys.argv[2:]))
    _occupy_closed_descriptors()
    catch_signals()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code, after saying why on stderr."""
    try:
        # Most of the start-up time: from here on a signal ends it without a traceback.
        from kestrelctl.verbs import invoke

        return invoke(arguments)
    except Interrupted as interrupted:
        return 128 + interrupted.signal_number
    except Failure as failure:
        return _failed(failure)
    except OSError as error:
        # Only typer's own --help gets here: all else goes through `output`.
        _silence_stdout()
        return _failed(output.output_failure(error))
    except Exception as error:  # noqa: BLE001  (nobody gets a traceback; this is the last line of defence)
        return _internal(error)


def _failed(failure: Failure) -> ExitCode:
    if failure.code in (ExitCode.NEGATIVE, ExitCode.WAIT_EXPIRED):
        output.remark(failure.words)
    elif failure.words:
        output.say(failure.words)
    return failure.code


def _internal(error: Exception) -> ExitCode:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    output.say(f"internal error in {place}: {type(error).__name__}: {error}")
    return ExitCode.INTERNAL


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


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit, and would complain once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.STDOUT)
