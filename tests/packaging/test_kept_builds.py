"""Compiled modules kept for the next build: when they are used, and when they are compiled anew."""

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.daemon import ROOT

MODULE: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "packaging" / "kept_builds.py"))
hash_of: Final[Callable[..., str]] = MODULE["hash_of"]
NAME: Final = "0123"


class Builds:
    """A build that makes a module of what `content` is, and how often it did."""

    def __init__(self, folder: Path, content: bytes = b"compiled") -> None:
        self.kept = folder / "kept"
        self.target = folder / "built"
        self.content = content
        self.times = 0

    def build(self) -> None:
        self.times += 1
        module = self.target / "kestreld" / "queues" / "queue.cpython-311.so"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_bytes(self.content)
        (self.target / "notes.txt").touch()  # only modules are kept

    def run(self, target: Path, name: str = NAME) -> tuple[bool, dict[str, bytes]]:
        """Whether it was there, and what there is now."""
        self.target = target
        taken = MODULE["kept_or_built"](self.kept, name, target, self.build)
        return taken, {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*.so")}


BUILT: Final = {"kestreld/queues/queue.cpython-311.so": b"compiled"}


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def test_a_kept_build_is_used(builds: Builds, tmp_path: Path) -> None:
    assert builds.run(tmp_path / "first") == (False, BUILT)
    assert builds.run(tmp_path / "second") == (True, BUILT)
    assert builds.times == 1
    assert not (tmp_path / "second" / "notes.txt").exists()


def test_a_build_of_other_sources_is_not_used(builds: Builds, tmp_path: Path) -> None:
    builds.run(tmp_path / "first")
    assert builds.run(tmp_path / "second", "4567")[0] is False
    assert builds.times == 2


@pytest.mark.parametrize("size", ["nothing", "half", "all but a byte"])
def test_a_half_written_build_is_compiled_anew(builds: Builds, tmp_path: Path, size: str) -> None:
    builds.run(tmp_path / "first")
    path = builds.kept / f"{NAME}.zip"
    written = path.read_bytes()
    path.write_bytes(written[: {"nothing": 0, "half": len(written) // 2, "all but a byte": -1}[size]])
    assert builds.run(tmp_path / "second") == (False, BUILT)
    assert builds.run(tmp_path / "third") == (True, BUILT)


def test_a_damaged_build_is_compiled_anew(builds: Builds, tmp_path: Path) -> None:
    builds.run(tmp_path / "first")
    path = builds.kept / f"{NAME}.zip"
    path.write_bytes(path.read_bytes().replace(b"compiled", b"comp1led"))
    assert builds.run(tmp_path / "second") == (False, BUILT)


def test_a_build_that_failed_is_not_kept(builds: Builds, tmp_path: Path) -> None:
    def fail() -> None:
        builds.build()
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError):
        MODULE["kept_or_built"](builds.kept, NAME, tmp_path / "built", fail)
    assert builds.run(tmp_path / "second")[0] is False


def test_the_builds_used_last_are_kept(builds: Builds, tmp_path: Path) -> None:
    for number in range(4):
        builds.run(tmp_path / f"{number}", f"{number}")
        if (oldest := builds.kept / "0.zip").exists():
            os.utime(oldest, (1000 + number, 1000 + number))  # as if it was some time ago
    assert sorted(path.name for path in builds.kept.iterdir()) == ["1.zip", "2.zip", "3.zip"]
    for number in (1, 2, 3):
        os.utime(builds.kept / f"{number}.zip", (1000 + number, 1000 + number))
    assert builds.run(tmp_path / "again", "1")[0] is True
    builds.run(tmp_path / "4", "4")
    assert sorted(path.name for path in builds.kept.iterdir()) == ["1.zip", "3.zip", "4.zip"]


def test_a_build_is_made_where_nothing_can_be_kept(builds: Builds, tmp_path: Path) -> None:
    builds.kept.write_bytes(b"a file, no folder")
    assert builds.run(tmp_path / "first") == (False, BUILT)
    assert builds.kept.read_bytes() == b"a file, no folder"


def source_tree(folder: Path) -> list[Path]:
    files = [folder / "kestreld" / name for name in ("queue.py", "reader.py")]
    files[0].parent.mkdir(parents=True)
    files[0].write_text("A = 1\n")
    files[1].write_text("B = 2\n")
    return files


def test_the_hash_changes_when_a_source_is_changed_renamed_or_added(tmp_path: Path) -> None:
    files = source_tree(tmp_path)
    seen = [hash_of(tmp_path, files, [])]
    files[1].write_text("B = 3\n")
    seen.append(hash_of(tmp_path, files, []))
    files[1] = files[1].rename(tmp_path / "kestreld" / "readers.py")
    seen.append(hash_of(tmp_path, files, []))
    files.append(files[0].with_name("empty.py"))
    files[2].touch()
    seen.append(hash_of(tmp_path, files, []))
    assert len(set(seen)) == len(seen)


def test_the_hash_changes_with_what_compiles(tmp_path: Path) -> None:
    files = source_tree(tmp_path)
    assert hash_of(tmp_path, files, [("mypy", "1.14")]) != hash_of(tmp_path, files, [("mypy", "1.15")])


def test_the_hash_is_that_of_the_same_sources_elsewhere(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    files, others = source_tree(first), source_tree(second)
    os.utime(others[0], (1000, 1000))
    assert hash_of(first, files, []) == hash_of(second, reversed(others), [])
