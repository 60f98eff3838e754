"""kestrelctl with Kestrel 1.3 and 2.4: the requests it sends, and the answers these servers were seen to give."""

import json

from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.shell import Kestrelctl


def test_the_queue_alone_is_echoed_for_a_queue_with_options(kestrelctl: Kestrelctl) -> None:
    script = [
        WHO_IS_THERE,
        Exchange(b"get work/t=500/open\r\n", b"VALUE work 0 5\r\nhello\r\nEND\r\n"),
        Exchange(b"get work/close/open\r\n", b"VALUE work 0 0\r\n\r\nEND\r\n"),
        Exchange(b"get work/close/open\r\n", b"END\r\n"),
        Exchange(b"get work/t=500/open\r\n", b"END\r\n"),
    ]
    with scripted_peer(script) as peer:
        got = kestrelctl("get", "work", "--all", "--wait", "500ms", "-s", peer.address)
    assert (got.code, got.out, got.err) == (0, b"hello\n\n", "")


def test_a_full_queue_says_not_stored(kestrelctl: Kestrelctl) -> None:
    sets = b"set work 0 60 2\r\nv1\r\nset work 0 60 2\r\nv2\r\n"
    with scripted_peer([WHO_IS_THERE, Exchange(sets, b"STORED\r\nNOT_STORED\r\n")]) as peer:
        put = kestrelctl("put", "work", "--lines", "--expire", "1m", "-s", peer.address, stdin=b"v1\nv2\n")
    assert put.code == 81


def test_delete_says_end_or_deleted_whether_or_not_there_was_a_queue(kestrelctl: Kestrelctl) -> None:
    for answer in (b"END\r\n", b"DELETED\r\n"):
        there = Exchange(b"dump_stats work\r\n", b"queue 'work' {\r\n  items=0\r\n}\r\nEND\r\n")
        with scripted_peer([there, WHO_IS_THERE, Exchange(b"delete work\r\n", answer)]) as peer:
            assert kestrelctl("delete", "work", "-s", peer.address).code == 0


def test_flush_all_and_the_counting_verbs(kestrelctl: Kestrelctl) -> None:
    for verb, request, answer, out in [
        ("flush-all", b"flush_all\r\n", b"Flushed all queues.\r\n", b""),
        ("flush-all-expired", b"flush_all_expired\r\n", b"2\r\n", b"2\n"),
        ("reload", b"reload\r\n", b"Reloaded config.\r\n", b""),
        ("version", b"version\r\n", b"VERSION 2.4.8-SNAPSHOT\r\n", b"2.4.8-SNAPSHOT\n"),
    ]:
        asked = [] if verb == "version" else [WHO_IS_THERE]
        with scripted_peer([*asked, Exchange(request, answer)]) as peer:
            run = kestrelctl(verb, "-s", peer.address)
        assert (run.code, run.out, run.err) == (0, out, "")


def test_shutdown_is_answered_by_closing(kestrelctl: Kestrelctl) -> None:
    with scripted_peer([WHO_IS_THERE, Exchange(b"shutdown\r\n", b"", closes=True)]) as peer:
        assert kestrelctl("shutdown", "-s", peer.address).code == 0


def test_dump_config_of_1_3_lacks_an_equals_sign(kestrelctl: Kestrelctl) -> None:
    dump = b"queue 'a' {\r\n  max_items=2147483647\r\n  journal=true\r\n  move_expired_to(none)\r\n}\r\nEND\r\n"
    with scripted_peer([Exchange(b"dump_config\r\n", dump)]) as peer:
        run = kestrelctl("dump-config", "-o", "json", "-s", peer.address)
    expected = {"queue": "a", "max_items": 2147483647, "journal": "true", "move_expired_to": "(none)"}
    assert json.loads(run.out) == [expected]


def test_dump_config_is_unknown_to_2_4(kestrelctl: Kestrelctl) -> None:
    with scripted_peer([Exchange(b"dump_config\r\n", b"CLIENT_ERROR\r\n", closes=True)]) as peer:
        run = kestrelctl("dump-config", "-s", peer.address)
    assert (run.code, run.err) == (77, f"kestrelctl: {peer.address} refused: CLIENT_ERROR\n")


def test_stats_of_no_queue_at_all_and_of_one_without_counters(kestrelctl: Kestrelctl) -> None:
    with scripted_peer([Exchange(b"dump_stats\r\n", b"\r\nEND\r\n")]) as peer:
        empty = kestrelctl("stats", "--no-headers", "-s", peer.address)
    assert (empty.code, empty.out) == (0, b"")
    with scripted_peer([Exchange(b"dump_stats x\r\n", b"queue 'x' {\r\n  \r\n}\r\nEND\r\n")]) as peer:
        assert kestrelctl("stats", "x", "-s", peer.address).code == 1
