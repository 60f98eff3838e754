"""Configurations with a mistake, given to a running server: each is refused, named by its line, and changes nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

GOOD: Final = """\
listen: {admin: null}
timeout: 3600
queues:
  work: {max_items: 3, max_age: 1h}
"""
NEXT: Final = GOOD.count("\n") + 1  # the line after it

# What is added at the end of GOOD, and which of its lines has the mistake; None: replaces it all, the first line.
BAD: Final = {
    "an unknown setting": ("max_itms: 5\n", 0),
    "an unknown setting of a queue": ("  more: {max_itms: 5}\n", 0),
    "an unknown setting on a later line": ("  more:\n    max_items: 5\n    max_itms: 5\n", 2),
    "a word for a number": ("  more: {max_items: many}\n", 0),
    "a negative number": ("  more: {max_items: -1}\n", 0),
    "a fraction of an item": ("  more: {max_items: 1.5}\n", 0),
    "a size without sense": ("max_size: 5 parsecs\n", 0),
    "a time without sense": ("max_age: soon\n", 0),
    "a negative time": ("timeout: -1\n", 0),
    "yes where a number belongs": ("max_open_reads: yes\n", 0),
    "a number where yes or no belongs": ("discard_old_when_full: 7\n", 0),
    "a list for a number": ("max_items: [1, 2]\n", 0),
    "a mapping for a number": ("max_items: {a: 1}\n", 0),
    "nothing for a number": ("max_open_reads:\n", 0),
    "a queue that is a number": ("  more: 5\n", 0),
    "a queue with a slash": ("  a/b: {}\n", 0),
    "a queue with a dot": ("  a.b: {}\n", 0),
    "a queue with a squiggle": ("  a~b: {}\n", 0),
    "a queue without a name": ("  '': {}\n", 0),
    "a child without a parent": ("  +child: {}\n", 0),
    "a setting said twice": ("timeout: 5\n", 0),
    "a queue said twice": ("  work: {}\n", 0),
    "a move into its own family": ("  more: {move_expired_to: more+child, max_age: 1}\n", 0),
    "a move in a circle": ("  a: {move_expired_to: b}\n  b: {move_expired_to: a}\n", 0),
    "a move to a bad name": ("  more: {move_expired_to: a/b}\n", 0),
    "an unknown dialect": ("compat: kestrel-9\n", 0),
    "two spools": ("queue_path: [a, b]\n", 0),
    "a bracket left open": ("  more: {max_items: 5\n", 1),
    "a tab": ("\ttimeout: 5\n", 0),
    "an indent too many": ("  more: {}\n     less: {}\n", 1),
    "an alias of nothing": ("  more: *nothing\n", 0),
    "a tag that makes objects": ("  more: !!python/object/apply:os.system ['true']\n", 0),
    "a list": (None, "- a\n- list\n"),
    "a word": (None, "nonsense\n"),
    "a NUL": (None, "\0\n"),
    "two documents": (None, "timeout: 5\n---\ntimeout: 6\n"),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), config=GOOD) as running:
        with QueueClient(running.port) as client:
            client.put("work", b"1", b"2", b"3")
        yield running


def config_of(client: QueueClient) -> bytes:
    client.send(b"dump_config\r\n")
    return client.read_until(b"END\r\n")


@pytest.mark.parametrize("mistake", BAD)
def test_a_configuration_with_a_mistake_changes_nothing_and_is_named_by_its_line(daemon: Daemon, mistake: str) -> None:
    added, where = BAD[mistake]
    text = GOOD + added if added is not None else str(where)
    line = NEXT + int(where) if added is not None else None
    with QueueClient(daemon.port) as client:
        before = config_of(client)
        daemon.config_path.write_text(text)
        daemon.log.clear()
        client.send(b"reload\r\n")
        answer = client.expect_line(b"SERVER_ERROR config ").decode("latin-1")
        assert answer.startswith(f"SERVER_ERROR config {daemon.config_path}:{line or ''}"), answer
        assert daemon.logged("reload refused: ").startswith(f"kestreld: reload refused: {daemon.config_path}:")
        assert config_of(client) == before
        assert client.offer("work", b"4") == b"NOT_STORED"


def test_a_good_one_is_taken_after_all_that(daemon: Daemon) -> None:
    daemon.config_path.write_text(GOOD.replace("max_items: 3", "max_items: 4"))
    with QueueClient(daemon.port) as client:
        client.do(b"reload", b"Reloaded config.\r\n")
        client.put("work", b"4")
        assert client.offer("work", b"5") == b"NOT_STORED"
    missing = Path(daemon.config_path)
    missing.rename(missing.with_suffix(".away"))
    with QueueClient(daemon.port) as client:
        client.send(b"reload\r\n")
        assert str(missing).encode() in client.expect_line(b"SERVER_ERROR config ")
        assert client.offer("work", b"5") == b"NOT_STORED"
