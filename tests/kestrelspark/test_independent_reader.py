"""Spark beside a reader that was written from docs/journal.md alone, on random spools, whole and damaged.

JOURNAL_SEEDS=N tries so many of them.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from tests.support.daemon import running_daemon
from tests.support.library import journaled
from tests.support.plain_journal import Event, Read, read
from tests.support.queue_client import QueueClient

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
SEEDS: Final = int(os.environ.get("JOURNAL_SEEDS", "8"))
COLUMNS: Final = (
    "queue", "reader", "event", "id", "at", "expire_time", "flags", "due_time", "attempts", "lease", "holder", "value",
)  # fmt: skip
SETTINGS: Final = ("max_journal_size=2KiB", "max_journal_overflow=1000", "max_retries=9", "move_failed_to=failed")


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue for each seed: most by a server that is killed, some by a program with the library."""
    folder = tmp_path_factory.mktemp("random")
    with running_daemon(folder, *SETTINGS, "sync_journal=500ms") as daemon, QueueClient(daemon.port) as client:
        with QueueClient(daemon.port) as other:
            for seed in range(0, SEEDS, 2):
                fill_by_server([client, other], f"q{seed}", random.Random(seed))
        daemon.kill()
    for seed in range(1, SEEDS, 2):
        fill_by_library(daemon.spool, f"q{seed}", random.Random(seed))
    return daemon.spool


def fill_by_server(clients: Sequence[QueueClient], queue: str, chance: random.Random) -> None:
    clients[0].get(f"{queue}+audit")
    tokens: list[tuple[str, bytes]] = []
    for _ in range(200):
        client = chance.choice(clients)
        name = chance.choice([queue, queue, f"{queue}+audit"])
        match chance.randrange(11):
            case 0 | 1 | 2:
                data = chance.randbytes(chance.randrange(120))
                expiry_s = chance.choice([0, 0, 1 << 31])
                client.put(name, data, expiry_s=expiry_s, flags=chance.choice([0, 7]))
            case 3:
                client.ask(
                    b"set %b/delay=%d 0 0 3\r\nabc\r\n" % (queue.encode(), 1 + chance.randrange(100_000)), b"STORED\r\n"
                )
            case 4 | 5:
                client.get(name)
            case 6:
                if client.get(f"{name}/open") is not None:
                    client.get(f"{name}/close")
            case 7:
                if client.get(f"{name}/open") is not None:
                    client.get(f"{name}/abort")
            case 8 | 9:
                if (token := leased(client, name)) is not None:
                    tokens.append((name, token))
            case _ if tokens:
                end_or_extend(client, *tokens.pop(chance.randrange(len(tokens))), chance)


def leased(client: QueueClient, queue: str) -> bytes | None:
    """Lease an item; its token."""
    client.send(f"gets {queue}/open/lease=60000\r\n".encode())
    words = client.read_line().split()
    if words == [b"END"]:
        return None
    client.read(int(words[3]) + 2)
    client.expect(b"END\r\n")
    return words[4]


def end_or_extend(client: QueueClient, queue: str, token: bytes, chance: random.Random) -> None:
    mine = queue.encode() + b"/" + token
    for _ in range(chance.randrange(3)):
        client.do(b"touch " + mine + b" 60", b"TOUCHED\r\n")
    ends = [b"delete " + mine, *(b"touch " + mine + how + b" 0" for how in (b"", b"/delay=60000", b"/failed"))]
    client.send(chance.choice(ends) + b"\r\n")
    assert client.read_line() in (b"DELETED", b"TOUCHED")


def fill_by_library(spool: Path, name: str, chance: random.Random) -> None:
    with journaled(spool, name, max_journal_size_bytes=2048, max_journal_overflow=1000) as queue:
        readers = [queue.reader("billing"), queue.reader("audit")]
        for _ in range(200):
            if chance.random() < 0.5:
                queue.put(chance.randbytes(chance.randrange(100)))
            elif (item := (reader := chance.choice(readers)).get(0)) is not None:
                reader.commit(item)


def damaged(spool: Path, target: Path, chance: random.Random, number: int) -> None:
    """A copy of a queue's journal with something wrong in one of its segments."""
    shutil.copytree(spool / f"q{number}.journal", target)
    path = chance.choice(sorted(target.glob("*.seg")))
    content = bytearray(path.read_bytes())
    at = chance.randrange(48, len(content))
    match chance.randrange(4):
        case 0:
            del content[at:]
        case 1:
            content[at : at + 200] = bytes(len(content[at : at + 200]))
        case _:
            content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def rows_of(frame: Any) -> Iterator[tuple[str, Event | str]]:
    """The server and the row, or what is said of damage."""
    ms = [f"unix_millis({name}) as {name}" if name.endswith(("at", "time")) else name for name in COLUMNS]
    for row in frame.selectExpr("server", "_corrupt", *ms).collect():
        if row._corrupt is not None:
            yield row.server, row._corrupt
        else:
            value = None if row.value is None else bytes(row.value)
            yield row.server, Event(*row[2:-1], value)


def loaded(spark: Any, path: Path, mode: str) -> Any:
    return spark.read.format("kestrel").options(mode=mode, includeValue="true").load(str(path))


def counted(said: Read, server: str) -> Counter[tuple[str, Event]]:
    return Counter((server, event) for event in said.events)


def nameless(true: Counter[tuple[str, Event]]) -> Counter[tuple[str, Event]]:
    """The same, where it is not known who has leases: a lease may be found behind damage, and its HOLDER not."""
    return Counter({(server, replace(event, holder=None)): count for (server, event), count in true.items()})


def test_a_whole_spool_is_what_the_page_says(spark: Any, spool: Path) -> None:
    expected: Counter[tuple[str, Event]] = Counter()
    for folder in sorted(spool.glob("*.journal")):
        said = read(folder)
        assert said.damaged == []
        assert len(list(folder.glob("*.seg"))) > 3
        expected += counted(said, "")
    events = {"put", "got", "confirmed", "aborted", "leased", "extended", "returned", "delayed"}
    assert {event.event for _, event in expected} >= events
    assert len({event.holder for _, event in expected if event.event == "leased"}) == 2
    assert Counter(rows_of(loaded(spark, spool, "FAILFAST"))) == expected


def test_of_a_damaged_spool_all_is_read_that_the_page_says_and_nothing_that_never_was(
    spark: Any, spool: Path, tmp_path: Path
) -> None:
    """Spark may find more than the page's rule does, by wrong lengths and notes before a PUT, as long as it is true."""
    expected: Counter[tuple[str, Event]] = Counter()
    true: Counter[tuple[str, Event]] = Counter()
    stretches: Counter[str] = Counter()
    for number in range(SEEDS):
        whole = read(spool / f"q{number}.journal")
        for variant in range(3):
            server = f"s{number}-{variant}"
            folder = tmp_path / f"server={server}" / f"q{number}.journal"
            damaged(spool, folder, random.Random(number * 1000 + variant), number)
            said = read(folder)
            expected += counted(said, server)
            true += counted(whole, server)
            stretches.update(f"{path}: byte {at}" for path, at in said.damaged)
    assert len(true - expected) > SEEDS, "the damage was to be of some account"
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        rows = list(rows_of(loaded(spark, tmp_path, mode)))
        corrupt = Counter(":".join(row.split(":")[:2]) for _, row in rows if isinstance(row, str))
        found = Counter((server, row) for server, row in rows if not isinstance(row, str))
        assert found - (expected | true | nameless(true)) == Counter(), mode
        assert (expected & true) - found == Counter(), mode
        assert sum((found - expected).values()) < SEEDS, mode
        assert corrupt == (stretches if mode == "PERMISSIVE" else Counter())
    with pytest.raises(Exception, match="JournalCorrupt"):
        loaded(spark, tmp_path, "FAILFAST").count()
