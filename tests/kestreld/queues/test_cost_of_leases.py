"""What it costs that leases outlive a kill: bytes in the journal, and in memory."""

import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from kestreld.queues import leases
from tests.support.compiled import interpreted_only
from tests.support.engine import Engine, QuickFiles

HOUR_MS: Final = 3_600_000
LEASES: Final = 10_000
TURN: Final = 50  # leases granted in one
LEASE_BYTES_MAX: Final = 40  # of a record without the holder; in a turn of many it shares the beginning of one
NUMBER_BYTES: Final = 2  # of the holder's number
MEMORY_BYTES_MAX: Final = 120  # of a lease, more than without it


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", *(b"item" for _ in range(101)))
    engine.end_turn()
    lease(engine)
    engine.end_turn()  # with the segment for leases, and the holder
    return engine


def lease(engine: Engine) -> int:
    leased = leases.lease(engine.reader("work"), engine.clock.wall_ms, HOUR_MS, "worker-7/127.0.0.1:4000")
    assert leased is not None
    return leased[0]


def disk_bytes(engine: Engine) -> int:
    return sum(path.stat().st_size for path in engine.segments("work"))


def test_a_lease_takes_forty_bytes_in_the_journal_and_an_extension_as_many(engine: Engine) -> None:
    before_bytes = disk_bytes(engine)
    token = lease(engine)
    engine.end_turn()
    lease_bytes = disk_bytes(engine) - before_bytes
    assert leases.extend(engine.reader("work"), token, 2 * HOUR_MS)
    engine.end_turn()
    extension_bytes = disk_bytes(engine) - before_bytes - lease_bytes
    print(f"a lease {lease_bytes} bytes, an extension {extension_bytes}")
    assert 0 < lease_bytes - NUMBER_BYTES <= LEASE_BYTES_MAX
    assert 0 < extension_bytes - NUMBER_BYTES <= LEASE_BYTES_MAX


def test_those_of_one_turn_take_less(engine: Engine) -> None:
    before_bytes = disk_bytes(engine)
    for _ in range(100):
        lease(engine)
    engine.end_turn()
    each_bytes = (disk_bytes(engine) - before_bytes) / 100
    print(f"each {each_bytes:.2f} bytes")
    assert each_bytes < LEASE_BYTES_MAX * 0.6


def test_an_item_leased_and_extended_many_times_in_a_turn_is_written_once(engine: Engine) -> None:
    before_bytes = disk_bytes(engine)
    token = lease(engine)
    for _ in range(100):
        assert leases.extend(engine.reader("work"), token, HOUR_MS)
    engine.end_turn()
    assert disk_bytes(engine) - before_bytes - NUMBER_BYTES <= LEASE_BYTES_MAX


def memory_bytes(folder: Path, *, journal_leases: bool) -> int:
    """Memory of LEASES leases, half of which are extended."""
    engine = Engine(folder, QuickFiles(), journal_leases=journal_leases)
    engine.put("work", *(b"item" for _ in range(LEASES)))
    engine.end_turn()
    tracemalloc.start()
    try:
        for _ in range(LEASES // TURN):
            tokens = [lease(engine) for _ in range(TURN)]
            engine.end_turn()
            for token in tokens[::2]:
                assert leases.extend(engine.reader("work"), token, HOUR_MS)
            engine.end_turn()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        engine.abandon()


@interpreted_only
def test_it_takes_at_most_120_bytes_of_memory_for_each_lease(tmp_path: Path) -> None:
    on_bytes = memory_bytes(tmp_path / "on", journal_leases=True)
    off_bytes = memory_bytes(tmp_path / "off", journal_leases=False)
    print(f"{on_bytes / LEASES:.1f} bytes for a lease, {off_bytes / LEASES:.1f} without the journal")
    assert (on_bytes - off_bytes) / LEASES <= MEMORY_BYTES_MAX
