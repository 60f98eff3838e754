"""Settings of job queues: `jobs.queues`, by patterns of queue names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kestreld.config.values import (
    BadValue,
    as_clients_send_it,
    as_people_write_it,
    count_from,
    seconds_from,
    text_of,
    unexpected,
)
from kestreld.config.yaml_tree import Kind, Node

DELAY_MS_MAX: Final = 36_500 * 86_400_000  # a century


@dataclass(frozen=True, slots=True)
class JobRule:
    """Settings of the job queues whose names match `pattern` (latin-1 text, as is `move_failed_to`).

    `retry_delays_ms` has the delay of each retry in order; the last one repeats.
    """

    pattern: str
    retry_delays_ms: tuple[int, ...] = ()
    max_retries: int | None = None  # None = a job may come back forever
    move_failed_to: str | None = None  # None = the queue's name and `.dead`

    def __str__(self) -> str:
        parts = []
        if self.retry_delays_ms:
            parts.append(f"retry_delays: [{', '.join(f'{delay_ms}ms' for delay_ms in self.retry_delays_ms)}]")
        if self.max_retries is not None:
            parts.append(f"max_retries: {self.max_retries}")
        if self.move_failed_to is not None:
            parts.append(f"move_failed_to: {_quoted(self.move_failed_to)}")
        return f"{_quoted(self.pattern)}: {{{', '.join(parts)}}}"


@dataclass(frozen=True, slots=True)
class JobRules:
    """All rules, in order; the first whose pattern matches a queue applies."""

    rules: tuple[JobRule, ...] = ()

    def __str__(self) -> str:
        return f"{{{', '.join(map(str, self.rules))}}}"


NO_JOB_RULES: Final = JobRules()


def _quoted(name: str) -> str:
    """Return a name as YAML. JSON writes characters beyond U+FFFF as two, which YAML does not combine."""
    letters = [
        letter if letter.isprintable() and letter not in '"\\' else f"\\U{ord(letter):08x}"
        for letter in as_people_write_it(name)
    ]
    return f'"{"".join(letters)}"'


def job_rules(node: Node) -> JobRules:
    """Read the rules. Raises BadValue."""
    if node.kind is not Kind.MAPPING:
        raise unexpected(node, "a mapping of patterns of queue names to settings, such as {'mail.*': {max_retries: 5}}")
    return JobRules(tuple([_rule(pattern, entry.node) for pattern, entry in node.entries.items()]))


def _rule(pattern: str, node: Node) -> JobRule:
    if node.kind is not Kind.MAPPING:
        raise unexpected(node, "a mapping such as {max_retries: 5}")
    values: dict[str, object] = {}
    for name, entry in node.entries.items():
        if (read := _READERS.get(name)) is None:
            raise BadValue(entry.node, f"unknown setting {name!r} of {pattern!r}: expected {', '.join(_READERS)}")
        try:
            values[name] = read(entry.node)
        except BadValue as bad:
            raise BadValue(bad.node, f"{name} of {pattern!r}: {bad}") from bad
    delays_ms, retries, to = (values.get(name) for name in _READERS)
    assert isinstance(delays_ms, tuple | None)
    assert isinstance(retries, int | None)
    assert isinstance(to, str | None)
    return JobRule(as_clients_send_it(pattern), delays_ms or (), retries, to)


def _delays_ms(node: Node) -> tuple[int, ...]:
    delay_ms = seconds_from(1, DELAY_MS_MAX)
    return tuple([delay_ms(item) for item in (node.items if node.kind is Kind.LIST else [node])])


_READERS: Final[dict[str, Callable[[Node], object]]] = {
    "retry_delays": _delays_ms,
    "max_retries": count_from(0),
    "move_failed_to": lambda node: as_clients_send_it(text_of(node, "the name of a queue of jobs")),
}
