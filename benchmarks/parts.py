"""A benchmark in parts whose figures have limits: its options, and printing each figure beside what it may be."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.errors import Unusable
from benchmarks.limits import Figure, line
from benchmarks.load import SCRATCH, build
from benchmarks.servers import ROOT

COMPILED: Final = ROOT / ".venv-compiled" / "bin" / "kestreld"  # `make compiled`
QUICK_COUNT: Final = 5_000
QUICK_SECONDS: Final = 0.05

Say = Callable[[str], None]  # what is being measured


@dataclass(frozen=True, slots=True)
class Shape:
    """Clients, operations on the way on each connection, and what the processor time may be of another server's."""

    name: str
    clients: int
    depth: int
    limit: float
    compiled_limit: float


@dataclass(frozen=True, slots=True)
class Options:
    """`programs` are the kestrelds' names and the commands that start them, `count` is how many are many."""

    programs: dict[str, str]
    folder: Path
    count: int
    rounds: int
    seconds: float
    is_quick: bool
    say: Say


@dataclass(frozen=True, slots=True)
class Part:
    """`rounds` unless the options say how many."""

    measure: Callable[[Options], Iterator[Figure]]
    rounds: int


def judge(figures: Callable[[Path, Say], Iterator[Figure]], folder: Path) -> int:
    """Print figures as they come. 0 = nothing is above its limit; 1 = something is; 2 = it could not be measured.

    They are measured in a folder of their own in that one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="run", dir=folder))
    words = Console(stderr=True, highlight=False)
    is_above = False
    try:
        with words.status("starting") as status:
            say: Say = status.update if words.is_terminal else lambda what: None
            for figure in figures(own, say):
                is_above = is_above or figure.is_above
                status.stop()
                print(line(figure), flush=True)  # some are a long time coming
                status.start()
    except Unusable as unusable:
        words.print(f"benchmarks: {unusable}", markup=False)
        return 2
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return int(is_above)


def main(name: str, about: str, parts: Mapping[str, Part], things: str, count: int, given: Sequence[str] | None) -> int:
    """Measure parts of `python -m benchmarks.NAME`, with so many `things`; see `judge`."""
    options = _read_options(name, about, parts, things, count, given)
    build()
    programs = {"kestreld": options.kestreld} | ({"compiled": str(COMPILED)} if options.compiled else {})

    def figures(folder: Path, say: Say) -> Iterator[Figure]:
        for part in options.parts or parts:
            rounds = options.rounds or parts[part].rounds
            yield from parts[part].measure(
                Options(programs, folder, options.count, rounds, options.seconds, options.quick, say)
            )

    return judge(figures, options.folder)


def _read_options(
    name: str, about: str, parts: Mapping[str, Part], things: str, count: int, given: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure (default all): {', '.join(parts)}")
    rounds = ", ".join(f"{part}: {one.rounds}" for part, one in parts.items() if one.rounds > 1)
    parser.add_argument("--rounds", type=int, help=f"so many of everything that is repeated ({rounds})")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement of CPU (1)")
    parser.add_argument(
        f"--{things}",
        dest="count",
        type=int,
        default=count,
        help=f"how many are many; twice as many for waits ({count})",
    )
    parser.add_argument("--quick", action="store_true", help=f"does everything work? short, and with few {things}")
    parser.add_argument("--kestreld", default="", metavar="COMMAND", help="the kestreld to measure (default: this one)")
    parser.add_argument("--compiled", action="store_true", help="the one of `make compiled` beside it")
    parser.add_argument("--folder", type=Path, default=SCRATCH, help="where journals lie meanwhile")
    options = parser.parse_args(given)
    if unknown := set(options.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    if options.quick:
        options.rounds, options.seconds, options.count = 1, QUICK_SECONDS, QUICK_COUNT
    if options.count < 1 or (options.rounds or 1) < 1:
        parser.error("it takes a round, and one of what there are many of, at least")
    if options.compiled and not COMPILED.exists():
        parser.error(f"there is no {COMPILED}: run `make compiled` first")
    return options
