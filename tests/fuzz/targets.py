"""What is fuzzed: each target takes bytes, whatever they are, and fails when a promise does not hold for them."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kestreld.config.config_dump import dump_config
from kestreld.config.config_file import load
from kestreld.config.settings import needs_restart, queue_setting_lines
from kestreld.errors import ConfigError, DeclarationRefused, JournalCorrupt
from kestreld.journal.disque_aof import AofReader, SavedJob
from kestreld.journal.kestrel.format import export_ops, read_queue
from kestreld.journal.repair import repair
from kestreld.journal.segment import MAGIC, segment_name
from kestreld.queues.declared import NO_ENTRY, Declaration, read_option
from tests.fuzz.bus_target import cluster_bus
from tests.fuzz.cache_target import cache_commands
from tests.fuzz.forging import with_true_checksums
from tests.fuzz.ledger_target import bindings_file
from tests.fuzz.parser_target import memcache_parser
from tests.support.clock import START_WALL_MS, FakeClock
from tests.support.disque_here import DisqueHere
from tests.support.engine import Engine
from tests.support.memory_files import MemoryFiles
from tests.support.resp import replies_in

Target = Callable[[bytes], None]
SPOOL: Final = Path("/spool")
SOUND: Final = "sound"  # a queue beside those that are fuzzed

# Bytes to commands


def _of_any_turn(answers: bytes) -> list[object]:
    """Answers, less the figures that depend on how many commands a turn has."""
    return [one for one in replies_in(answers) if not (isinstance(one, bytes) and b" obl=" in one)]


def disque_commands(data: bytes) -> None:
    """A session's answers are well-formed, and the same in whatever pieces its commands come; and the server goes on.

    The first byte says in pieces of how many bytes, and whether there is a password.
    """
    if len(data) < 2:
        return
    size_bytes, password, stream = data[0] % 64 + 1, b"secret" if data[0] & 64 else b"", data[1:]
    answers = []
    for pieces in ([stream], [stream[at : at + size_bytes] for at in range(0, len(stream), size_bytes)]):
        node = DisqueHere(password)
        session = node.session()
        said = b"".join([session.send(piece) for piece in pieces if not session.handler.closing])
        answers.append(_of_any_turn(said))
        other = node.session()
        assert other.send(b"AUTH secret\r\nPING alive\r\n").endswith(b"$5\r\nalive\r\n") or node.node.is_paused
    assert answers[0] == answers[1], "in pieces"


# Files to queues


def drained(engine: Engine) -> dict[str, list[bytes]]:
    """What every queue delivers; those that stop end early."""
    found: dict[str, list[bytes]] = {}
    for name in list(engine.collection.readers):
        found[name] = []
        try:
            while (data := engine.take(name)) is not None:
                found[name].append(data)
        except JournalCorrupt:
            pass
        engine.end_turn()
    return found


def started(files: Mapping[str, bytes]) -> Engine:
    """A server on a spool with these files, and with a sound queue that holds an item."""
    disk = MemoryFiles()
    engine = Engine(SPOOL, disk)
    engine.put(SOUND, b"as ever")
    engine.end_turn()
    engine.collection.close()
    for path, content in files.items():
        disk.make_dir(path.rpartition("/")[0])
        disk.files[path] = bytearray(content)
    return Engine(SPOOL, disk)


def segments_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Segments, which begin with MAGIC, under the names that their headers ask for."""
    for number, part in enumerate(data.split(MAGIC)[1:], start=1):
        content = MAGIC + part
        stated = int.from_bytes(content[24:28], "little") or number
        first_id = int.from_bytes(content[28:36], "little")
        yield f"{SPOOL}/work.journal/{segment_name(stated, first_id)}", content


def journal_reader(data: bytes) -> None:
    """Whatever a journal's files hold: the server starts, other queues serve, nothing is delivered that is not there.

    A second start finds what the first one did, and so does one after a repair, which may find more. With an odd
    first byte all checksums are made right.
    """
    files = dict(segments_in(data[1:]))
    is_forged = bool(data[:1] and data[0] & 1)
    if is_forged:
        files = {path: with_true_checksums(content) for path, content in files.items()}
    engine = started(files)
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    first = {name: engine.items(name) for name in engine.collection.readers}
    engine.crash()
    assert {name: engine.items(name) for name in engine.collection.readers} == first
    found = drained(engine)
    assert found[SOUND] == [b"as ever"]
    everything = b"".join(files.values())
    assert all(item in everything for name in found for item in found[name] if name != SOUND)
    _goes_on(engine, is_forged=is_forged)
    if files:
        _repaired(files)


def _goes_on(engine: Engine, *, is_forged: bool) -> None:
    """What was drained takes new items, and a new segment whose CHECKPOINT is believed.

    Where ids are forged, an old item may have the new one's.
    """
    for family in engine.collection.families.values():
        if family.stopped is None and "" in family.readers:
            assert engine.put(family.name, b"new") == [True]
            family.go_on()
    engine.end_turn()
    named = [name for name, family in engine.collection.families.items() if family.stopped is None]
    engine.crash()
    found = drained(engine)
    assert is_forged or all(found.get(name, [b"new"]) == [b"new"] for name in named)


def _repaired(files: Mapping[str, bytes]) -> None:
    engine = started(files)
    engine.abandon()
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    folder = f"{SPOOL}/work.journal"
    if not disk.is_dir(folder):
        return
    try:
        repair(disk, FakeClock(), folder)
    except JournalCorrupt:
        return  # not for this kestreld to touch
    mended = Engine(SPOOL, disk)
    assert "work" not in mended.collection.broken
    assert drained(mended)[SOUND] == [b"as ever"]


# Kestrel's files

NAMES: Final = ("q", "q.100", "q.200.pack", "q+c", "q~~1", "q.300", "other", "q+c.100")
SEPARATOR: Final = b"\xffFILE"


def kestrel_files(data: bytes) -> None:
    """Whatever files of Kestrel's hold: the server starts, nothing of them is deleted, a second start imports nothing.

    Each file begins with SEPARATOR and the number of its name.
    """
    files = {f"{SPOOL}/{NAMES[part[0] % len(NAMES)]}": part[1:] for part in data.split(SEPARATOR)[1:] if part}
    engine = started(files)
    disk = engine.files
    assert isinstance(disk, MemoryFiles)
    kept = [bytes(content) for path, content in disk.files.items() if ".journal/" not in path]
    assert all(content in kept for content in files.values()), "never deleted"
    before = sorted(disk.files)
    first = {name: engine.items(name) for name in engine.collection.readers}
    engine.crash()
    assert sorted(path for path in disk.files if "/.imported/" in path) == [
        path for path in before if "/.imported/" in path
    ]
    assert {name: engine.items(name) for name in engine.collection.readers} == first
    found = drained(engine)
    assert found[SOUND] == [b"as ever"]
    everything = b"".join(files.values())
    assert all(item in everything for name in found for item in found[name] if name != SOUND)
    for path, content in files.items():
        _exported(path.rpartition("/")[2], content)


def _exported(name: str, content: bytes) -> None:
    """What was read of a file is read again of what is written for it."""
    disk = MemoryFiles()
    disk.files["/in/q"] = bytearray(content)
    items = read_queue(disk, "/in", "q", START_WALL_MS, ["q"]).items
    disk.files["/out/q"] = bytearray(b"".join(export_ops(items)))
    again = read_queue(disk, "/out", "q", START_WALL_MS, ["q"])
    assert [item.data for item in again.items] == [item.data for item in items], name
    assert again.unread == []


# Disque's file


def disque_aof(data: bytes) -> None:
    """A file has jobs of whose bytes it consists, a place where it is cut, or one from where on it is corrupt."""
    disk = MemoryFiles()
    disk.files["/disque.aof"] = bytearray(data)
    reader = AofReader(disk, "/disque.aof")
    try:
        found = list(reader)
    except JournalCorrupt:
        return
    end = len(data) if reader.torn_at is None else reader.torn_at
    assert reader.bytes_read == end or not found
    assert all(one.body in data and one.queue in data for one in found if isinstance(one, SavedJob))


# The configuration


def config(data: bytes) -> None:
    """A text is a configuration, or every mistake in it has a place in it and a reason."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        made = load(text, "fuzz.yaml", files=MemoryFiles())
    except ConfigError as error:
        problems = error.problems
    else:
        assert load(text, "fuzz.yaml", files=MemoryFiles()) == made
        assert needs_restart(made, made) == []
        assert load(dump_config(made), "fuzz.yaml", files=MemoryFiles()) == made
        for name in ("some", "some+child", *made.queues):
            queue_setting_lines(made.for_queue(name))
        return
    assert problems
    for problem in problems:
        assert problem.reason
        assert problem.line <= len(re.split("\r\n|[\r\n\x85\u2028\u2029]", text)) + 1, problem
        str(problem).encode("utf-8", "surrogateescape")


def declarations(data: bytes) -> None:
    """Options of a client are read or refused, and what is read comes back from the ledger; so with its entries."""
    for word in data.decode("latin-1").split(" "):
        name, _, value = word.partition("=")
        try:
            made = Declaration({name: read_option(name, value)}, "fuzz", 1)
        except DeclarationRefused:
            continue
        assert Declaration.from_json(made.to_json()) == made
    with suppress(*NO_ENTRY):
        made = Declaration.from_json(data)
        assert Declaration.from_json(made.to_json()) == made


TARGETS: Final[dict[str, Target]] = {
    "declarations": declarations,
    "memcache_parser": memcache_parser,
    "cache_commands": cache_commands,
    "disque_commands": disque_commands,
    "cluster_bus": cluster_bus,
    "journal_reader": journal_reader,
    "kestrel_files": kestrel_files,
    "bindings_file": bindings_file,
    "disque_aof": disque_aof,
    "config": config,
}
