"""Fuzz one target: python -m tests.fuzz TARGET [options of libFuzzer].

What it finds worth keeping goes to .fuzz/TARGET, inputs that break a promise to .fuzz/TARGET-crash-*; $FUZZ_FOLDER
names another folder.
"""

import os
import sys
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["kestreld"]):
    from tests.fuzz.targets import TARGETS

FOUND: Final = Path(os.environ.get("FUZZ_FOLDER", ".fuzz"))
CORPUS: Final = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX: Final = 4096


def main() -> None:
    name, *options = sys.argv[1:]
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    libfuzzer = [f"-artifact_prefix={found}-", f"-max_len={INPUT_BYTES_MAX}", "-timeout=120", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *libfuzzer, *options, str(found), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
