"""Every kept input, and new ones for a while: `make fuzz` goes on for longer."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kestreld.server.memcache import parser
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
KEPT: Final = sorted(path for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_kept_input_breaks_no_promise(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_inputs_to_begin_with() -> None:
    assert {path.parent.name for path in KEPT} == set(TARGETS)


@pytest.mark.exhaustive("memcache_parser")
@pytest.mark.parametrize(
    ("limits", "seed"),
    [(["-runs=1000", "-max_total_time=10"], 1), pytest.param(["-max_total_time=8"], 0, marks=pytest.mark.long)],
    ids=["same each time", "random"],
)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_the_fuzzer_thinks_of_breaks_a_promise(name: str, limits: list[str], seed: int, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: there is none for this Python or machine")
    if not str(parser.__file__).endswith(".py"):
        pytest.skip("compiled modules do not tell the fuzzer where it has been")
    options = [*limits, f"-seed={seed}", "-verbosity=0", "-print_final_stats=1"]
    fuzzed = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, *options],
        cwd=ROOT,
        env={**os.environ, "FUZZ_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if fuzzed.returncode:
        (ROOT / ".fuzz").mkdir(exist_ok=True)
        kept = [shutil.copy(path, ROOT / ".fuzz") for path in tmp_path.glob("*-*")]
        pytest.fail(f"{fuzzed.stderr[-3000:]}\nkept: {kept}")
    runs = next(line for line in fuzzed.stderr.splitlines() if line.startswith("stat::number_of_executed_units"))
    print(f"\n{name}: {runs.split()[-1]} inputs")
