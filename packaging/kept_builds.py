"""Compiled modules kept for the next build: a file for each, named by a hash of all that they were made from."""

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

KEPT = 3  # those used last


def hash_of(root: Path, files: Iterable[Path], facts: Iterable[object]) -> str:
    """Name a build by the names and contents of its files, and by what else makes a difference."""
    digest = hashlib.sha256(repr(list(facts)).encode())
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"\n{file.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def kept_or_built(folder: Path, name: str, target: Path, build: Callable[[], None]) -> bool:
    """Have the build of that name in `target`; whether it was there. What cannot be kept is no less built."""
    path = folder / f"{name}.zip"
    if _unpack(path, target):
        return True
    build()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _pack(path, target)
        _forget(folder)
    return False


def _unpack(path: Path, target: Path) -> bool:
    """Unless the file is missing or damaged: each part has a checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return False
            archive.extractall(target)
        os.utime(path)
    except (OSError, zipfile.BadZipFile):
        return False
    return True


def _pack(path: Path, target: Path) -> None:
    """Under its name once it is whole: other builds look for it at the same time."""
    with (
        NamedTemporaryFile(dir=path.parent, prefix="part-", suffix=".zip", delete=False) as part,
        zipfile.ZipFile(part, "w") as archive,
    ):
        for file in sorted(target.rglob("*.so")):
            archive.write(file, file.relative_to(target))
    os.replace(part.name, path)


def _forget(folder: Path) -> None:
    """Parts of those that were not finished go the same way."""
    used_last = sorted(folder.glob("*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in used_last[KEPT:]:
        path.unlink(missing_ok=True)
