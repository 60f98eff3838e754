"""The door to the disk: what is promised of it beyond the calls it passes on."""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from kestreld.files import FileLayer
from tests.simulation.disk import Disk, random_power_cut
from tests.simulation.process_files import ProcessFiles
from tests.support.power_disk import power_disk


def test_a_power_cut_takes_away_no_folder_that_was_made_to_last() -> None:
    for seed in range(50):
        disk = Disk()
        files: FileLayer = ProcessFiles(disk)
        files.make_lasting_dir("/var/lib/kestreld/spool")
        files.make_lasting_dir("/var/lib/kestreld/spool")  # one that exists is fine
        assert ProcessFiles(random_power_cut(disk, Random(seed))).is_dir("/var/lib/kestreld/spool")


def test_a_sync_of_the_file_system_covers_what_is_on_it(tmp_path: Path) -> None:
    files = FileLayer()
    fd = files.create(str(tmp_path / "lock"))
    try:
        assert files.is_covered(str(tmp_path / "lock"), fd)
        assert not files.is_covered("/proc/version", fd)
        with pytest.raises(FileNotFoundError):
            files.is_covered(str(tmp_path / "gone"), fd)
    finally:
        files.close(fd)


def test_it_does_not_cover_a_file_system_that_is_a_program(tmp_path: Path) -> None:
    files = FileLayer()
    with power_disk(tmp_path / "disk", 1) as disk:
        fd = files.create(str(disk.folder / "lock"))
        try:
            assert not files.is_covered(str(disk.folder / "lock"), fd)
        finally:
            files.close(fd)


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    files = FileLayer()
    umask = os.umask(0)
    try:
        files.make_dir(str(tmp_path / "folder"))
        files.close(files.create(str(tmp_path / "created")))
        files.append(str(tmp_path / "appended"), b"x")
        files.copy(str(tmp_path / "appended"), str(tmp_path / "copied"))
        locked = files.lock(str(tmp_path / "locked"))
        assert locked is not None
        files.close(locked)
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in tmp_path.iterdir()}
    names = ("created", "appended", "copied", "locked")
    assert modes == {"folder": 0o700, **dict.fromkeys(names, 0o600)}


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    elsewhere.write_bytes(b"of another program")
    link.symlink_to(elsewhere)
    files = FileLayer()
    for use in (files.open_read, files.open_append, files.lock, lambda path: files.copy(path, f"{path}.new")):
        with pytest.raises(OSError, match="symbolic links") as refused:
            use(str(link))
        assert refused.value.errno == errno.ELOOP
    with pytest.raises(OSError, match="symbolic links"):
        files.copy(str(elsewhere), str(link))
    with pytest.raises(FileExistsError):
        files.create(str(link))
    assert elsewhere.read_bytes() == b"of another program"
