"""Pipelined commands on two queues, the commit of one of which fails: what its client hears, and what becomes of the
rest.
"""

from random import Random

import pytest

from kestreld.config.config import Config
from tests.simulation.history import Mode
from tests.simulation.host import Host
from tests.simulation.network import Link
from tests.simulation.plan import SPOOL, Plan

BAD, GOOD = "bad", "good"  # queues: the disk fails the former
ERROR = b"SERVER_ERROR journal %b failed: Input/output error\r\n"
ITEM = b"VALUE good 0 4\r\nitem\r\nEND\r\n"


class Whole(Random):
    """A network with it leaves pieces as they were sent."""

    def random(self) -> float:
        return 0.99


class OneBadQueue(Host):
    """A server with an item in the good queue, and a disk that fails the bad one from then on."""

    def __init__(self, sync_ms: int | None) -> None:
        names = [BAD, GOOD]
        plan = Plan(readers=names, modes={name: Mode(sync_ms=sync_ms) for name in names})
        super().__init__(plan, lambda what: Random(what))
        self._sync_ms = sync_ms
        self.lay_out()
        self.start()
        assert self.server is not None
        self.server.network.chance = Whole(0)
        self.hears([b"set good 0 0 4\r\nitem\r\n"], b"STORED\r\n", hangs_up=False)
        self.kind = "write" if sync_ms is None else "sync"
        self.faults.strike = self._strike  # type: ignore[method-assign]

    def config(self) -> Config:
        queues = {name: {"sync_journal_ms": self._sync_ms} for name in self.plan.readers}
        return Config(queue_path=SPOOL, queues=queues, source="a test")

    def _strike(self, kind: str, path: str) -> None:
        if kind == self.kind and f"/{BAD}.journal/" in path:
            self.faults.fail(kind, path, self.faults.error)

    @property
    def error(self) -> bytes:
        return ERROR % self.kind.encode()

    def hears(self, pieces: list[bytes], expected: bytes, *, hangs_up: bool = True) -> None:
        """What a client sends in so many pieces, each in a turn of its own, is answered with that and no more."""
        assert self.server is not None
        heard, over = bytearray(), []
        link = self.server.network.connect_client(lambda data, sent_us: heard.extend(data), lambda: over.append(True))
        assert isinstance(link, Link)
        for piece in pieces:
            link.send(piece)
            self.run_for(300)
        self.run_for(500_000)
        assert bytes(heard) == expected
        assert bool(over) is hangs_up
        link.close()
        self.run_for(100_000)


@pytest.fixture(params=[None, 0], ids=["written", "synced"])
def host(request: pytest.FixtureRequest) -> OneBadQueue:
    return OneBadQueue(request.param)


SET_BAD, GET_GOOD = b"set bad 0 0 3\r\nnot\r\n", b"get good\r\n"


@pytest.mark.parametrize("get", [GET_GOOD, b"get good/t=50\r\n", b"get good bad\r\n", b"get good/open\r\n"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_a_get_would_take_behind_an_answer_that_fails_stays(
    host: OneBadQueue, get: bytes, in_pieces: bool
) -> None:
    host.hears([SET_BAD, get] if in_pieces else [SET_BAD + get], host.error)
    host.hears([GET_GOOD], ITEM, hangs_up=False)


def test_the_same_behind_a_put_that_wants_no_answer(host: OneBadQueue) -> None:
    quiet = b"set bad 0 0 3 noreply\r\nnot\r\n"
    host.hears([quiet + SET_BAD + b"version\r\n" + GET_GOOD], host.error)
    host.hears([GET_GOOD], ITEM, hangs_up=False)


def test_an_answer_before_the_one_that_fails_arrives(host: OneBadQueue) -> None:
    host.hears([GET_GOOD + SET_BAD + b"version\r\n"], ITEM + host.error)


def test_nothing_that_comes_while_the_error_is_held_back_is_carried_out() -> None:
    """The error is behind the answer of a queue that is synced, and its own queue is not."""
    host = OneBadQueue(0)
    host.hears(
        [b"set good 0 0 4\r\nmore\r\n" + b"get good/peek\r\n" + SET_BAD, SET_BAD, GET_GOOD],
        b"STORED\r\n" + ITEM.replace(b"good 0", b"good/peek 0") + host.error,
    )
    host.hears([GET_GOOD], ITEM, hangs_up=False)


def test_gets_go_on_in_their_order_where_nothing_fails(host: OneBadQueue) -> None:
    host.faults.heal()
    host.kind = "nothing"
    commands = b"set bad 0 0 1\r\n%d\r\nget good\r\nget bad\r\nset good 0 0 1\r\n%d\r\n"
    answers = b"STORED\r\nVALUE good 0 %d\r\n%b\r\nEND\r\nVALUE bad 0 1\r\n%d\r\nEND\r\nSTORED\r\n"
    goods = [b"item", *(b"%d" % number for number in range(4))]
    host.hears(
        [b"".join(commands % (number, number) for number in range(5))],
        b"".join(answers % (len(good), good, number) for number, good in enumerate(goods)),
        hangs_up=False,
    )


def test_a_get_behind_a_put_without_an_answer_on_another_queue_is_answered(host: OneBadQueue) -> None:
    host.kind = "nothing"
    host.hears(
        [b"set bad 0 0 1 noreply\r\nb\r\nget good\r\nget bad\r\n"],
        ITEM + b"VALUE bad 0 1\r\nb\r\nEND\r\n",
        hangs_up=False,
    )
