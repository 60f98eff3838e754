"""docs/security.md says which right each command requires: what it says is what the servers do."""

import re
from pathlib import Path

from kestreld.clock import Clock
from kestreld.config.users import Right, UserConfig
from kestreld.server.accounts import Account
from kestreld.server.cache.rights import OF_KEYS, CacheRights
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import CommandCache
from kestreld.server.memcache.parser import MemcacheParser
from kestreld.server.memcache.rights import checker

PAGE = Path(__file__).parents[4] / "docs/security.md"
# Right and words of the page -> lines of that kind.
LINES: dict[tuple[str, str], tuple[bytes, ...]] = {
    ("put", "set"): (b"set Q 0 0 1\r\nx\r\n", b"set Q 5 9 1\r\nx\r\n", b"set Q/delay=5 0 0 1\r\nx\r\n"),
    ("put", "add Q/key=KEY"): (b"add Q/key=a 0 0 1\r\nx\r\n",),
    ("put", "delete Q/key=KEY"): (b"delete Q/key=a\r\n",),
    ("put", "bind"): (b"bind e Q\r\n", b"bind e Q k p\r\n"),
    ("put", "unbind"): (b"unbind e Q\r\n", b"unbind e Q k\r\n"),
    ("get", "get"): (b"get Q\r\n", b"get Q Q\r\n", b"get Q/t=5\r\n"),
    ("get", "gets"): (b"gets Q\r\n",),
    ("get", "/open"): (b"get Q/open\r\n",),
    ("get", "/close"): (b"get Q/close/open\r\n", b"get Q/close\r\n"),
    ("get", "/abort"): (b"get Q/abort\r\n",),
    ("get", "/lease=MS"): (
        b"gets Q/open/lease=9\r\n",
        b"gets Q/open/lease=9/t=1 Q/open/lease=9/t=1\r\n",
        b"touch Q/7/lease=9 0\r\n",
    ),
    ("get", "/by=NAME"): (b"gets Q/open/lease=9/by=a\r\n", b"gets Q/open/lease=9/t=1/by=a Q/open/lease=9/t=1\r\n"),
    ("get", "/deliveries"): (b"gets Q/open/lease=9/deliveries\r\n",),
    ("flush", "/count"): (b"flush Q/count\r\n",),
    ("get", "leases by=NAME Q"): (b"leases by=a Q\r\n",),
    ("get", "wait ~LIST Q"): (b"wait ~a Q\r\n", b"wait ~a Q Q\r\n"),
    ("get", "delete Q/TOKEN"): (b"delete Q/7\r\n",),
    ("get", "touch Q/TOKEN"): (b"touch Q/7 5\r\n", b"touch Q/7 0\r\n"),
    ("get", "/delay=MS"): (b"touch Q/7/delay=5 0\r\n",),
    ("get", "/failed"): (b"touch Q/7/failed 0\r\n",),
    ("peek", "get Q/peek"): (b"get Q/peek\r\n",),
    **{
        (right, word): (word.encode() + b" Q\r\n",)
        for right, words in {
            "flush": ("flush", "flush_expired"),
            "delete": ("delete",),
            "admin": ("repair", "undo"),
        }.items()
        for word in words
    },
    **{
        ("admin", word): (word.encode() + b"\r\n",)
        for word in ("shutdown", "reload", "dump_config", "flush_all", "flush_all_expired")
    },
}
FREE = {wire.VERSION, wire.STATS, wire.DUMP_STATS, wire.DUMP_JOB_QUEUES, wire.BINDINGS, wire.QUIT, wire.REPLY}
FREE.add(wire.PRESENT)  # leases end on queues that the user may get from, once the holder is gone
FREE.add(wire.LEASE_LISTED)  # it requires the right on each queue of the list when it is carried out
COMBINED = ("create", "all")


def rows(after: str) -> dict[str, list[str]]:
    """Of the first table behind some words: the commands of each right, as they are written."""
    table = PAGE.read_text().partition(after)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    found = {}
    for row in table.splitlines():
        right, commands = row.split("|")[1:3]
        found[right.strip(" `")] = [words for words in re.findall(r"`([^`]+)`", commands) if words != '"*"']
    return found


def user(*rights: Right, of_cache: bool = False) -> Account:
    granted = (("*", frozenset(rights)),)
    config = UserConfig(name="ann", cache_rights=granted) if of_cache else UserConfig(name="ann", rights=granted)
    return Account(config, Clock())


def kind(line: bytes, account: Account) -> int:
    """What a line is for somebody, REPLY = a refusal."""
    command: int = MemcacheParser(CommandCache(), check=checker(account)).feed(line)[0].kind
    return command


def test_the_commands_of_each_right_on_queues_are_those_of_the_page() -> None:
    said = {right: words for right, words in rows("are not affected. Bursts").items() if right not in COMBINED}
    assert {(right, words) for right, commands in said.items() for words in commands} == set(LINES)
    kinds = set()
    for (right, _), lines in LINES.items():
        required = Right(right)
        others = [one for one in Right if one is not required and one is not Right.ADMIN]
        for line in lines:
            assert kind(line, user(*others)) == wire.REPLY, line
            kinds.add(kind(line, user(required)))
    assert wire.REPLY not in kinds
    # DECLARE takes one of two rights and `create`: test_declare.py
    assert kinds | FREE | {wire.TOO_LARGE, wire.DECLARE} == set(range(wire.FAIL + 1))


def test_the_commands_of_each_right_on_the_cache_are_those_of_the_page() -> None:
    said = rows("On the cache, which has no queues but keys")
    said.pop("all")
    flags = {"N", "R", "T"}
    both = said.pop("get` and `put")
    assert set(both) == {"gat", "gats", "mg", *flags}
    known = {word.decode() for word in OF_KEYS} | {
        "flush_all",
        "verbosity",
        "cache_memlimit",
        "stats reset",
        "stats detail",
    }
    assert {words for commands in said.values() for words in commands} | {"gat", "gats", "bget"} == known
    for right, commands in said.items():
        others = [one for one in Right if one is not Right(right) and one is not Right.ADMIN]
        for words in commands:
            line = words.encode().split() + [b"key"] * (" " not in words and words != "flush_all")
            assert CacheRights(user(Right(right), of_cache=True)).refusal(line) is None, words
            assert CacheRights(user(*others, of_cache=True)).refusal(line) is not None, words
    for words in (
        [b"gat", b"0", b"key"],
        [b"gats", b"0", b"key"],
        *([b"mg", b"key", b"%b1" % flag.encode()] for flag in flags),
    ):
        for rights in ([Right.GET], [Right.PUT]):
            assert CacheRights(user(*rights, of_cache=True)).refusal(words) is not None
        assert CacheRights(user(Right.GET, Right.PUT, of_cache=True)).refusal(words) is None
