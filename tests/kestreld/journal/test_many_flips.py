"""A bit flipped anywhere in a journal of 16 MiB: none goes unnoticed. `FLIPS` says how many are tried."""

import os
import random
from pathlib import Path
from typing import Final

import pytest

from kestreld.files import FileLayer
from kestreld.journal.verify import SegmentReport, verify_journal
from tests.support.engine import Engine, QuickFiles

FLIPS: Final = int(os.environ.get("FLIPS", "1000"))
JOURNAL_BYTES: Final = 16 << 20
SEGMENT_BYTES: Final = 64 << 10
ITEM_BYTES_MAX: Final = 400


class Flipped(FileLayer):
    """Two segments of a journal, one after the other, the first with a bit flipped."""

    def __init__(self, damaged: Path, content: bytes, following: Path) -> None:
        self._names = [damaged.name, following.name]
        self._damaged, self._content = str(damaged), content

    def list_dir(self, path: str) -> list[str]:
        return self._names

    def read_file(self, path: str) -> bytes:
        return self._content if path == self._damaged else super().read_file(path)


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Puts of all sizes, reads of every kind, two readers."""
    rng = random.Random(16)
    spool = tmp_path_factory.mktemp("flips") / "spool"
    engine = Engine(spool, QuickFiles(), max_journal_size_bytes=SEGMENT_BYTES, max_journal_overflow=1 << 20)
    engine.reader("work+audit")
    put_bytes = 0
    while put_bytes < JOURNAL_BYTES:
        for _ in range(rng.randrange(1, 20)):
            data = rng.randbytes(rng.randrange(ITEM_BYTES_MAX))
            engine.put("work", data, flags=rng.choice([0, 0, 7]))
            put_bytes += len(data)
        if rng.random() < 0.5:
            engine.take("work")
        engine.end_turn()
    engine.abandon()
    return engine.segments("work")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_flipped_bit_goes_unnoticed(segments: list[Path]) -> None:
    assert sum(path.stat().st_size for path in segments) > JOURNAL_BYTES
    rng = random.Random(FLIPS)
    unnoticed = []
    for _ in range(FLIPS):
        place = rng.randrange(len(segments) - 1)
        content = bytearray(segments[place].read_bytes())
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        report = first_report(segments, place, bytes(content))
        if report.bad_offset is None or not report.bad_offset <= at:
            unnoticed.append((segments[place].name, at, report))
    print(f"\n{FLIPS} bits flipped in {len(segments)} segments, {len(unnoticed)} unnoticed")
    assert unnoticed == []


def first_report(segments: list[Path], place: int, content: bytes) -> SegmentReport:
    damaged, following = segments[place : place + 2]
    return verify_journal(Flipped(damaged, content, following), str(damaged.parent), "work")[0]


@pytest.mark.long
def test_without_a_flip_there_is_nothing_to_notice(segments: list[Path]) -> None:
    for place in range(0, len(segments) - 1, 50):
        assert first_report(segments, place, segments[place].read_bytes()).bad_offset is None
