"""kestrelctl as its users run it: alone, to its end or to look at while it lasts, or in a shell script."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support import forked, in_process
from tests.support.process import environment

ROOT: Final = Path(__file__).parents[2]
RUN_S: Final = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: bytes
    err: str


class Kestrelctl:
    """Runs kestrelctl against one server, its cache and its jobs."""

    def __init__(self, address: str, folder: Path, cache: str = "127.0.0.1:1", jobs: str = "127.0.0.1:1") -> None:
        self.address = address
        program = folder / "kestrelctl"
        program.write_text(forked.program())
        program.chmod(0o755)
        self.environment = {
            **environment(),
            "KESTRELCTL_SERVER": address,
            "KESTRELCTL_CACHE": cache,
            "KESTRELCTL_JOBS": jobs,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        if in_process.can_run(arguments, self.environment):
            code, out, err = in_process.run(arguments, stdin, self.environment)
            return Outcome(code, out, err.decode())
        return self._run([sys.executable, "-m", "kestrelctl", *arguments], stdin, {})

    def script(self, shell: str, script: str, **variables: str) -> Outcome:
        """Run `script` under `set -eu`. Skips the test when the shell is missing."""
        path = shutil.which(shell)
        if path is None:
            pytest.skip(f"{shell} is not installed")
        return self._run([path, "-c", f"set -eu\n{script}"], b"", variables)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A run to look at while it lasts. Its stdin and stdout are pipes."""
        return forked.Launched(
            [sys.executable, "-m", "kestrelctl", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def _run(self, command: list[str], stdin: bytes, variables: dict[str, str]) -> Outcome:
        run = forked.run(command, stdin, RUN_S, env={**self.environment, **variables})
        return Outcome(run.returncode, run.stdout, run.stderr.decode())
