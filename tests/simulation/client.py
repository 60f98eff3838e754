"""One connection of a client: requests out, answers in, and the books of it in the history."""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from tests.simulation.history import (
    Connection,
    Delivery,
    History,
    LeaseChange,
    Life,
    Listed,
    Presence,
    Put,
    Reopening,
    Request,
    Wipe,
)
from tests.simulation.network import SimulatedNetwork
from tests.simulation.schedule import Schedule

VALUE: Final = re.compile(rb"VALUE (\S+) (\d+) (\d+)(?: (\d+)(?: (\d+))?)?\r\n")
NUMBER: Final = re.compile(rb"(\d+):")
INSIDE_OTHERS: Final = b"phantom"  # the data of a record that stands in the data of some items
LINE: Final = re.compile(rb"\r\n")
ENDINGS: Final = {  # of answers with more than one line
    "stats": re.compile(rb"END\r\n"),
    "bindings": re.compile(rb"END\r\n|^[^B][^\n]*\r\n"),
    "repair": re.compile(rb"^(?!DAMAGE)[^\n]*\r\n", re.MULTILINE),
}


class Talk:
    """A connection. `moved_on` is called when an answer has come, `over` when the connection has ended."""

    def __init__(
        self,
        schedule: Schedule,
        history: History,
        network: SimulatedNetwork,
        life: Life,
        number: int,
        moved_on: Callable[[], None],
        over: Callable[[], None],
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._schedule = schedule
        self._history = history
        self._moved_on = moved_on
        self._over = over
        self._trace = trace
        self._received = bytearray()
        self._heard_bytes = 0  # ever; and where each piece of it ended, with when it was sent
        self._pieces: deque[tuple[int, int]] = deque()
        self.pending: deque[Request] = deque()
        self.open: list[Delivery] = []
        self.items = 0  # that came
        self.errors = 0
        self.is_unsure = False  # whether the server still has something open for it
        self.list: list[str] = []  # queues of its list, and which of them is first if they take turns
        self.list_first = 0
        self.presence: Presence | None = None  # that was answered
        self.over = False
        self._ended_input_us = -1
        link = network.connect_client(self._hear, self._ended)
        self.link = link
        if link is not None:
            self.connection = Connection(number, life, link)
        else:
            self.over = True

    def say(self, words: str) -> None:
        if self._trace is not None:
            self._trace(f"c{self.connection.number}: {words}")

    # Asking

    @property
    def has_ended_input(self) -> bool:
        """Whether it can ask no more, only listen."""
        return self._ended_input_us >= 0

    def send(self, requests: list[Request]) -> None:
        """Ask for all of it at once."""
        assert self.link is not None
        text = b""
        for request in requests:
            request.sent_us, request.connection = self._schedule.now_us, self.connection
            text += request.text
            if request.put is not None:
                request.put.sent_us, request.put.connection = self._schedule.now_us, self.connection
                self._history.puts[request.put.number] = request.put
            if request.kind in ("flush", "delete"):
                wipe = Wipe(request.reader, request.kind == "delete", self.connection, self._schedule.now_us)
                self._history.wipes.append(wipe)
            elif request.kind == "repair":
                family = request.reader.partition("+")[0]
                self._history.repairs.append(Reopening(self.connection.life, family, self._schedule.now_us))
            elif request.kind == "undo":
                self._history.undone.add(request.reader)
            elif request.cancel is not None:
                request.cancel.connection, request.cancel.sent_us = self.connection, self._schedule.now_us
                self._history.cancels.append(request.cancel)
            elif request.forgery is not None:
                self._history.forged.append(request.forgery)
            elif request.presence is not None:
                request.presence.connection, request.presence.sent_us = self.connection, self._schedule.now_us
                self._history.presences.append(request.presence)
            elif request.lease is not None and request.change is not None:
                self._show(request.lease, request.change)
            self.pending.append(request)
            if self._trace is not None:
                self.say(f"> {request.text[:60]!r}")
        self.link.send(text)

    def _show(self, leased: Delivery, change: LeaseChange) -> None:
        change.connection, change.sent_us = self.connection, self._schedule.now_us
        leased.changes.append(change)
        if change.kind == "confirm" and leased.ending != "close":
            leased.ending, leased.ending_sent_us = "close", change.sent_us

    def end_input(self) -> None:
        """Ask no more, and listen on."""
        assert self.link is not None
        self._ended_input_us = self._schedule.now_us
        self.link.end_input()

    def close(self, *, abruptly: bool) -> None:
        """Hang up. What is not answered stays so."""
        assert self.link is not None
        if self.over:
            return
        self.say("resets" if abruptly else "hangs up")
        if abruptly:
            self.link.reset()
        else:
            if not self.has_ended_input:
                self._ended_input_us = self._schedule.now_us
            self.link.close()
        self._give_up()

    def _ended(self) -> None:
        self.say("is hung up on")
        self._give_up()
        self._over()

    def _give_up(self) -> None:
        self.over = True
        while self.pending:
            self._unanswered(self.pending.popleft())
        if self.has_ended_input:
            for delivery in self.open:  # the server gives them back as soon as it sees the end, answers still to come
                delivery.ending, delivery.ending_sent_us, delivery.was_given_back = "abort", self._ended_input_us, True
                if delivery.came_too_late and delivery.put.number:
                    late = Request("read", delivery.reader, b"", delivery.sent_us, self.connection, takes=True)
                    self._history.unanswered.append(late)

    def _unanswered(self, request: Request) -> None:
        if request.kind == "repair":
            self._history.stopped.add(request.reader.partition("+")[0])
        closed = self._closed_by(request)
        if closed is not None:
            closed.ending = "close" if request.closes else "abort"
            closed.ending_sent_us = request.sent_us
            self.is_unsure = True
        if request.listed is not None:
            self._history.unanswered += [replace(request, reader=name, listed=None) for name in self.list]
        elif request.takes or request.closes:
            request.may_lose = closed is None and (request.closes or not request.opens)
            self._history.unanswered.append(request)

    def _closed_by(self, request: Request) -> Delivery | None:
        """The open read that a request closes or aborts: the oldest of its queue."""
        if request.closes or request.aborts:
            for delivery in self.open:
                if delivery.reader == request.reader:
                    self.open.remove(delivery)
                    return delivery
        return None

    # Hearing

    def _hear(self, data: bytes, sent_us: int) -> None:
        if self.over:
            return
        self._received += data
        self._heard_bytes += len(data)
        self._pieces.append((self._heard_bytes, sent_us))
        moved = False
        while self._received and self._next_answer():
            moved = True
        if moved:
            self._moved_on()

    def _next_answer(self) -> bool:
        """Take in one whole answer; False when there is none yet."""
        heard = self._received
        if not self.pending:
            self._complain(f"an answer to nothing: {bytes(heard[:80])!r}")
            heard.clear()
            return False
        request = self.pending[0]
        value = VALUE.match(heard) if request.takes or request.kind == "peek" else None
        if value is not None:
            end = value.end() + int(value[3]) + len(b"\r\nEND\r\n")
            if len(heard) < end:
                return False
            answer = bytes(heard[:end])
            value = VALUE.match(answer)
        else:
            ending = ENDINGS.get(request.kind, LINE).search(heard)
            if ending is None:
                return False
            end = ending.end()
            answer = bytes(heard[:end])
        del heard[:end]
        self.pending.popleft()
        served_us = self._sent_at(self._heard_bytes - len(heard))
        if request.listed is not None and (value is not None or answer == b"END\r\n"):
            self._take_from_list(request, request.listed, value, served_us)
        if self._trace is not None:
            self.say(f"< {answer[:60]!r}")
        if value is not None:
            self._take_value(request, value, answer, served_us)
        else:
            self._take_line(request, answer)
        if self.presence is not None and not self.has_ended_input and not answer.startswith(b"SERVER_ERROR"):
            self.presence.last_us = served_us
        return True

    def _take_from_list(
        self, request: Request, listed: Listed, value: "re.Match[bytes] | None", served_us: int
    ) -> None:
        first = self.list_first if listed.takes_turns else 0
        listed.readers = tuple(self.list[first:] + self.list[:first])
        listed.connection, listed.sent_us, listed.served_us = self.connection, request.sent_us, served_us
        self._history.listed.append(listed)
        if value is not None:
            request.reader = listed.reader = value[1].decode().partition("/")[0]
            if listed.reader in self.list:
                self.list_first = (self.list.index(listed.reader) + 1) % len(self.list)
            else:
                self._complain(f"{request.text!r} was answered with an item of {listed.reader}, not on the list")

    def _sent_at(self, byte: int) -> int:
        while self._pieces[0][0] < byte:
            self._pieces.popleft()
        return self._pieces[0][1]

    def _take_value(self, request: Request, value: "re.Match[bytes]", answer: bytes, served_us: int) -> None:
        data = answer[value.end() : -len(b"\r\nEND\r\n")]
        if answer[value.end() + int(value[3]) :] != b"\r\nEND\r\n":
            self._complain(f"no END after {value[0]!r}")
        self._settle(request)
        mark = NUMBER.match(data)
        put = self._history.puts.get(int(mark[1])) if mark else None
        if data == INSIDE_OTHERS:
            self._history.from_inside.add(request.reader.partition("+")[0])
            put = Put(0, request.reader, data, 0, 0, -1, None)
        if put is None or put.data != data:
            self._complain(f"{request.reader} delivered what nobody put: {data[:40]!r} ({len(data)} bytes)")
            return
        if put.flags != int(value[2]):
            self._complain(f"item {put.number} came with flags {int(value[2])}, not {put.flags}")
        kind = "peek" if request.kind == "peek" else "open" if request.opens else "get"
        kind = "lease" if request.lease_ms else kind
        delivery = Delivery(put, request.reader, self.connection, kind, request.sent_us, served_us)  # type: ignore[arg-type]
        self.items += 1
        if put.number:
            self._history.deliveries.append(delivery)
        if request.lease_ms:
            delivery.token, delivery.lease_ms, delivery.by = int(value[4]), request.lease_ms, request.by
            delivery.deliveries = int(value[5]) if value[5] else -1
            if (value[5] is not None) != (b"/deliveries" in request.text):
                self._complain(f"{request.text!r} was answered with {value[0]!r}")
            if put.number:
                self._history.leases.append(delivery)
        elif request.opens:
            self.open.append(delivery)

    def _settle(self, request: Request) -> None:
        """The answer says that what the request closes or aborts is so."""
        closed = self._closed_by(request)
        if closed is not None:
            closed.ending = "close" if request.closes else "abort"
            closed.ending_sent_us, closed.ending_answered_us = request.sent_us, self._schedule.now_us

    def _take_line(self, request: Request, answer: bytes) -> None:
        now_us = self._schedule.now_us
        if request.told is not None:
            request.told(answer)
        if answer.startswith(b"SERVER_ERROR"):
            self.errors += 1
            self._unanswered(request)
            return
        kind = request.kind
        expected = {
            "set": (b"STORED\r\n", b"NOT_STORED\r\n"),
            "read": (b"END\r\n",),
            "peek": (b"END\r\n",),
            "flush": (b"END\r\n",),
            "delete": (b"DELETED\r\n", b"NOT_FOUND\r\n"),
            "cancel": (b"DELETED\r\n", b"NOT_FOUND\r\n"),
            "confirm": (b"DELETED\r\n", b"NOT_FOUND\r\n"),
            "change": (b"TOUCHED\r\n", b"NOT_FOUND\r\n"),
            "forge": (b"DELETED\r\n", b"TOUCHED\r\n", b"NOT_FOUND\r\n"),
            "wait": (b"OK\r\n",),
            "present": (b"OK\r\n",),
        }
        if kind in expected and answer not in expected[kind]:
            self._complain(f"{request.text[:60]!r} was answered {answer[:80]!r}")
        if kind == "set":
            assert request.put is not None
            request.put.answered_us = now_us
            stored: Literal["stored", "known"] = "known" if request.put.key and not request.put.adds else "stored"
            request.put.outcome = stored if answer == b"STORED\r\n" else "refused"
        elif request.cancel is not None:
            request.cancel.answered_us = now_us
            request.cancel.outcome = "not found" if answer == b"NOT_FOUND\r\n" else "done"
        elif request.forgery is not None:
            request.forgery.answered_us, request.forgery.was_good = now_us, answer != b"NOT_FOUND\r\n"
        elif request.presence is not None:
            self.presence, request.presence.answered_us = request.presence, now_us
        elif request.lease is not None and request.change is not None:
            request.change.answered_us = now_us
            request.change.outcome = "not found" if answer == b"NOT_FOUND\r\n" else "done"
            if request.change.kind == "confirm":
                _settle_confirm(request.lease, request.change)
        elif kind in ("flush", "delete"):
            wipe = next(
                one
                for one in self._history.wipes
                if one.connection is self.connection and one.reader == request.reader and one.answered_us < 0
            )
            wipe.answered_us = now_us
        else:
            self._settle(request)
        if kind == "repair" and not answer.startswith((b"SOUND", b"NOT_FOUND")):
            self._history.stopped.add(request.reader.partition("+")[0])
        # Only a put and a get make a queue: a look, a close or a flush is answered alike where there is none.
        if (kind == "set" or (request.takes and request.listed is None)) and answer != b"NOT_STORED\r\n":
            self._history.touched.setdefault(request.reader, []).append((self.connection.life, request.sent_us, now_us))

    def _complain(self, words: str) -> None:
        self._history.problems.append(f"at {self._schedule.now_us}, connection {self.connection.number}: {words}")


def _settle_confirm(leased: Delivery, confirm: LeaseChange) -> None:
    """What is known by now of whether the item is done."""
    if leased.ending_answered_us >= 0:
        return
    if confirm.outcome == "done":
        leased.ending, leased.ending_sent_us, leased.ending_answered_us = "close", confirm.sent_us, confirm.answered_us
        return
    unsure = [one for one in leased.changes if one.kind == "confirm" and one.outcome != "not found"]
    leased.ending = "close" if unsure else ""
    leased.ending_sent_us = unsure[0].sent_us if unsure else -1
