"""Results of the checks: state, finding and advice, and the exit code over all of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kestrelctl.remote.checking import State
from kestrelctl.shell.exit_codes import ExitCode
from kestreld.client.blocks import Cell

COLUMNS: Final = ["state", "check", "words", "advice"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `advice` is "" if there is nothing to do."""

    check: str
    state: State
    words: str
    advice: str = ""

    def row(self) -> dict[str, Cell]:
        return {"state": self.state.name.lower(), "check": self.check, "words": self.words, "advice": self.advice}


def fine(check: str, words: str) -> CheckResult:
    return CheckResult(check, State.OK, words)


def warning(check: str, words: str, advice: str) -> CheckResult:
    return CheckResult(check, State.WARNING, words, advice)


def critical(check: str, words: str, advice: str) -> CheckResult:
    return CheckResult(check, State.CRITICAL, words, advice)


def unknown(check: str, words: str, advice: str = "") -> CheckResult:
    """A check that could not be made, which is no verdict."""
    return CheckResult(check, State.UNKNOWN, words, advice)


def graded(check: str, value: float, limits: tuple[float, float], words: str, advice: str) -> CheckResult:
    """Warning from the first limit on, critical from the second."""
    if value >= limits[1]:
        return critical(check, words, advice)
    return warning(check, words, advice) if value >= limits[0] else fine(check, words)


def exit_code(results: Sequence[CheckResult]) -> ExitCode:
    """The exit code of the worst result. Unknown results do not count."""
    states = {result.state for result in results}
    if State.CRITICAL in states:
        return ExitCode.CRITICAL
    return ExitCode.NEGATIVE if State.WARNING in states else ExitCode.OK
