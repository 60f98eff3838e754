"""The console in a browser: who gets the page, what is on it, and what a window of it can do."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from kestrelctl.shell.exit_codes import ExitCode, Failure
from tests.support.daemon import ROOT, Daemon
from tests.support.process import environment
from tests.tui.sights import put
from tui.web import bind

PATIENCE_S = 60
Talk = Callable[[aiohttp.ClientSession], Awaitable[None]]


@contextmanager
def served(daemon: Daemon, *options: str, code: int = 130) -> Iterator[tuple[str, int]]:
    """Address and process id of a `kestrelctl web`. SIGINT ends it, also where the tests are run in the background."""

    def heed_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-m", "kestrelctl", "web", "--listen", "127.0.0.1:0", "-s", daemon.address, *options]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == code


@pytest.fixture(scope="module")
def url(daemon: Daemon) -> Iterator[str]:
    put(daemon.address, "in-the-browser", b"x")
    with served(daemon, "--filter", "in-the-browser") as (url, _):
        yield url


def talk(doing: Talk) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
            await doing(session)

    asyncio.run(run())


async def statuses(session: aiohttp.ClientSession, url: str, headers: Sequence[dict[str, str]]) -> set[int]:
    found = set()
    for each in headers:
        async with session.get(url, headers=each) as answer:
            found.add(answer.status)
    return found


async def window(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientWebSocketResponse:
    place = urlsplit(url)
    return await session.ws_connect(
        f"ws://{place.netloc}{place.path}ws?width=110&height=20", origin=f"http://{place.netloc}"
    )


async def seen(socket: aiohttp.ClientWebSocketResponse, *texts: str) -> str:
    """What was drawn until all of the texts were among it."""
    drawn = ""
    while not all(text in drawn for text in texts):
        try:
            message = await socket.receive(PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"waited for {texts}:\n{drawn}") from None
        assert message.type is aiohttp.WSMsgType.BINARY, (message, drawn)
        drawn += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", message.data.decode("utf-8", "replace"))
    return drawn


def consoles(word: str) -> int:
    """How many there are whose command line has this word."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            found.append((process / "cmdline").read_bytes().split(b"\0"))
    return sum(b"top" in line and word.encode() in line for line in found)


async def none_left(word: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while count := consoles(word):
        assert time.monotonic() < end, f"waited for the end of {count} consoles"
        await asyncio.sleep(0.1)


def test_the_page_and_all_that_is_with_it_name_no_other_host(url: str) -> None:
    async def doing(session: aiohttp.ClientSession) -> None:
        async with session.get(url) as answer:
            page = await answer.text()
            assert answer.status == 200
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        place = urlsplit(url)
        assert set(re.findall(r"(?:https?|wss?)://[^\"'/ ]+", page)) == {f"ws://{place.netloc}"}
        for name in re.findall(r'(?:src|href)="([^"]+)"|url\("([^"]+)"\)', page):
            path = "".join(name)
            if path.startswith("data:"):
                continue
            async with session.get(url + path) as answer:
                assert answer.status == 200, path
                content = await answer.read()
                if path.endswith(".css"):
                    assert b"url(" not in content
                    assert b"@import" not in content

    talk(doing)


def test_without_any_option_it_shows_all_queues(daemon: Daemon) -> None:
    put(daemon.address, "with-the-others", b"x")

    async def doing(session: aiohttp.ClientSession) -> None:
        async with await window(session, url) as socket:
            await seen(socket, "with-the-others")

    with served(daemon) as (url, _):
        talk(doing)


def test_other_names_other_pages_and_who_does_not_know_the_address_are_refused(url: str) -> None:
    place = urlsplit(url)
    port = place.port

    async def doing(session: aiohttp.ClientSession) -> None:
        evil = [
            {"Host": "evil.example.org"},
            {"Host": f"evil.example.org:{port}"},
            {"Host": "127.0.0.1"},
            {"Host": f"127.0.0.1:{port}.evil.example.org"},
            {"Origin": "http://evil.example.org"},
            {"Origin": "null"},
            {"Origin": f"https://127.0.0.1:{port}"},
            {"Sec-Fetch-Site": "cross-site"},
        ]
        assert await statuses(session, url, evil) == {403}
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        assert await statuses(session, f"{url}ws", [upgrade, *({**upgrade, **headers} for headers in evil)]) == {403}
        assert await statuses(session, f"http://{place.netloc}/", [{}]) == {404}
        assert await statuses(session, f"http://{place.netloc}/ws", [{}]) == {404}
        assert await statuses(session, f"{url}../../etc/passwd", [{}]) == {404}
        assert await statuses(session, url, [{}, {"Host": f"localhost:{port}"}, {"Sec-Fetch-Site": "none"}]) == {200}

    talk(doing)


def test_a_window_shows_live_rows_and_changes_nothing(daemon: Daemon, url: str) -> None:
    async def doing(session: aiohttp.ClientSession) -> None:
        socket = await window(session, url)
        await seen(socket, "queues 1", "in-the-browser", "read-only")
        put(daemon.address, "in-the-browser", *[b"x"] * 40)
        await seen(socket, "41")
        for key in "fdrew":
            await socket.send_json(["stdin", key])
        await socket.send_json(["stdin", "?"])
        drawn = await seen(socket, "Everywhere")
        assert "Discard all items" not in drawn
        assert "Write the view" not in drawn
        await socket.close()

    talk(doing)


@pytest.mark.long
def test_actions_are_there_where_they_are_allowed(daemon: Daemon) -> None:
    put(daemon.address, "web-flush", b"x")

    async def doing(session: aiohttp.ClientSession) -> None:
        socket = await window(session, url)
        await seen(socket, "web-flush")
        await socket.send_json(["stdin", "f"])
        await seen(socket, "Discard all items of web-flush")
        await socket.send_json(["stdin", "web-flush\r"])
        await seen(socket, "flushed")
        await socket.close()

    with served(daemon, "--filter", "web-flush", "--allow-actions") as (url, _):
        talk(doing)


@pytest.mark.long
def test_windows_end_with_their_sockets_and_there_is_a_limit_to_them(daemon: Daemon) -> None:
    async def doing(session: aiohttp.ClientSession) -> None:
        sockets = [await window(session, url) for _ in range(8)]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await window(session, url)
        assert refused.value.status == 503
        await seen(sockets[0], "queues 0")
        assert consoles("web-many") > 0
        for socket in sockets:
            await socket.close()
        await none_left("web-many")

    with served(daemon, "--filter", "web-many") as (url, _):
        talk(doing)


@pytest.mark.long
def test_a_window_ends_when_its_server_is_killed(daemon: Daemon) -> None:
    async def doing(session: aiohttp.ClientSession) -> None:
        socket = await window(session, url)
        await seen(socket, "queues 0")
        assert consoles("web-orphan") == 1
        os.kill(web, signal.SIGKILL)
        await none_left("web-orphan")

    with served(daemon, "--filter", "web-orphan", code=-signal.SIGKILL) as (url, web):
        talk(doing)


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:8022", "[::]:8022", "192.0.2.1:8022", "example.org:8022", "8022", "127.0.0.1:x"]
)
def test_only_loopback_is_served(listen: str) -> None:
    with pytest.raises(Failure) as refused:
        bind(listen)
    assert refused.value.code == ExitCode.USAGE
    assert "--listen" in refused.value.words


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "127.8.9.1:0"])
def test_loopback_is(listen: str) -> None:
    with bind(listen) as bound:
        assert bound.getsockname()[0].startswith("127.")
