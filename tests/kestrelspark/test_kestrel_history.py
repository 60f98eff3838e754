"""Puts and gets in journals that a Kestrel has recovered: what they leave is what that Kestrel then delivered."""

import json
import os
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-spark installs it")

from kestreld.files import FileLayer, FileTimes
from kestreld.journal.discovery import discover
from kestreld.journal.kestrel.ops import ADDX, REMOVE, Op, encode
from kestrelspark.jobs.kestrel_history import _Begun, _queues, _rows, _summary, _summary_again, last_written_at_ms
from kestrelspark.lifecycle import beginnings

JOURNALS: Final = Path(__file__).parents[1] / "golden" / "journals"
# Kestrel throws away what follows damage, and an item whose time is over when it starts; 1.x counts reads otherwise.
OTHERWISE: Final = {"c_arch_trunc", "c_badop10", "c_old_roll", "c_old_rt2", "j_expired"}
NAMES: Final = sorted(path.name for path in JOURNALS.glob("[cj]_*") if path.name not in OTHERWISE)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_is_what_kestrel_delivered(name: str) -> None:
    expected = json.loads((JOURNALS / name / "expect.json").read_text())["queues"]
    files = discover([str(JOURNALS / name / "files")]).files
    for group in _queues(files):
        own = [files[at] for at in group]
        summaries = [_summary(file) for file in own]
        events: Counter[str] = Counter()
        for file, beginning in zip(own, beginnings(summaries, partial(_summary_again, own)), strict=True):
            for batch in _rows(_Begun(file, beginning, 1 << 42, is_counted=False)):
                events.update(batch.column("event").to_pylist())
        queue = f"{own[0].queue}+{own[0].reader}" if own[0].reader else own[0].queue
        if queue in expected:
            assert events["put"] - events["got"] - events["confirmed"] == len(expected[queue]["items"])


def written_here(path: Path) -> int:
    """A Kestrel file that grew by an item which was added and taken; returns when it was added."""
    with path.open("wb", buffering=0) as file:
        at_ms = time.time_ns() // 1_000_000 + 10  # a file's times may be a tick of the clock behind
        file.write(encode(Op(ADDX, 0, at_ms, 0, b"item")))
        while time.time_ns() // 1_000_000 <= at_ms + 10:
            time.sleep(0.001)
        file.write(encode(Op(REMOVE)))
    return at_ms


def test_a_files_times_bound_its_last_gets_only_where_it_was_not_copied(tmp_path: Path) -> None:
    work = tmp_path / "work"
    added_at_ms = written_here(work)
    files = FileLayer()
    if files.times(str(work)).born_ns is None:
        pytest.skip("this file system does not tell when a file was created")

    def written_at_ms(path: Path) -> int:
        return last_written_at_ms(files.times(str(path)), added_at_ms)

    assert written_at_ms(work) == work.stat().st_mtime_ns // 1_000_000
    shutil.copy(work, tmp_path / "copy")
    shutil.copy2(work, tmp_path / "copy_with_times")
    assert written_at_ms(tmp_path / "copy") == written_at_ms(tmp_path / "copy_with_times") == -1
    os.utime(work, (added_at_ms / 1000 + 3600,) * 2)
    assert written_at_ms(work) == -1


@pytest.mark.parametrize(
    ("times", "expected_ms"),
    [
        (FileTimes(1_000_000_000, 9_000_000_000, 9_000_000_000), 9000),
        (FileTimes(None, 9_000_000_000, 9_000_000_000), -1),  # object storage, or an old file system
        (FileTimes(6_000_000_000, 9_000_000_000, 9_000_000_000), -1),  # younger than its last item
        (FileTimes(1_000_000_000, 4_000_000_000, 4_000_000_000), -1),  # written before its last item
        (FileTimes(1_000_000_000, 9_000_000_000, 9_500_000_000), -1),  # its times were set, or it was renamed
    ],
)
def test_a_files_times_tell_its_last_write_where_they_fit_its_last_item(times: FileTimes, expected_ms: int) -> None:
    assert last_written_at_ms(times, 5000) == expected_ms
