"""Web server of `kestrelctl web`: a page, and a console process for each browser window.

Only loopback is served, under a path with a random secret, and only to pages from this server.
"""

import asyncio
import html
import ipaddress
import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import textual_serve
from aiohttp import web
from textual_serve.server import Server

from kestrelctl.remote.access import PASSWORD_VARIABLE
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestreld.client.access import Login

WINDOWS_MAX: Final = 8
SECRET_BYTES: Final = 16
GOODBYE_S: Final = 2.0
STATICS: Final = Path(textual_serve.__file__).parent / "static"
SERVED: Final = ("js/textual.js", "css/xterm.css", "fonts/RobotoMono-VariableFont_wght.ttf")
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer(Server):
    """Serves the page and starts a console for each window."""

    def __init__(self, command: str, host: str, port: int) -> None:
        super().__init__(command, host, port, title="kestrelctl web")
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.secret = secrets.token_urlsafe(SECRET_BYTES)
        self.public_url = f"http://{self.address}/{self.secret}"
        self._windows = 0

    def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(f"/{self.secret}/", self._page)
        app.router.add_get(f"/{self.secret}/ws", self._window)
        for name in SERVED:
            app.router.add_get(f"/{self.secret}/{name}", _file(STATICS / name))
        app.router.add_get(f"/{self.secret}/page.js", _file(Path(str(files("tui") / "web_page" / "page.js"))))
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests under other host names (DNS rebinding) and from pages of other origins."""
        try:
            if not self._is_ours(request):
                raise web.HTTPForbidden(text=f"use http://{self.address}\n")
            response = await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _is_ours(self, request: web.Request) -> bool:
        port = self.address.rpartition(":")[2]
        names = {self.address, f"localhost:{port}"}
        host = request.headers.get("Host", "").lower()
        origin = request.headers.get("Origin")
        if host not in names or (origin is not None and origin.lower() != f"http://{host}"):
            return False
        return request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

    async def _page(self, request: web.Request) -> web.Response:
        template = (files("tui") / "web_page" / "page.html").read_text(encoding="utf-8")
        address = html.escape(f"ws://{request.headers['Host']}/{self.secret}/ws", quote=True)
        return web.Response(text=template.replace("{{ws}}", address), content_type="text/html")

    async def _window(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Origin") is None:
            raise web.HTTPForbidden(text="only for pages of this server\n")
        if self._windows >= WINDOWS_MAX:
            raise web.HTTPServiceUnavailable(text=f"{WINDOWS_MAX} windows are open, which is the limit\n")
        self._windows += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._windows -= 1


def _file(path: Path) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(path)

    return answer


def serve(listen: str, options: Sequence[str], login: Login) -> None:
    """Serve until a signal, which is raised as Interrupted. `options`: of `kestrelctl top`. Raises Failure."""
    bound = bind(listen)
    command = [sys.executable, "-m", "kestrelctl", *_access(login), "top", *options]
    host, port = bound.getsockname()[:2]
    number = asyncio.run(_serve(ConsoleServer(f"exec {shlex.join(command)}", host, port), bound))
    raise Interrupted(number)


async def _serve(server: ConsoleServer, bound: socket.socket) -> int:
    """Serve; return the number of the signal that ended it."""
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    runner = web.AppRunner(server.make_app(), access_log=None, shutdown_timeout=GOODBYE_S, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, bound).start()
    output.write_data(f"{server.public_url}/\n".encode())
    try:
        return await stopped
    finally:
        await runner.cleanup()


def bind(listen: str) -> socket.socket:
    """A socket bound to this loopback address. Raises Failure."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not port.isdecimal() or int(port) > 65535:
        raise Failure(ExitCode.USAGE, f"--listen {listen!r}: write 127.0.0.1:8022 or [::1]:8022")
    if not address.is_loopback:
        raise Failure(
            ExitCode.USAGE, f"--listen {listen!r}: must be a loopback address; use ssh -L from other machines"
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(address), int(port)), family=family)
    except OSError as error:
        raise Failure(ExitCode.IO, f"--listen {listen}: {(error.strerror or str(error)).lower()}") from error


def _access(login: Login) -> list[str]:
    """Login options for the console processes. The password is passed in the environment."""
    pairs = (("--user", login.user), ("--ca", login.ca), ("--cert", login.cert), ("--key", login.key))
    if login.user:
        os.environ[PASSWORD_VARIABLE] = os.fsdecode(login.secret)
    return [*(word for pair in pairs if pair[1] for word in pair), *(["--tls"] if login.tls else [])]
