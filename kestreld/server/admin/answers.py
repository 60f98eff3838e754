"""Responses of the HTTP listener, and execution of its long work in slices."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from kestreld.clock import Clock
from kestreld.config.users import Thing
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.queues.slices import OVER, Slices, Work
from kestreld.server.accounts import Account

T = TypeVar("T")
SLICE_US: Final = 1000  # with the turn that follows, a client of the data port may wait twice that
ID_DIGITS_MAX: Final = 19
# Figures must not be cached, and an item may look like a page to a browser.
HEADERS: Final = {"Server": "kestreld", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Refused(Exception):
    """A response with a status of 400 or more, a reason, and further fields."""

    def __init__(self, status: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.more = more

    def answer(self) -> web.Response:
        response = as_json({"error": self.reason, **self.more}, self.status)
        if self.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="kestreld", charset="UTF-8"'
        if self.status == 503:
            response.headers["Retry-After"] = "1"
        return response


def refusal(problem: JournalFailed | JournalCorrupt) -> Refused:
    """Return the response for a journal that cannot be read or written, without paths, which stay private."""
    if isinstance(problem, JournalFailed):
        return Refused(503, f"journal: {problem.reason}")
    remedy = {"remedy": problem.remedy} if problem.remedy else {}
    return Refused(503, f"corrupt: {problem.reason}", **remedy)


def as_json(content: Any, status: int = 200) -> web.Response:
    body = json.dumps(content, separators=(",", ":")) + "\n"
    return web.Response(text=body, status=status, content_type="application/json", headers=HEADERS)


def as_text(line: str, status: int = 200) -> web.Response:
    return web.Response(text=line + "\n", status=status, headers=HEADERS)


def sees_jobs(account: Account | None) -> Callable[[str], bool] | None:
    """Return a test for the job queues that an account may know of, None = all."""
    return None if account is None else partial(account.sees, thing=Thing.JOB)


def number_in(request: web.BaseRequest, name: str, lowest: int, highest: int, default: int) -> int:
    """Return a number from the query. Raises Refused."""
    text = request.rel_url.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS_MAX and lowest <= int(text) <= highest):
        raise Refused(400, f"{name} must be a number from {lowest} to {highest}")
    return int(text)


class Share:
    """The admin port's share of the time for long work, as large for many requests as for one."""

    def __init__(self, slices: Slices, clock: Clock) -> None:
        self._slices = slices
        self.clock = clock

    async def slice(self) -> int:
        """Wait for a slice, which no other request has at that time; returns its end on the stopwatch."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slices.take_on(_hand_over(begun))
        await begun
        return self.clock.stopwatch_us() + SLICE_US


def _hand_over(begun: "asyncio.Future[None]") -> Work:
    if not begun.done():  # else the request was cancelled
        begun.set_result(None)
        yield OVER


async def in_slices(steps: Iterator[T], share: Share) -> list[T]:
    """Run all steps, with turns of the data ports in between; returns their results."""
    given = []
    until_us = await share.slice()
    for step in steps:
        given.append(step)
        if share.clock.stopwatch_us() >= until_us:
            until_us = await share.slice()
    return given


async def stream(
    request: web.BaseRequest, pieces: Iterator[str | None], content_type: str, share: Share
) -> web.StreamResponse:
    """Send an answer while it is produced, with turns of the data ports in between."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": content_type})
    await response.prepare(request)
    until_us = await share.slice()
    for piece in pieces:
        if piece is not None:
            await response.write(piece.encode())
        if share.clock.stopwatch_us() >= until_us:
            until_us = await share.slice()
    await response.write_eof()
    return response
