"""kestrelctl web in a real browser."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Page, browsing, find_browser
from tests.support.daemon import Daemon
from tests.tui.sights import put
from tests.tui.test_web import PATIENCE_S, served

BROWSER = find_browser()
# The page keeps its terminal to itself: take hold of what it makes when it notes the address to connect to.
HOLD = """
Object.defineProperty(Object.prototype, "websocket_url", {
  set(value) {
    window.held = this;
    Object.defineProperty(this, "websocket_url", {value: value, writable: true});
  }
});
"""
READ = """
window.held === undefined ? "" : Array.from(
  {length: window.held.terminal.rows},
  (_, row) => window.held.terminal.buffer.active.getLine(row).translateToString(true)
).join("\\n")
"""


async def shown(page: Page, *texts: str) -> str:
    """What stands in the terminal of the page, when all of the texts do."""
    seen: Any = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not all(text in seen for text in texts):
                await asyncio.sleep(0.2)
                seen = await page.value(READ)
    except TimeoutError:
        raise AssertionError(f"waited for {texts}:\n{seen}\n{page.complaints}") from None
    return str(seen)


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium, which is not installed")
def test_a_browser_shows_live_rows_and_asks_nobody_else(daemon: Daemon, tmp_path: Path) -> None:
    put(daemon.address, "for-the-browser", b"x")

    async def driving(url: str) -> None:
        assert BROWSER is not None
        async with browsing(BROWSER, tmp_path) as page:
            await page.do("Page.addScriptToEvaluateOnNewDocument", source=HOLD)
            await page.do("Page.navigate", url=url)
            await shown(page, "for-the-browser", "queues 1", "read-only")
            put(daemon.address, "for-the-browser", *[b"x"] * 40)
            seen = await shown(page, "items 41")
            assert "› for-the-browser" in seen
            await page.value('window.held.terminal.input("?")')
            await shown(page, "Everywhere")
            picture = await page.do("Page.captureScreenshot")
            if "BROWSER_PICTURE" in os.environ:
                Path(os.environ["BROWSER_PICTURE"]).write_bytes(base64.b64decode(picture["data"]))
            own = url.removeprefix("http://").partition("/")[0]
            asked = {address.partition("://")[2].partition("/")[0] for address in page.asked if "://" in address}
            assert asked == {own}
            assert [words for words in page.complaints if "WebGL" not in words] == []

    with served(daemon, "--filter", "for-the-browser") as (url, _):
        asyncio.run(driving(url))
