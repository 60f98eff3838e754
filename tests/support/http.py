"""HTTP requests to a daemon's admin port."""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tests.support.daemon import Daemon
from tests.support.waiting import PATIENCE_S


@dataclass
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """Of NDJSON."""
        return [json.loads(line) for line in self.body.splitlines()]


def basic(user: str, password: str) -> dict[str, str]:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def ask(
    daemon: Daemon,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """One request on a connection of its own."""
    scheme, address = ("https", daemon.admin.removeprefix("tls:")) if context is not None else ("http", daemon.admin)
    request = urllib.request.Request(f"{scheme}://{address}{path}", body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.headers, refusal.read())


@contextmanager
def asked(daemon: Daemon, path: str) -> Iterator[Callable[[], Answer]]:
    """A request that the server has begun to work at, and what reads its answer."""

    def answer() -> Answer:
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    with closing(http.client.HTTPConnection(daemon.admin, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        ask(daemon, "/healthz")  # on a later connection: it is served after this one
        yield answer
