"""What docs/celery.md shows, run as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

from kestreld.integrations.celery.settings import OPTIONS
from tests.support.daemon import ROOT

PAGE = (ROOT / "docs" / "celery.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_option_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Options"), re.MULTILINE)
    assert sorted(rows) == sorted(OPTIONS)


def test_the_test_on_the_page_passes(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", section("Tests"), re.DOTALL)
    assert found is not None
    (tmp_path / "test_page_example.py").write_text(found[1])
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
