"""Every command and its answer, as docs/protocol.md has them for `compat: none`, over a real connection."""

import itertools
import re
import time

import pytest

from kestreld import __version__
from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient, slow_reader
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("no_queues")

# SET and GET


def test_an_item_comes_out_as_it_went_in(client: QueueClient, queue: str) -> None:
    data = bytes(range(256)) + b"\r\nEND\r\n"
    client.put(queue, data)
    client.do(b"get %b" % queue.encode(), b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue.encode(), len(data), data))
    client.do(b"get %b" % queue.encode(), b"END\r\n")


def test_items_come_out_in_the_order_they_went_in(client: QueueClient, queue: str) -> None:
    items = [b"%d" % number for number in range(500)]
    client.put(queue, *items)
    assert client.drain(queue) == items


def test_an_empty_item_is_not_an_empty_queue(client: QueueClient, queue: str) -> None:
    client.put(queue, b"")
    client.do(b"get %b" % queue.encode(), b"VALUE %b 0 0\r\n\r\nEND\r\n" % queue.encode())
    client.do(b"get %b" % queue.encode(), b"END\r\n")


def test_a_large_item_comes_out_whole(client: QueueClient, queue: str) -> None:
    data = b"0123456789abcdef" * (1 << 18)
    client.put(queue, data)
    assert client.get(queue) == data


def test_a_get_of_an_unknown_queue_finds_nothing_and_makes_it(client: QueueClient, queue: str) -> None:
    client.do(b"get %b" % queue.encode(), b"END\r\n")
    assert client.queue_stats(queue)["items"] == "0"


def test_command_words_are_read_in_any_case_and_names_are_not(client: QueueClient, queue: str) -> None:
    client.do(b"SeT %b 0 0 1\r\nx" % queue.encode(), b"STORED\r\n")
    client.do(b"GET %b" % queue.upper().encode(), b"END\r\n")
    client.do(b"GET %b" % queue.encode(), b"VALUE %b 0 1\r\nx\r\nEND\r\n" % queue.encode())
    client.do(b"VERSION", b"VERSION %b\r\n" % __version__.encode())


def test_names_are_any_bytes_but_those_with_a_meaning(client: QueueClient) -> None:
    for name in (b"A-Z_09", b"a:b=c", b"caf\xc3\xa9", b"\xff\xfe", b"\"quoted'", b"%41", b"a,b;c"):
        client.do(b"set %b 0 0 %d\r\n%b" % (name, len(name), name), b"STORED\r\n")
    for name in (b"A-Z_09", b"a:b=c", b"caf\xc3\xa9", b"\xff\xfe", b"\"quoted'", b"%41", b"a,b;c"):
        client.do(b"get " + name, b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (name, len(name), name))


@pytest.mark.parametrize("flags", [0, 1, 65535, 4294967295])
def test_flags_are_stored_and_returned(client: QueueClient, queue: str, flags: int) -> None:
    client.put(queue, b"with flags", flags=flags)
    client.do(b"get %b" % queue.encode(), b"VALUE %b %d 10\r\nwith flags\r\nEND\r\n" % (queue.encode(), flags))


def test_the_key_comes_back_as_it_was_asked_for(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2", b"3")
    for options in (b"/t=250", b"/peek", b"/t=10/open", b"/open/close/t=10"):
        key = queue.encode() + options
        client.send(b"get " + key + b"\r\n")
        client.expect_line(b"VALUE " + key + b" 0 1")
        client.expect_line(b"")
        client.expect(b"END\r\n")


def test_gets_adds_the_item_id(client: QueueClient, queue: str) -> None:
    client.put(queue, b"one", b"two")
    name = queue.encode()
    client.do(b"gets " + name, b"VALUE %b 0 3 1\r\none\r\nEND\r\n" % name)
    client.do(b"gets %b/open" % name, b"VALUE %b/open 0 3 2\r\ntwo\r\nEND\r\n" % name)
    client.do(b"gets %b/abort" % name, b"END\r\n")
    client.do(b"gets %b" % name, b"VALUE %b 0 3 2\r\ntwo\r\nEND\r\n" % name)
    client.do(b"gets " + name, b"END\r\n")


def test_several_keys_give_one_value_for_each_queue_with_an_item(client: QueueClient, queue: str) -> None:
    first, second, third = (f"{queue}-{number}".encode() for number in (1, 2, 3))
    client.put(first.decode(), b"a", b"aa")
    client.put(third.decode(), b"c", flags=7)
    client.do(
        b"get %b %b %b" % (first, second, third),
        b"VALUE %b 0 1\r\na\r\nVALUE %b 7 1\r\nc\r\nEND\r\n" % (first, third),
    )
    client.do(b"get %b %b" % (second, third), b"END\r\n")
    client.do(b"gets %b %b/peek" % (second, first), b"VALUE %b/peek 0 2 2\r\naa\r\nEND\r\n" % first)
    assert client.items(first.decode()) == 1


def test_several_keys_do_not_wait(client: QueueClient, queue: str) -> None:
    client.put(queue, b"still here")
    client.send(b"get %b/t=5000 %b\r\n" % (queue.encode(), queue.encode()))
    client.expect_line(b"CLIENT_ERROR ")
    assert client.get(queue) == b"still here"


# Options of GET

_OPTIONS = ("t=1", "open", "close", "abort", "peek")
_FORBIDDEN = [{"peek", "open"}, {"peek", "close"}, {"peek", "abort"}, {"abort", "open"}, {"abort", "close"}]


def _every_order() -> list[tuple[str, ...]]:
    chosen = itertools.chain.from_iterable(itertools.combinations(_OPTIONS, size) for size in range(1, 6))
    return [order for options in chosen for order in itertools.permutations(options)]


def test_options_mean_the_same_in_any_order_and_contradictions_are_refused(client: QueueClient, queue: str) -> None:
    """All 325 orders of the five options: what each takes, leaves and answers."""
    name = queue.encode()
    for order in _every_order():
        client.put(queue, b"head", b"next")
        client.send(b"get %b/%b\r\n" % (name, "/".join(order).encode()))
        chosen = set(order)
        if any(pair <= chosen for pair in _FORBIDDEN):
            client.expect_line(b"CLIENT_ERROR ")
            left = [b"head", b"next"]
        elif chosen & {"abort", "close"} and "open" not in chosen:
            client.expect(b"END\r\n")
            left = [b"head", b"next"]
        else:
            assert client.read_value() == b"head"
            left = [b"head", b"next"] if "peek" in chosen else [b"next"]
        client.do(b"get %b/close" % name, b"END\r\n")
        assert client.drain(queue) == left, order


def test_unknown_and_empty_options_are_ignored_and_so_is_one_without_a_value_given_twice(
    client: QueueClient, queue: str
) -> None:
    client.put(queue, b"1", b"2")
    assert client.get(f"{queue}//peek/peek/") == b"1"
    assert client.get(f"{queue}/OPEN/sideways") == b"1"
    assert client.get(f"{queue}/t=0/") == b"2"


@pytest.mark.parametrize("wait", ["t=", "t=abc", "t=1.5", "t=0x10", "t=--1", "t=99999999999999999999"])
def test_a_wait_that_is_no_number_is_refused(client: QueueClient, queue: str, wait: str) -> None:
    client.put(queue, b"still here")
    client.send(b"get %b/%b\r\n" % (queue.encode(), wait.encode()))
    client.expect_line(b"CLIENT_ERROR ")
    assert client.get(queue) == b"still here"


# Expiry


def test_expiry_0_is_never(client: QueueClient, queue: str) -> None:
    client.put(queue, b"forever", expiry_s=0)
    assert client.get(queue) == b"forever"


def test_a_negative_expiry_is_over_at_once(client: QueueClient, queue: str) -> None:
    client.put(queue, b"too late", expiry_s=-1)
    client.put(queue, b"in time")
    assert client.get(queue) == b"in time"
    assert client.queue_stats(queue)["expired_items"] == "1"


def test_an_expiry_below_a_million_counts_from_now(client: QueueClient, queue: str) -> None:
    client.send(b"set %b 0 1 4\r\ngone\r\nget %b/peek\r\n" % (queue.encode(), queue.encode()))  # at once
    client.expect(b"STORED\r\n")
    assert client.read_value() == b"gone"
    client.put(queue, b"stays 11 days", expiry_s=999_999)
    until(lambda: client.get(f"{queue}/peek") == b"stays 11 days", "an item with an expiry of 1 s to go")
    assert client.drain(queue) == [b"stays 11 days"]


def test_an_expiry_from_a_million_is_a_unix_time(client: QueueClient, queue: str) -> None:
    client.put(queue, b"of January 1970", expiry_s=1_000_000)
    client.put(queue, b"an hour ago", expiry_s=int(time.time()) - 3600)
    client.put(queue, b"in an hour", expiry_s=int(time.time()) + 3600)
    assert client.drain(queue) == [b"in an hour"]


def test_an_expired_item_behind_a_live_one_stays_until_it_is_the_head(client: QueueClient, queue: str) -> None:
    client.put(queue, b"live")
    client.put(queue, b"expired", expiry_s=-5)
    client.put(queue, b"live too")
    client.do(b"flush_expired %b" % queue.encode(), b"0\r\n")
    assert client.items(queue) == 3
    assert client.drain(queue) == [b"live", b"live too"]


# The other commands


def test_delete_drops_a_queue_and_says_whether_there_was_one(client: QueueClient, queue: str) -> None:
    client.put(queue, b"lost")
    client.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    client.do(b"delete %b" % queue.encode(), b"NOT_FOUND\r\n")
    assert client.queue_stats(queue) == {}
    assert client.get(queue) is None


def test_delete_takes_the_time_of_old_clients(client: QueueClient, queue: str) -> None:
    client.put(queue, b"lost")
    client.do(b"delete %b 0" % queue.encode(), b"DELETED\r\n")


def test_a_deleted_queue_can_be_used_again(client: QueueClient, queue: str) -> None:
    for data in (b"1", b"2", b"3"):
        client.put(queue, data)
        client.put(queue, b"more")
        assert client.get(queue) == data
        client.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    assert client.get(queue) is None


def test_flush_empties_one_queue_and_leaves_it(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    client.put(f"{queue}-other", b"stays")
    client.do(b"flush %b" % queue.encode(), b"END\r\n")
    assert client.get(queue) is None
    client.put(queue, b"new")
    assert client.get(queue) == b"new"
    assert client.get(f"{queue}-other") == b"stays"


def test_flush_of_an_unknown_queue_makes_none(client: QueueClient, queue: str) -> None:
    client.do(b"flush %b" % queue.encode(), b"END\r\n")
    client.do(b"flush_expired %b" % queue.encode(), b"0\r\n")
    assert client.queue_stats(queue) == {}


def test_flush_says_how_many_items_that_were_if_it_is_asked(client: QueueClient, queue: str) -> None:
    """Those that wait, also for their time; not those that somebody has."""
    name = queue.encode()
    client.do(b"flush %b/count" % name, b"0\r\n")
    assert f"queue_{queue}_items" not in client.stats(), "it makes none"
    client.put(queue, *[b"x"] * 5)
    client.do(b"set %b/delay=60000 0 0 1\r\ny" % name, b"STORED\r\n")
    client.get(f"{queue}/open")
    client.send(b"gets %b/open/lease=60000\r\n" % name)
    client.read_until(b"END\r\n")
    client.do(b"flush %b/count" % name, b"4\r\n")
    client.do(b"flush %b/count" % name, b"0\r\n")
    client.put(queue, b"x", b"y")
    client.send(b"flush %b/count noreply\r\n" % name)
    client.do(b"flush %b/count" % name, b"0\r\n")
    client.get(f"{queue}+audit")
    client.put(queue, b"x", b"y")
    client.do(b"flush %b+audit/count" % name, b"2\r\n")
    assert client.items(queue) == 2


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"flush /count", b"CLIENT_ERROR empty queue name\r\n"),
        (b"flush q/count 5", b"CLIENT_ERROR too many words for flush\r\n"),
        (b"flush q/count/count", b"CLIENT_ERROR unknown option 'count/count'\r\n"),
        (b"flush q/counts", b"CLIENT_ERROR unknown option 'counts'\r\n"),
        (b"flush q/", b"CLIENT_ERROR unknown option ''\r\n"),
        (b"flush q/at=5 noreply", b"CLIENT_ERROR unknown option at=\r\n"),
        (b"flush_expired q/count", b"CLIENT_ERROR unknown option 'count'\r\n"),
    ],
)
def test_a_flush_that_counts_what_is_no_queue_says_so(client: QueueClient, line: bytes, answer: bytes) -> None:
    client.do(line, answer)


def test_flush_all_empties_every_queue(client: QueueClient, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(5)]
    for command in (b"flush_all", b"flush_all 0"):
        for name in names:
            client.put(name, b"x")
        client.do(command, b"OK\r\n")
        assert [client.get(name) for name in names] == [None] * 5


def test_flush_all_is_never_done_later(client: QueueClient, queue: str) -> None:
    client.put(queue, b"still here")
    client.send(b"flush_all 30\r\n")
    client.expect_line(b"CLIENT_ERROR ")
    assert client.get(queue) == b"still here"


def test_flush_expired_says_how_many(client: QueueClient, queue: str) -> None:
    for _ in range(3):
        client.put(queue, b"expired", expiry_s=-1)
        client.put(f"{queue}-2", b"expired", expiry_s=-1)
    # A put looks at the head first, so only the last one's item is still there.
    client.do(b"flush_expired %b" % queue.encode(), b"1\r\n")
    client.do(b"flush_expired %b" % queue.encode(), b"0\r\n")
    client.do(b"flush_all_expired", b"1\r\n")
    client.do(b"flush_all_expired", b"0\r\n")
    assert client.queue_stats(queue)["expired_items"] == "3"


def test_version_is_the_packages(client: QueueClient) -> None:
    client.do(b"version", b"VERSION %b\r\n" % __version__.encode())
    client.do(b"version with any words", b"VERSION %b\r\n" % __version__.encode())


def test_quit_hangs_up_without_a_word(client: QueueClient) -> None:
    client.send(b"quit\r\nversion\r\n")
    client.expect_end()


_GLOBAL_STATS = [
    *("uptime", "time", "version", "curr_items", "total_items", "bytes", "curr_connections", "total_connections"),
    *("cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses", "bytes_read", "bytes_written"),
]
_QUEUE_STATS = [
    *("items", "bytes", "total_items", "logsize", "expired_items", "mem_items", "mem_bytes", "age", "discarded"),
    *("waiters", "open_transactions"),
]


def test_stats_begin_with_the_guides_in_the_guides_order(client: QueueClient, queue: str) -> None:
    client.put(queue, b"12345")
    names = list(client.stats())
    assert names[: len(_GLOBAL_STATS)] == _GLOBAL_STATS
    mine = list(client.queue_stats(queue))
    assert mine[: len(_QUEUE_STATS)] == _QUEUE_STATS


def test_no_further_figure_of_a_queue_ends_like_one_of_the_guides(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    further = list(client.queue_stats(queue))[len(_QUEUE_STATS) :]
    assert [name for name in further if re.search("_(items|bytes|age|discarded|logsize)$", name)] == []


def test_stats_count_what_happened(client: QueueClient, queue: str) -> None:
    before = client.stats()
    client.put(queue, b"12345", b"678", b"9")
    client.get(queue)
    client.get(f"{queue}/peek")
    client.get(f"{queue}/open")
    client.get(f"{queue}-empty")
    after = client.stats()
    grown = {name: int(after[name]) - int(before[name]) for name in _GLOBAL_STATS if after[name].isdigit()}
    assert (grown["cmd_set"], grown["total_items"], grown["curr_items"], grown["bytes"]) == (3, 3, 1, 1)
    assert (grown["cmd_peek"], grown["get_hits"], grown["get_misses"]) == (1, 2, 1)
    own = client.queue_stats(queue)
    assert (own["items"], own["bytes"], own["mem_items"], own["mem_bytes"]) == ("1", "1", "1", "1")
    assert (own["total_items"], own["open_transactions"], own["waiters"]) == ("3", "1", "0")
    assert int(own["logsize"]) > 0


def test_age_is_how_long_the_last_fetched_item_had_waited(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    assert client.queue_stats(queue)["age"] == "0"
    time.sleep(0.05)
    client.get(queue)
    assert 50 <= int(client.queue_stats(queue)["age"]) < 100_000
    client.get(queue)
    assert client.queue_stats(queue)["age"] == "0", "an empty queue has no age"


def test_dump_stats_shows_a_block_a_queue(client: QueueClient, queue: str) -> None:
    client.put(queue, b"12345")
    client.put(f"{queue}-2", b"1")
    client.send(b"dump_stats\r\n")
    text = client.read_until(b"}\r\nEND\r\n").decode("latin-1")
    blocks = dict(re.findall(r"queue '(.+?)' \{\r\n(.*?)\}\r\n", text, re.DOTALL))
    assert blocks[queue].startswith("  items=1\r\n  bytes=5\r\n  total_items=1\r\n")
    assert blocks[f"{queue}-2"].startswith("  items=1\r\n  bytes=1\r\n")
    client.send(b"dump_stats %b\r\n" % queue.encode())
    assert client.read_until(b"END\r\n").startswith(b"queue '%b' {\r\n  items=1\r\n" % queue.encode())


def test_dump_config_shows_every_setting_of_every_queue(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    client.send(b"dump_config\r\n")
    text = client.read_until(b"}\r\nEND\r\n").decode("latin-1")
    block = dict(re.findall(r"queue '(.+?)' \{\r\n(.*?)\}\r\n", text, re.DOTALL))[queue]
    settings = dict(line.strip().split("=", 1) for line in block.splitlines())
    assert settings["max_items"] == "infinite"
    assert settings["max_memory_size"] == str(128 << 20)
    assert (settings["journal"], settings["sync_journal"], settings["move_expired_to"]) == ("true", "false", "none")


def test_reload_answers_when_the_new_configuration_holds(client: QueueClient) -> None:
    client.do(b"reload", b"Reloaded config.\r\n")


def test_shutdown_ends_the_server(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_daemon(tmp_path_factory.mktemp("shutdown")) as own, QueueClient(own.port) as client:
        client.put("q", b"kept")
        client.send(b"shutdown\r\n")
        client.expect_end()
        assert own.wait() == 0
        own.start()
        with QueueClient(own.port) as again:
            assert again.get("q") == b"kept"


# noreply


def test_noreply_is_kept_on_every_write(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.put(queue, b"flushed")
    client.send(b"flush %b noreply\r\n" % name)
    client.send(b"set %b 0 0 1 noreply\r\n1\r\nset %b 5 0 1 noreply\r\n2\r\n" % (name, name))
    client.expect_nothing_more()
    client.do(b"get " + name, b"VALUE %b 0 1\r\n1\r\nEND\r\n" % name)
    client.do(b"get " + name, b"VALUE %b 5 1\r\n2\r\nEND\r\n" % name)
    client.put(queue, b"expired", expiry_s=-1)
    client.send(b"flush_expired %b noreply\r\nflush_all_expired noreply\r\n" % name)
    client.expect_nothing_more()
    client.put(queue, b"flushed")
    client.send(b"flush_all noreply\r\nflush_all 0 noreply\r\ndelete %b noreply\r\n" % name)
    client.expect_nothing_more()
    assert client.queue_stats(queue) == {}
    client.send(b"delete %b noreply\r\ndelete %b 0 noreply\r\n" % (name, name))
    client.expect_nothing_more()


@pytest.mark.parametrize(
    "line",
    [
        *("delete {q} b c d", "delete {q} b", "delete {q} -1", "delete {q} 0 0", "delete {q} b noreply"),
        *("flush {q} b", "flush {q} 0", "flush_expired {q} b", "repair {q} b", "undo {q} b"),
        *("flush_all_expired {q}", "shutdown {q}", "reload now"),
    ],
)
def test_words_that_nothing_is_done_with_are_refused(client: QueueClient, queue: str, line: str) -> None:
    client.put(queue, b"stays")
    client.send(line.format(q=queue).encode() + b"\r\n")
    client.expect(b"CLIENT_ERROR too many words for %b\r\n" % line.split()[0].encode())
    assert client.get(queue) == b"stays"


def test_nothing_is_stored_by_a_line_with_a_word_behind_noreply(client: QueueClient, queue: str) -> None:
    client.send(b"set %b 0 0 3 noreply extra\r\nabc\r\n" % queue.encode())
    client.expect(b"CLIENT_ERROR too many words for set\r\n")
    assert client.get(queue) is None


# The stream

_SCRIPT = (
    b"set split 0 0 5\r\nhello\r\nset split 9 0 0\r\n\r\nset split 0 0 2\r\n\r\n\r\nget split/peek\r\nget split\r\n"
    b"gets split\nGET split/open/t=10\r\nget split/abort\r\nget split split\r\nfrobnicate 1 2\r\n"
    b"set split 0 0 1 noreply\r\nx\r\n"
    b"add split 0 0 3\r\nget\r\nget split\r\ndelete split\r\nversion\nquit\r\n"
)
_ANSWERS = (
    b"STORED\r\nSTORED\r\nSTORED\r\nVALUE split/peek 0 5\r\nhello\r\nEND\r\nVALUE split 0 5\r\nhello\r\nEND\r\n"
    b"VALUE split 9 0 2\r\n\r\nEND\r\nVALUE split/open/t=10 0 2\r\n\r\n\r\nEND\r\nEND\r\n"
    b"VALUE split 0 2\r\n\r\n\r\nEND\r\nERROR\r\nERROR\r\n"
    b"VALUE split 0 1\r\nx\r\nEND\r\nDELETED\r\nVERSION %b\r\n" % __version__.encode()
)


def test_commands_in_one_piece_are_answered_in_their_order(client: QueueClient) -> None:
    client.send(_SCRIPT)
    client.expect_end(_ANSWERS)


def test_commands_cut_at_any_byte_are_answered_the_same(connect: Connect) -> None:
    """Two pieces, cut at every byte. The server has read the first before the second is sent: it has answered it."""
    for cut in range(1, len(_SCRIPT)):
        client = connect()
        client.send(_SCRIPT[:cut])
        whole = _SCRIPT[:cut].count(b"\r\nget split/peek\r\n")
        if whole:
            client.expect(b"STORED\r\nSTORED\r\nSTORED\r\n")
        client.send(_SCRIPT[cut:])
        client.expect_end(_ANSWERS[24:] if whole else _ANSWERS)
        client.close()


def test_commands_sent_a_byte_at_a_time_are_answered_the_same(client: QueueClient) -> None:
    for at in range(len(_SCRIPT)):
        client.send(_SCRIPT[at : at + 1])
    client.expect_end(_ANSWERS)


def test_lines_end_with_lf_too(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.send(b"set %b 0 0 2\nhi\r\nget %b\nget %b\nversion\n" % (name, name, name))
    client.expect(b"STORED\r\nVALUE %b 0 2\r\nhi\r\nEND\r\nEND\r\n" % name)
    client.expect_line(b"VERSION ")


def test_data_ends_with_crlf_only(client: QueueClient, queue: str) -> None:
    client.send(b"set %b 0 0 2\nhi\nget %b\n" % (queue.encode(), queue.encode()))
    client.expect_line(b"CLIENT_ERROR ")
    client.expect_end()


def test_thousands_of_pipelined_commands_are_answered_in_order(client: QueueClient, queue: str) -> None:
    name, count = queue.encode(), 3000
    sets = b"".join([b"set %b 0 0 4\r\n%04d\r\n" % (name, number) for number in range(count)])
    client.send(sets + b"get %b\r\n" % name * count)
    client.expect(b"STORED\r\n" * count)
    client.expect(b"".join([b"VALUE %b 0 4\r\n%04d\r\nEND\r\n" % (name, number) for number in range(count)]))


def test_a_client_that_has_said_all_still_gets_its_answers(client: QueueClient, queue: str) -> None:
    client.send(b"set %b 0 0 2\r\nhi\r\nget %b\r\nversion\r\n" % (queue.encode(), queue.encode()))
    client.end_input()
    client.expect_end(b"STORED\r\nVALUE %b 0 2\r\nhi\r\nEND\r\nVERSION %b\r\n" % (queue.encode(), __version__.encode()))


def test_a_client_that_has_said_all_gets_large_answers_whole(daemon: Daemon, queue: str) -> None:
    data, name = b"0123456789abcdef" * (1 << 19), queue.encode()
    with slow_reader(daemon.port, 1 << 16) as client:
        client.put(queue, data, b"small")
        client.send(b"get %b\r\nget %b\r\n" % (name, name))
        client.end_input()
        client.expect_end(
            b"VALUE %b 0 %d\r\n%b\r\nEND\r\nVALUE %b 0 5\r\nsmall\r\nEND\r\n" % (name, len(data), data, name)
        )
