"""The benchmark of items that are held back, with tiny sizes: that it runs, and says what is above its limit."""

import shutil
from pathlib import Path

import pytest

from benchmarks import held

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")


@pytest.mark.long
def test_all_parts_run_and_say_what_is_above_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "EACH_BYTES_MAX", -1_000_000)  # so few items may take less than what was free before
    small = ["--scale", "0.002", "--rounds", "1", "--seconds", "0.05", "--due-s", "60", "--folder", str(tmp_path)]
    assert held.main(small) == 1
    said = capsys.readouterr().out
    for words in (
        "16 clients",
        "memory",
        "most on disk",
        "another queue",
        "page",
        "compaction",
        "undo",
        "kill",
        "256 KiB",
    ):
        assert words in said, said
    assert "ABOVE memory of a delayed item" in said
    assert not list(tmp_path.iterdir())
