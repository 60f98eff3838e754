"""A kestreld whose wall clock is stepped while it runs, by libfaketime; its monotonic clock is the machine's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon


class SteppedDaemon(Daemon):
    """Skips the test where libfaketime is not installed."""

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder, settings)
        faketime = shutil.which("faketime")
        if faketime is None:
            pytest.skip("faketime is not installed")
        shown = subprocess.run([faketime, "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True)
        self._library = shown.stdout.strip()
        self._offset = folder / "offset"
        self.step_to(0)

    def step_to(self, seconds: int) -> None:
        """The wall clock shows the machine's time and so many seconds, from now on."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._offset)

    def command(self) -> list[str]:
        variables = {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return ["env", *[f"{name}={value}" for name, value in variables.items()], *super().command()]
