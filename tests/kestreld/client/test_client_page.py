"""docs/client.md: its programs do what they say."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import running_daemon

PAGE: Final = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
PROGRAMS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SAID: Final = ["b'cat.jpg'\n", "b'dog.jpg'\n", "", "b'bird.jpg'\n", "billing-1 True\n"]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_a_program_does_what_it_says(tmp_path: Path, number: int) -> None:
    assert len(PROGRAMS) == len(SAID)
    with running_daemon(tmp_path) as daemon:
        program = PROGRAMS[number].replace("127.0.0.1:22133", daemon.address)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SAID[number]
