"""Fuzz one target: python -m tests.fuzz TARGET [options of libFuzzer].

What it finds worth keeping goes to .fuzz/TARGET, inputs that break a promise to .fuzz/TARGET-crash-*; $FUZZ_FOLDER
names another folder.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import atheris

# A target with a module of its own starts sooner: to instrument a module takes longer than to import it. What such a
# target uses and does not fuzz is imported before.
OWN_MODULES: Final = {
    "memcache_parser": ("tests.fuzz.parser_target", ["kestreld.server.command_handler"]),
}
name, *options = sys.argv[1:]
module, used = OWN_MODULES.get(name, ("tests.fuzz.targets", []))
for one in used:
    import_module(one)
with atheris.instrument_imports(include=["kestreld"]):
    target = getattr(import_module(module), name)

FOUND: Final = Path(os.environ.get("FUZZ_FOLDER", ".fuzz"))
CORPUS: Final = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX: Final = 4096


def main() -> None:
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    libfuzzer = [f"-artifact_prefix={found}-", f"-max_len={INPUT_BYTES_MAX}", "-timeout=120", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *libfuzzer, *options, str(found), str(CORPUS / name)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
