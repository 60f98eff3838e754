"""How one gets into a server: TLS, and a user with his password. All connect by `open_socket`."""

import os
import socket
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.login import log_in

if TYPE_CHECKING:
    import ssl

PORT_DEFAULT: Final = 22133
PASSWORD_VARIABLE: Final = "KESTREL_PASSWORD"


@dataclass(frozen=True)
class Login:
    """The way in; empty = not said. The password is asked for once, and no other login ever sees it."""

    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def asks_for_tls(self, address: str) -> bool:
        return self.tls or bool(self.ca or self.cert) or address.startswith("tls:")

    @property
    def needs_terminal(self) -> bool:
        """Whether somebody would have to type the password."""
        return bool(self.user) and not self.password_file and PASSWORD_VARIABLE not in os.environ

    @cached_property
    def password(self) -> bytes:
        """From the file, $KESTREL_PASSWORD or the terminal, in this order. Raises Failure."""
        if self.password_file:
            try:
                first = Path(self.password_file).read_bytes().split(b"\n", 1)[0]
            except OSError as error:
                reason = f"--password-file {self.password_file}: {(error.strerror or '').lower()}"
                raise Failure(ExitCode.NO_INPUT, reason) from error
            return first.removesuffix(b"\r")
        if PASSWORD_VARIABLE in os.environ:
            return os.fsencode(os.environ[PASSWORD_VARIABLE])
        if sys.stdin is None or not sys.stdin.isatty():
            words = f"--user {self.user} needs a password: --password-file FILE or ${PASSWORD_VARIABLE}"
            raise Failure(ExitCode.AUTHENTICATION, words)
        import getpass

        return getpass.getpass(f"Password of {self.user}: ").encode()

    @cached_property
    def tls_context(self) -> "ssl.SSLContext":
        """What TLS connections go by. Raises Failure for options that do not fit."""
        # 15 ms that those without TLS need not wait.
        import ssl

        for option, path in (("--ca", self.ca), ("--cert", self.cert), ("--key", self.key)):
            if path and not os.access(path, os.R_OK):
                raise Failure(ExitCode.NO_INPUT, f"{option} {path}: cannot be read")
        if self.key and not self.cert:
            raise Failure(ExitCode.USAGE, "--key needs the --cert that it belongs to")
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None)
            except ssl.SSLError as error:
                reason = (error.reason or str(error)).replace("_", " ").lower()
                raise Failure(ExitCode.USAGE, f"--cert {self.cert}: {reason}") from error
        return context


given = Login()  # the command line's


def go_by(login: Login) -> None:
    """From now on `given` is this one: what connects without a login of its own goes by it."""
    global given
    given = login


def parse_address(address: str) -> tuple[str, int] | str:
    """(host, port) of `HOST`, `HOST:PORT`, `[IPV6]:PORT` and the same after `tls:`, or `unix:PATH` as it is."""
    if address.startswith("unix:"):
        return address
    address = address.removeprefix("tls:")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(PORT_DEFAULT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Failure(ExitCode.USAGE, f"{address!r} is not a server; write HOST:PORT, tls:HOST:PORT or unix:PATH")
    return host, int(port)


def open_socket(address: str, timeout_s: float, login: Login | None = None) -> socket.socket:
    """A connection that commands can be sent on; `login` None = the command line's.

    Raises Failure, or OSError when there is nobody to talk to.
    """
    login = given if login is None else login
    place = parse_address(address)
    if isinstance(place, str):
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(timeout_s)
        try:
            connected.connect(place.removeprefix("unix:"))
        except OSError:
            connected.close()
            raise
    else:
        connected = socket.create_connection(place, timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.asks_for_tls(address):
                connected = _secured(connected, address, place[0], login)
        except (OSError, Failure):
            connected.close()
            raise
    if login.user:
        try:
            _log_in(connected, address, login)
        except (OSError, Failure):
            connected.close()
            raise
    return connected


def _secured(connected: socket.socket, address: str, host: str, login: Login) -> socket.socket:
    import ssl

    try:
        return login.tls_context.wrap_socket(connected, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        reason = f"{address} is not trusted: {error.verify_message}; --ca FILE names the authority of its certificate"
        raise Failure(ExitCode.UNREACHABLE, reason) from error
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise Failure(ExitCode.UNREACHABLE, f"no TLS with {address}: {reason}") from error


def _log_in(connected: socket.socket, address: str, login: Login) -> None:
    refusal = log_in(connected, login.user.encode("utf-8", "surrogateescape"), lambda: login.password)
    if refusal:
        raise Failure(ExitCode.AUTHENTICATION, f"{address} refused {login.user}: {refusal}")
