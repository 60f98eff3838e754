"""What the configuration says of jobs that come back: how long they wait, how often they may, where they go then."""

from collections.abc import Sequence
from typing import Final

from kestreld.config.job_rules import JobRule
from kestreld.jobs.globs import Glob

DEAD_SUFFIX: Final = b".dead"
REMEMBERED_MAX: Final = 4096
_NO_RULE: Final = JobRule("*")


class DeadLetterRules:
    """The rules of all queues; the first that fits a queue counts."""

    __slots__ = ("_globs", "_of_queue", "_rules")

    def __init__(self, rules: Sequence[JobRule] = ()) -> None:
        self._rules = rules
        self._globs = [Glob(rule.pattern.encode("latin-1")) for rule in rules]
        self._of_queue: dict[bytes, JobRule] = {}

    def _of(self, queue: bytes) -> JobRule:
        if not self._rules:
            return _NO_RULE
        rule = self._of_queue.get(queue)
        if rule is None:
            if len(self._of_queue) >= REMEMBERED_MAX:
                self._of_queue.clear()
            fitting = (rule for rule, glob in zip(self._rules, self._globs, strict=True) if glob.matches(queue))
            rule = self._of_queue[queue] = next(fitting, _NO_RULE)
        return rule

    def backoff_ms(self, queue: bytes, retry: int) -> int:
        """How long a job waits before its retry of that number, counted from 1."""
        delays_ms = self._of(queue).retry_delays_ms
        return delays_ms[min(retry, len(delays_ms)) - 1] if delays_ms else 0

    def retries_max(self, queue: bytes) -> int:
        """How often a job of this queue may be put back; -1 = any number of times."""
        most = self._of(queue).max_retries
        return -1 if most is None else most

    def dead_letter_queue(self, queue: bytes) -> bytes:
        """Where a job of this queue goes after that."""
        to = self._of(queue).move_failed_to
        return queue + DEAD_SUFFIX if to is None else to.encode("latin-1")
