"""Maps every way in which a run can end to a message on stderr and an exit code."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import Ended, ExitCode, Failure, Interrupted

# Closes all that a run has opened. Python's finalizers would do so, but a signal during one of them is lost.
at_end: Final = ExitStack()


def exit_code_of(run: Callable[[], int]) -> int:
    """The result of `run`, or the exit code of its exception, whose message goes to stderr."""
    try:
        with at_end:
            return run()
    except Interrupted as interrupted:
        return 128 + interrupted.signal_number
    except Ended as ended:
        return ended.code
    except Failure as failure:
        return _failed(failure)
    except OSError as error:
        # Only typer's own --help can fail here: everything else is written by `output`.
        _silence_stdout()
        return _failed(output.output_failure(error))
    except Exception as error:  # noqa: BLE001  (nobody gets a traceback; this is the last line of defence)
        if isinstance(error.__cause__, Interrupted):  # raised in the making of a class
            return 128 + error.__cause__.signal_number
        return _internal(error)


def _failed(failure: Failure) -> ExitCode:
    if failure.words:
        (output.remark if failure.is_quiet else output.say)(failure.words)
    return failure.code


def _internal(error: Exception) -> ExitCode:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    output.say(f"internal error in {place}: {type(error).__name__}: {error}")
    return ExitCode.INTERNAL


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null: Python flushes it at exit and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.STDOUT)
