"""Spools with journals of versions 2 to 4, and what a start on one finds.

`python -m tests.support.kept_journals FOLDER` has made those of tests/golden/journal_version_2, `reasons` of
journal_version_3, and those of journal_version_4, which a kill has left. They stay as they were written then: this
makes those of a version to come.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kestreld.journal.records import Type, item_data, item_id, item_optional_fields, whole_records
from kestreld.journal.segment import decode_header
from kestreld.queues.leases import confirm, extend, fail, give_back, lease
from kestreld.queues.reader import Reader
from kestreld.queues.states import State, lease_of, state_of
from tests.support.clock import FakeClock
from tests.support.engine import Engine, QuickFiles

KEYS: Final = (b"order-17", b"order-18", b"order-19", b"order-20")
HOUR_MS: Final = 3_600_000


# What is found


def told(engine: Engine) -> dict[str, Any]:
    """All that is waiting, held back and known now, by queue."""
    return {
        "families": {
            name: {
                "next_id": family.next_id,
                "put_items": family.put_items,
                "origins": {
                    one: [origin.reason, origin.attempts, origin.put_at_ms, origin.queue]
                    for one, origin in sorted(family.origins.items())
                },
            }
            for name, family in sorted(engine.collection.families.items())
        },
        "held": {name: _held(reader) for name, reader in _readers(engine)},
        "retries": {name: dict(sorted(reader.retries.items())) for name, reader in _readers(engine)},
        "keys": {
            name: {key.decode(): one for key in KEYS if (one := reader.find_key(key))}
            for name, reader in _readers(engine)
        },
    }


def delivered(engine: Engine) -> dict[str, list[list[Any]]]:
    """What plain gets bring, as time goes by: when, id, flags, expiry and data of each item. Leases run out, too."""
    begin_ms = engine.clock.wall_ms
    found: dict[str, list[list[Any]]] = {name: [] for name, _ in _readers(engine)}
    while True:
        for name, reader in _readers(engine):
            while (record := reader.take(engine.clock.wall_ms)) is not None:
                expire_at_ms, flags, _ = item_optional_fields(record)
                at_ms = engine.clock.wall_ms - begin_ms
                found[name].append([at_ms, item_id(record), flags, expire_at_ms, item_data(record).decode()])
        engine.end_turn()
        due_at_ms = engine.collection.agenda.next_at_ms()
        if due_at_ms is None:
            return found
        pass_by(engine, max(due_at_ms - engine.clock.monotonic_ms, 0))


def types_in(segments: Sequence[Path]) -> set[Type]:
    """The types of the records in segments."""
    found = set()
    for path in segments:
        content = path.read_bytes()
        found.update(
            Type(kind) for kind, _, _ in whole_records(content, decode_header(content, str(path))[1], path.name)
        )
    return found


def _readers(engine: Engine) -> list[tuple[str, Reader]]:
    return sorted((name, reader) for name, reader in engine.collection.readers.items())


def _held(reader: Reader) -> dict[int, list[Any]]:
    """By id: the state, in how many ms that is over, and for whom."""
    found: dict[int, list[Any]] = {}
    held = reader.held
    for one in range(1, reader.queue.next_id) if held is not None else ():
        assert held is not None
        state, leased = state_of(reader, one), lease_of(reader, one)
        if state is not None:
            due_at_ms = leased.ends_at_ms if leased is not None else held.due_of(held.later.get(one) or held.ready[one])
            found[one] = [state, due_at_ms - reader.queue.clock.monotonic_ms if state is not State.WAITING else 0]
    return found


def pass_by(engine: Engine, time_ms: int) -> None:
    """Time passes, and what falls due does."""
    engine.clock.advance(time_ms)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    engine.end_turn()


# What is made


def held_back(engine: Engine) -> list[int]:
    """Every state that an item can be in, why it is so, and keys; the tokens of the leases that ran at the end."""
    config = {"max_retries": 2, "move_failed_to": "dead", "retry_delays_ms": (60_000,)}
    engine.configure({"work": config})
    work, audit = engine.reader("work"), engine.reader("work+audit")
    engine.put("work", b"fails for good")
    engine.end_turn()
    for _ in range(3):
        _fail(work, engine)
        pass_by(engine, 60_000)
    queue = work.queue
    queue.put_keyed(b"order-17", work, b"for later, with a key", 0, 0, None, HOUR_MS)
    queue.put_later(b"for audit alone, later", 0, 0, audit, HOUR_MS)
    queue.put_later(b"with flags and an expiry", engine.clock.wall_ms + 10 * HOUR_MS, 7, None, 2 * HOUR_MS)
    queue.put_keyed(b"order-19", work, b"cancelled", 0, 0, None, HOUR_MS)
    engine.put("work", b"fails", b"given back", b"leased")
    queue.put_keyed(b"order-18", work, b"with a key", 0, 0, None, 0)
    queue.put_keyed(b"order-20", audit, b"with a key of audit's", 0, 0, audit, 0)
    engine.end_turn()
    assert work.cancel(b"order-19")
    _fail(work, engine)
    token = _lease(work, engine)
    give_back(work, token, engine.clock.wall_ms, HOUR_MS // 2)
    token = _lease(work, engine)
    pass_by(engine, 1000)
    return [token]


def begun_as_version_1(engine: Engine) -> list[int]:
    """Items of before the first delay, and what came then."""
    engine.reader("work+audit")
    engine.put("work", b"one", b"two", b"three")
    engine.end_turn()
    assert engine.take("work") == b"one"
    engine.end_turn()
    engine.reader("work").queue.put_later(b"for later", 0, 0, None, HOUR_MS)
    engine.end_turn()
    engine.put("work", b"four")
    engine.end_turn()
    return []


def compacted(engine: Engine) -> list[int]:
    """A segment that stands in for others, with what is said of the items in it, and the live one."""
    small: dict[str, object] = {"max_journal_size_bytes": 1000, "max_journal_overflow": 2}
    engine.configure({"orders": {"max_retries": 1, "move_failed_to": "work", **small}, "work": small})
    work = engine.reader("work")
    engine.put("orders", b"failed on orders")
    engine.end_turn()
    for _ in range(2):
        _fail(engine.reader("orders"), engine)
    work.queue.put_keyed(b"order-17", work, b"for later, with a key", 0, 0, None, HOUR_MS)
    engine.end_turn()
    token = _lease(work, engine)
    for _ in range(200):
        engine.put("work", b"flows" * 10)
        engine.end_turn()
        engine.take("work")
        engine.end_turn()
        engine.work(20)
    return [token]


def reasons(engine: Engine) -> list[int]:
    """Why items have failed: in a CHECKPOINT and behind it, of one that waits, one that comes later, a dead letter."""
    engine.configure({"work": {"max_retries": 1, "move_failed_to": "dead"}, "slow": {"retry_delays_ms": (60_000,)}})
    engine.put("work", b"fails for good", b"fails", b"fails later")
    engine.put("slow", b"comes later")
    engine.end_turn()
    for name, reason in (("work", "first"), ("work", "no room / 100 %"), ("work", "größe"), ("slow", "no route")):
        _fail(engine.reader(name), engine, reason)
        engine.end_turn()
    assert engine.take("work") == b"fails"
    engine.end_turn()
    engine.queue("work").go_on()
    _fail(engine.reader("work"), engine, "too late")
    return []


def leased(engine: Engine) -> list[int]:
    """Leases of a queue and its child: running, extended, leased again, given back, failed, of several holders."""
    engine.configure({"work": {"retry_delays_ms": (60_000,)}})
    work, audit = engine.reader("work"), engine.reader("work+audit")
    engine.put("work", *(b"item %d" % number for number in range(1, 9)))
    engine.end_turn()
    tokens = [_lease(work, engine, f"worker-{number}/127.0.0.1:{4000 + number}") for number in range(1, 4)]
    _lease(audit, engine, "auditor/127.0.0.1:5000")
    engine.end_turn()
    pass_by(engine, 1000)
    assert extend(work, tokens[0], 3 * HOUR_MS)
    engine.end_turn()
    assert give_back(work, tokens[1], engine.clock.wall_ms)
    engine.end_turn()
    tokens[1] = _lease(work, engine, "127.0.0.1:4004")
    assert fail(work, _lease(work, engine, "worker-5/127.0.0.1:4005"), engine.clock.wall_ms, "no room")
    engine.end_turn()
    assert confirm(work, _lease(work, engine, "worker-6/127.0.0.1:4006"))
    given_back = _lease(work, engine, "worker-7/127.0.0.1:4007")
    engine.end_turn()
    assert give_back(work, given_back, engine.clock.wall_ms)
    engine.queue("work").go_on()
    assert extend(work, tokens[2], HOUR_MS)
    engine.end_turn()
    return tokens


def leased_and_compacted(engine: Engine) -> list[int]:
    """A segment that stands in for others, with the leases of items in it and who has them, and the live one."""
    engine.configure({"work": {"max_journal_size_bytes": 1000, "max_journal_overflow": 2}})
    work = engine.reader("work")
    engine.put("work", b"leased", b"extended", b"waits")
    engine.end_turn()
    tokens = [_lease(work, engine, f"worker-{number}/127.0.0.1:{4000 + number}") for number in range(1, 3)]
    engine.end_turn()
    pass_by(engine, 1000)
    assert extend(work, tokens[1], 3 * HOUR_MS)
    for _ in range(200):
        engine.put("work", b"flows" * 10)
        engine.end_turn()
        engine.take("work")
        engine.end_turn()
        engine.work(20)
    return tokens


def holders(engine: Engine) -> dict[str, Any]:
    """Who has leases, and since how many ms, by queue."""
    return {
        name: {
            one: [lease.holder, reader.queue.clock.monotonic_ms - lease.since_ms]
            for one, lease in sorted(reader.held_items().leases.items())
        }
        for name, reader in _readers(engine)
    }


def why(engine: Engine) -> dict[str, Any]:
    """Why items have failed that wait, by queue."""
    return {
        name: {one: reader.queue.failure_of(reader.number, one) for one in range(1, reader.queue.next_id)}
        for name, reader in _readers(engine)
    }


def _lease(reader: Reader, engine: Engine, holder: str = "") -> int:
    leased = lease(reader, engine.clock.wall_ms, 2 * HOUR_MS, holder)
    assert leased is not None
    return leased[0]


def _fail(reader: Reader, engine: Engine, reason: str = "") -> None:
    assert fail(reader, _lease(reader, engine), engine.clock.wall_ms, reason)
    engine.end_turn()


MAKERS: Final[dict[str, Callable[[Engine], list[int]]]] = {
    "held_back": held_back,
    "begun_as_version_1": begun_as_version_1,
    "compacted": compacted,
}

# Of version 4
LEASES: Final[dict[str, Callable[[Engine], list[int]]]] = {
    "leased": leased,
    "compacted": leased_and_compacted,
}


def started(spool: Path, stopped_at_ms: int) -> Engine:
    """A start a second after the stop."""
    clock = FakeClock()
    clock.wall_ms = stopped_at_ms + 1000
    return Engine(spool, QuickFiles(), clock)


def keep(folder: Path, make: Callable[[Engine], list[int]], *, is_killed: bool = False) -> None:
    """Make a spool in `folder`, stopped in good order or killed, and note what a start finds."""
    made = Engine(folder, QuickFiles())
    tokens = make(made)
    made.end_turn()
    if is_killed:
        made.abandon()
    else:
        made.collection.close()
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(folder, Path(aside) / "spool")
        again = started(Path(aside) / "spool", made.clock.wall_ms)
        expected = {"stopped_at_ms": made.clock.wall_ms, "tokens": tokens, **told(again)}
        expected["failures"] = why(again)
        expected["holders"] = holders(again)
        expected["delivered"] = delivered(again)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    for kind, make in {**MAKERS, "reasons": reasons}.items():
        keep(Path(sys.argv[1]) / kind, make)
    for kind, make in LEASES.items():
        keep(Path(sys.argv[1]) / "journal_version_4" / kind, make, is_killed=True)
