"""Rules from the configuration for retried jobs: back-off, number of retries, dead-letter queue."""

from collections.abc import Sequence
from typing import Final

from kestreld.config.job_rules import JobRule
from kestreld.jobs.globs import Glob

DEAD_SUFFIX: Final = b".dead"
REMEMBERED_MAX: Final = 4096
_NO_RULE: Final = JobRule("*")


class DeadLetterRules:
    """Rules of all queues; the first rule that matches a queue's name counts."""

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
        """Return the delay before a job's retry of that number, counted from 1, ms."""
        delays_ms = self._of(queue).retry_delays_ms
        return delays_ms[min(retry, len(delays_ms)) - 1] if delays_ms else 0

    def retries_max(self, queue: bytes) -> int:
        """Return how often a job of this queue may be put back; -1 = no limit."""
        most = self._of(queue).max_retries
        return -1 if most is None else most

    def dead_letter_queue(self, queue: bytes) -> bytes:
        """Return the name of the queue for jobs of this queue that failed too often."""
        to = self._of(queue).move_failed_to
        return queue + DEAD_SUFFIX if to is None else to.encode("latin-1")
