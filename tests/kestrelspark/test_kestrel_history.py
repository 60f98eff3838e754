"""Puts and gets in journals that a Kestrel has recovered: what they leave is what that Kestrel then delivered."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-spark installs it")

from kestreld.journal.discovery import discover
from kestrelspark.jobs.kestrel_history import _Begun, _queues, _rows, _summary, _summary_again
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
