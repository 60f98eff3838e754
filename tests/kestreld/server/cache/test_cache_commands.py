"""memcached's commands on a socket: what each answers, and what it leaves behind."""

from pathlib import Path

import pytest

from tests.support.cache_here import CacheHere, cache_server

EXCHANGES = {
    "set and get": (
        b"set a 5 0 3\r\nabc\r\nget a\r\nget a b a\r\nget b\r\n",
        b"STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\nVALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\nEND\r\n",
    ),
    "add and replace": (
        b"replace a 0 0 1\r\n1\r\nadd a 0 0 1\r\n2\r\nadd a 0 0 1\r\n3\r\nreplace a 1 0 1\r\n4\r\nget a\r\n",
        b"NOT_STORED\r\nSTORED\r\nNOT_STORED\r\nSTORED\r\nVALUE a 1 1\r\n4\r\nEND\r\n",
    ),
    "append and prepend": (
        b"append a 0 0 1\r\n1\r\nset a 7 0 1\r\n2\r\nappend a 1 0 2\r\n34\r\nprepend a 0 0 1\r\n1\r\nget a\r\n",
        b"NOT_STORED\r\nSTORED\r\nSTORED\r\nSTORED\r\nVALUE a 7 4\r\n1234\r\nEND\r\n",
    ),
    "cas": (
        b"cas a 0 0 1 1\r\n1\r\nset a 0 0 1\r\n2\r\ngets a\r\ncas a 0 0 1 9\r\n3\r\ncas a 0 0 1 1\r\n4\r\ngets a\r\n",
        b"NOT_FOUND\r\nSTORED\r\nVALUE a 0 1 1\r\n2\r\nEND\r\nEXISTS\r\nSTORED\r\nVALUE a 0 1 2\r\n4\r\nEND\r\n",
    ),
    "counters": (
        b"incr n 1\r\nset n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 9\r\nget n\r\ndecr n 100\r\n"
        b"set n 0 0 1\r\nx\r\nincr n 1\r\n",
        b"NOT_FOUND\r\nSTORED\r\n15\r\n6\r\nVALUE n 0 2\r\n6 \r\nEND\r\n0\r\nSTORED\r\n"
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    "a counter wraps": (
        b"set n 0 0 20\r\n18446744073709551615\r\nincr n 2\r\nget n\r\n",
        b"STORED\r\n1\r\nVALUE n 0 20\r\n1                   \r\nEND\r\n",
    ),
    "touch and get with touch": (
        b"touch a 10\r\nset a 0 0 1\r\n1\r\ntouch a 10\r\ngat 20 a b\r\ngats 0 a\r\ngat -1 a\r\nget a\r\n",
        b"NOT_FOUND\r\nSTORED\r\nTOUCHED\r\nVALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1 1\r\n1\r\nEND\r\n"
        b"VALUE a 0 1\r\n1\r\nEND\r\nEND\r\n",
    ),
    "delete": (
        b"delete a\r\nset a 0 0 1\r\n1\r\ndelete a 0\r\nget a\r\ndelete a 1\r\n",
        b"NOT_FOUND\r\nSTORED\r\nDELETED\r\nEND\r\n"
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
    ),
    "flush_all": (
        b"set a 0 0 1\r\n1\r\nflush_all\r\nget a\r\nset a 0 0 1\r\n2\r\nget a\r\nflush_all 100\r\nget a\r\n",
        b"STORED\r\nOK\r\nEND\r\nSTORED\r\nVALUE a 0 1\r\n2\r\nEND\r\nOK\r\nVALUE a 0 1\r\n2\r\nEND\r\n",
    ),
    "noreply": (
        b"set a 0 0 1 noreply\r\n1\r\nadd a 0 0 1 noreply\r\n2\r\nincr a 1 noreply\r\ntouch a 0 noreply\r\nget a\r\n"
        b"delete a noreply\r\nflush_all noreply\r\nverbosity 1 noreply\r\nincr a x noreply\r\nget a\r\n",
        b"VALUE a 0 1\r\n2\r\nEND\r\nEND\r\n",
    ),
    "an item that has expired when it comes": (b"set a 0 -1 1\r\n1\r\nget a\r\n", b"STORED\r\nEND\r\n"),
    "an item that has expired when it comes and is given another expiry": (
        b"ma a N-1 T100\r\nget a\r\nmg b N-1 T100\r\nget b\r\n",
        b"HD\r\nVALUE a 0 1\r\n0\r\nEND\r\nHD W\r\nVALUE b 0 0\r\n\r\nEND\r\n",
    ),
    "verbosity": (b"verbosity 1\r\nverbosity\r\n", b"OK\r\nERROR\r\n"),
    "meta get": (
        b"mg a v\r\nset a 5 100 3\r\nabc\r\nmg a h l v k f s t O7\r\nmg a h\r\nmg a T0 t\r\nmg b k O7\r\nmg b q\r\n",
        b"EN\r\nSTORED\r\nVA 3 h0 l0 ka f5 s3 t100 O7\r\nabc\r\nHD h1\r\nHD t-1\r\nEN kb O7\r\n",
    ),
    "meta get wins the right to fetch anew": (
        b"mg a N30 v t\r\nmg a N30 v\r\nmd a I T9\r\nmg a t\r\nmg a\r\nms a 1\r\n1\r\nmg a v R5\r\nms a 1 T3\r\n1\r\n"
        b"mg a R3\r\nmg a R4\r\nmg a R4\r\n",
        b"VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\nHD\r\nHD t9 X W\r\nHD Z X\r\nHD\r\nVA 1\r\n1\r\nHD\r\nHD\r\nHD W\r\nHD Z\r\n",
    ),
    "meta set in all modes": (
        b"ms a 1 MR\r\n1\r\nms a 1 ME k O1 F3\r\n2\r\nms a 1 ME c\r\n3\r\nms a 1 MA c\r\n4\r\n"
        b"ms a 1 MP q\r\n1\r\nmg a v f\r\n"
        b"ms a 1 C9\r\n5\r\nms a 1 C2 I\r\n5\r\nmg a v\r\nms a 1 MZ\r\n1\r\nms a 1 x\r\n1\r\nms a 1\r\n123\r\nmn\r\n",
        b"NS\r\nHD ka O1\r\nNS c0\r\nHD c2\r\nVA 3 f3\r\n124\r\nEX\r\nHD\r\nVA 1 X W\r\n5\r\n"
        b"CLIENT_ERROR invalid mode for ms M token\r\nCLIENT_ERROR invalid flag\r\n"
        b"CLIENT_ERROR bad data chunk\r\nERROR\r\nMN\r\n",
    ),
    "meta delete": (
        b"md a k\r\nset a 0 0 1\r\n1\r\nmd a C9\r\nmd a q\r\nmg a\r\nmd a x\r\n",
        b"NF ka\r\nSTORED\r\nEX\r\nEN\r\nCLIENT_ERROR invalid or duplicate flag\r\n",
    ),
    "meta arithmetic": (
        b"ma n\r\nma n N0 J10 v\r\nma n D5 v t\r\nma n MD v\r\nma n MD D99 v c\r\nma n C9\r\nma n T50\r\n"
        b"ma n t q\r\nma n t\r\n"
        b"ms n 1\r\nx\r\nma n\r\n",
        b"NF\r\nVA 2\r\n10\r\nVA 2 t-1\r\n15\r\nVA 2\r\n14\r\nVA 1 c4\r\n0\r\nEX\r\nHD\r\nHD t50\r\nHD\r\n"
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    "keys in base64": (
        b"ms AA0KIA== 1 b k\r\n1\r\nmg AA0KIA== b v k\r\nme AA0KIA== b\r\nmd AA0KIA== b\r\nmg YQ b\r\n",
        b"HD kAA0KIA== b\r\nVA 1 kAA0KIA== b\r\n1\r\nME AA0KIA== exp=-1 la=0 cas=1 fetch=yes cls=1 size=64\r\nHD\r\n"
        b"CLIENT_ERROR error decoding key\r\n",
    ),
    "an unknown command": (b"nonsense\r\nx\r\n\r\n", b"ERROR\r\nERROR\r\nERROR\r\n"),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_commands_are_answered_as_memcached_does(name: str, tmp_path: Path) -> None:
    request, answer = EXCHANGES[name]
    with cache_server(tmp_path) as cache:
        cache.ask(request, answer)


def test_a_value_too_large_is_refused_and_the_old_one_dropped(tmp_path: Path) -> None:
    with cache_server(tmp_path, item_size_max_bytes=1024) as cache:
        cache.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n")
        cache.ask(b"set a 0 0 2000\r\n%b\r\n" % bytes(2000), b"SERVER_ERROR object too large for cache\r\n")
        cache.ask(b"get a\r\n", b"END\r\n")


def test_a_large_value_comes_back_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3900
    with cache_server(tmp_path) as cache:
        cache.ask(b"set a 0 0 %d\r\n%b\r\n" % (len(data), data), b"STORED\r\n")
        cache.ask(b"get a\r\n", b"VALUE a 0 %d\r\n%b\r\nEND\r\n" % (len(data), data))


def test_the_binary_protocol_is_refused_in_binary(tmp_path: Path) -> None:
    with cache_server(tmp_path) as cache:
        assert cache.talk(b"\x80\x0b" + bytes(22))[:8] == b"\x81\x0b\0\0\0\0\0\x81"


def test_quit_ends_the_connection_after_the_answers(tmp_path: Path) -> None:
    with cache_server(tmp_path) as cache:
        assert cache.talk(b"version\r\nquit\r\nget a\r\n").startswith(b"VERSION ")


def test_stats_tell_what_has_been_done(tmp_path: Path) -> None:
    with cache_server(tmp_path) as cache:
        cache.ask(b"set a 0 0 1\r\n1\r\nget a\r\nget b\r\n", b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nEND\r\n")
        counted = {"get_hits": "1", "get_misses": "1", "cmd_set": "1", "curr_items": "1"}
        assert counted.items() <= stats(cache).items()
        cache.ask(b"stats reset\r\n", b"RESET\r\n")
        assert stats(cache)["get_hits"] == "0"


def stats(cache: CacheHere) -> dict[str, str]:
    lines = cache.talk(b"stats\r\n", until=b"END\r\n").decode().splitlines()
    return dict(line.split(" ", 2)[1:] for line in lines[:-1])


def test_a_large_value_waits_until_there_is_room_for_it_and_what_follows_it_too(tmp_path: Path) -> None:
    data = b"x" * 3_000_000
    with cache_server(tmp_path, memory_bytes=8 << 20, item_size_max_bytes=4 << 20) as cache:
        sets = b"".join([b"set key%d 0 0 1 noreply\r\n1\r\n" % number for number in range(40_000)])
        cache.ask(sets + b"mn\r\n", b"MN\r\n")
        cache.ask(b"set a 0 0 %d\r\n%b\r\nget nothing\r\n" % (len(data), data), b"STORED\r\nEND\r\n")
        assert cache.dictionary.used_bytes <= 8 << 20
        cache.ask(b"mg a s\r\n", b"HD s3000000\r\n")
