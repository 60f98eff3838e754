"""A headless Chromium, spoken to by its DevTools protocol."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 90


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One page of the browser, and the addresses it has asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = count(1)

    async def do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: Any) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        elif message.get("method") == "Network.webSocketCreated":
            self.asked.append(parameters["url"])
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])

    async def value(self, expression: str) -> Any:
        """Of JavaScript in the page."""
        return (await self.do("Runtime.evaluate", expression=expression, returnByValue=True))["result"].get("value")


@asynccontextmanager
async def browsing(browser: str, folder: Path) -> AsyncIterator[Page]:
    """An empty page."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1200,700", "about:blank"]
    process = await asyncio.create_subprocess_exec(browser, *flags, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            place = None
            while place is None:
                line = (await process.stderr.readline()).decode()
                assert line, "the browser has ended"
                place = re.search(r"ws://([^/]+)/", line)
            async with session.get(f"http://{place[1]}/json") as answer:
                (target,) = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network", "Log", "Runtime"):
                    await page.do(f"{domain}.enable")
                yield page
    finally:
        process.terminate()
        await process.wait()
