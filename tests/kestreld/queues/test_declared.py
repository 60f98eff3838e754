"""Declared settings without a server: disks that refuse them, crashes before they are on disk, damaged ledgers."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.errors import DeclarationRefused, JournalCorrupt, JournalFailed
from kestreld.queues.declared import Options
from tests.support.engine import Engine, LateFiles, QuickFiles

Answers = list[JournalFailed | None]


def declare(engine: Engine, name: str, options: Options, *, may_delete: bool = True) -> Answers:
    answers: Answers = []
    engine.collection.declare(name, options, "a client", answers.append, may_delete=may_delete)
    engine.end_turn()
    return answers


class RefusingFiles(QuickFiles):
    """A disk that takes journals and no ledger, for as long as `refuses`."""

    refuses = False

    def create(self, path: str) -> int:
        if self.refuses and ".declared" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().create(path)

    def write(self, fd: int, data: bytes) -> int:
        if self.refuses and ".declared" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


def test_what_the_disk_refuses_is_not_in_force(tmp_path: Path) -> None:
    files = RefusingFiles()
    engine = Engine(tmp_path, files)
    assert declare(engine, "q", {"max_items": 2}) == [None]
    files.refuses = True
    (failure,) = declare(engine, "q", {"max_age": 5})
    assert failure is not None
    assert (engine.reader("q").config.max_items, engine.reader("q").config.max_age_ms) == (2, None)
    (failure,) = declare(engine, "new", {"max_items": 3})
    assert failure is not None
    assert engine.reader("new").config.max_items is None
    files.refuses = False
    assert declare(engine, "q", {"max_age": 6}) == [None]
    engine.crash()
    assert (engine.reader("q").config.max_items, engine.reader("q").config.max_age_ms) == (2, 6)


def test_the_answer_waits_for_the_disk_also_that_of_the_same_again(tmp_path: Path) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files)
    first, again = declare(engine, "q", {"max_items": 2}), declare(engine, "q", {"max_items": 2})
    assert engine.reader("q").config.max_items == 2
    assert (first, again) == ([], [])
    while files.under_way:
        files.finish_background()
    assert (first, again) == ([None], [None])
    assert declare(engine, "q", {"max_items": 2}) == [None]


@pytest.mark.parametrize("end", [Engine.crash, Engine.restart])
def test_declared_queues_that_are_gone_are_made_again_at_a_start(tmp_path: Path, end: Callable[[Engine], None]) -> None:
    engine = Engine(tmp_path, QuickFiles())
    declare(engine, "kept", {"max_items": 2})
    declare(engine, "gone", {"max_items": 2})
    declare(engine, "brief", {"journal": False, "idle_delete": 5000})
    declare(engine, "brief+child", {"max_items": 7})
    for path in engine.segments("gone"):
        path.unlink()
    (tmp_path / "gone.journal").rename(tmp_path.parent / f"{tmp_path.name}.gone")
    end(engine)
    assert sorted(engine.collection.readers) == ["brief", "brief+child", "gone", "kept"]
    assert sorted(engine.collection.declared.names()) == ["brief", "brief+child", "gone", "kept"]
    child = engine.reader("brief+child")
    assert (child.config.journal, child.config.max_items, child.config.idle_delete_ms) == (False, 7, None)
    assert engine.reader("gone").config.max_items == 2
    engine.collection.delete("gone")
    end(engine)
    assert sorted(engine.collection.readers) == ["brief", "brief+child", "kept"]


def test_a_damaged_ledger_stops_declarations_and_nothing_else(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    declare(engine, "q", {"max_items": 2})
    engine.put("q", b"1")
    engine.restart()
    ledger = tmp_path / ".declared"
    engine.abandon()
    content = bytearray(ledger.read_bytes())
    content[40] ^= 1
    ledger.write_bytes(bytes(content))
    engine.start()
    assert any(str(ledger) in line for line in engine.log)
    with pytest.raises(JournalCorrupt):
        declare(engine, "q", {"max_items": 2})
    assert engine.collection.declared.of("q") is None
    assert engine.drain("q") == [b"1"]
    assert engine.collection.delete("q")
    assert ledger.read_bytes() == bytes(content)


def test_a_refused_declaration_changes_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.reader("there")
    with pytest.raises(DeclarationRefused, match="not allowed: delete on 'there'"):
        declare(engine, "there", {"max_items": 2}, may_delete=False)
    with pytest.raises(DeclarationRefused, match="for a parent only"):
        declare(engine, "new+child", {"max_items": 2, "journal": False})
    assert sorted(engine.collection.readers) == ["there"]
    assert not engine.collection.declared.names()
    assert declare(engine, "there", {}, may_delete=False) == [None]


def test_declaring_again_begins_the_time_without_readers_anew(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    for _ in range(10):
        declare(engine, "q", {"idle_delete": 5000})
        for _ in range(4):
            engine.clock.advance(1000)
            engine.work(5)
            engine.end_turn()
    assert engine.collection.find("q") is not None
    for _ in range(8):
        engine.clock.advance(1000)
        engine.work(5)
        engine.end_turn()
    assert engine.collection.find("q") is None
    assert not engine.collection.declared.names()
    engine.crash()
    assert not engine.collection.declared.names()
