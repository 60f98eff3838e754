"""docs/jobs.md: its programs do what they say."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon

PAGE: Final = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
PROGRAMS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SAID: Final = [
    r"""b'{"to": "ann"}'\n""",
    r"",
    r"queued 1\nmail D-\S{38} b'body' 0\nNOJOB\n",
    r"b'page'\n0\n",
]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_a_program_does_what_it_says(server: Daemon, number: int) -> None:
    port = server.disque.rpartition(":")[2]
    assert len(PROGRAMS) == len(SAID)
    assert "7711" in PROGRAMS[number]
    program = PROGRAMS[number].replace("7711", port)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(SAID[number], done.stdout), done.stdout
