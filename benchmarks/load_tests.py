"""The load tests of `kestrelctl bench`, as anybody can run them, against a kestreld on its defaults."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import Unusable
from benchmarks.servers import Program, Server, running

TESTS: Final = (
    "flood -n 50000 -b 64",
    "flood -n 50000 -b 64 -R 8 -C 8 -r 16",
    "flood -n 20000 -k 1 -B -x",
    "flood -n 20000 -k 1 --rate 2000 -B",
    "many-clients -s 5ms -n 1000 -c 100",
    "put-many -c 100 -n 50000 -b 1024",
    "packing -n 5000 -c 5 -t 0.2",
    "timeout -t 5s -r 100",
    "fanout -n 10000 -c 4 -b 64",
)
QUICK_TESTS: Final = (
    "flood -n 500 -b 64",
    "many-clients -s 2ms -n 50 -c 20",
    "put-many -c 20 -n 500",
    "packing -n 200 -c 2 -t 0",
    "timeout -t 200ms -r 10",
    "fanout -n 200 -c 2 -b 64",
)
BENCH_NOT_INTACT: Final = 86


def load_tests(program: Program, folder: Path, *, quick: bool, done: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """`done` hears what is being measured."""
    with running([program], folder / "load_tests") as (server,):
        for words in QUICK_TESTS if quick else TESTS:
            done(f"kestrelctl bench {words}: {program.name}")
            yield {"command": words, **_report(words.split(), server)}


def _report(words: list[str], server: Server) -> dict[str, Any]:
    address = f"127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "kestrelctl", "bench", *words, "--json", "--pid", str(server.pid), "-s", address]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode not in (0, BENCH_NOT_INTACT):
        raise Unusable(f"kestrelctl bench {' '.join(words)}: exit {ran.returncode}: {ran.stderr.strip()}")
    report: dict[str, Any] = json.loads(ran.stdout)
    return report
