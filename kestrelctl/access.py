"""How this run of kestrelctl gets into a server: TLS, and a user with his password. All connect by `open_socket`."""

import os
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrelctl.exit_codes import ExitCode, Failure
from kestreld.login import log_in

if TYPE_CHECKING:
    import ssl

PORT_DEFAULT: Final = 22133
PASSWORD_VARIABLE: Final = "KESTREL_PASSWORD"


@dataclass(slots=True)
class Given:
    """What the command line says of it; empty = nothing."""

    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""


given: Final = Given()  # filled by `verbs` before any command runs


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


def open_socket(address: str, timeout_s: float) -> socket.socket:
    """A connection that commands can be sent on. Raises Failure, or OSError when there is nobody to talk to."""
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
            if given.tls or given.ca or given.cert or address.startswith("tls:"):
                connected = _secured(connected, address, place[0])
        except (OSError, Failure):
            connected.close()
            raise
    if given.user:
        try:
            _log_in(connected, address)
        except (OSError, Failure):
            connected.close()
            raise
    return connected


def _secured(connected: socket.socket, address: str, host: str) -> socket.socket:
    # 15 ms that those without TLS need not wait.
    import ssl

    try:
        return tls_context().wrap_socket(connected, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        reason = f"{address} is not trusted: {error.verify_message}; --ca FILE names the authority of its certificate"
        raise Failure(ExitCode.UNREACHABLE, reason) from error
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise Failure(ExitCode.UNREACHABLE, f"no TLS with {address}: {reason}") from error


@cache
def tls_context() -> "ssl.SSLContext":
    """What TLS connections go by. Raises Failure for options that do not fit."""
    import ssl

    for option, path in (("--ca", given.ca), ("--cert", given.cert), ("--key", given.key)):
        if path and not os.access(path, os.R_OK):
            raise Failure(ExitCode.NO_INPUT, f"{option} {path}: cannot be read")
    if given.key and not given.cert:
        raise Failure(ExitCode.USAGE, "--key needs the --cert that it belongs to")
    context = ssl.create_default_context(cafile=given.ca or None)
    if given.cert:
        try:
            context.load_cert_chain(given.cert, given.key or None)
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise Failure(ExitCode.USAGE, f"--cert {given.cert}: {reason}") from error
    return context


def _log_in(connected: socket.socket, address: str) -> None:
    refusal = log_in(connected, given.user.encode("utf-8", "surrogateescape"), password)
    if refusal:
        raise Failure(ExitCode.AUTHENTICATION, f"{address} refused {given.user}: {refusal}")


@cache
def password() -> bytes:
    """From --password-file, $KESTREL_PASSWORD or the terminal, in this order. Asked for once."""
    if given.password_file:
        try:
            first = Path(given.password_file).read_bytes().split(b"\n", 1)[0]
        except OSError as error:
            reason = f"--password-file {given.password_file}: {(error.strerror or '').lower()}"
            raise Failure(ExitCode.NO_INPUT, reason) from error
        return first.removesuffix(b"\r")
    if PASSWORD_VARIABLE in os.environ:
        return os.fsencode(os.environ[PASSWORD_VARIABLE])
    if sys.stdin is None or not sys.stdin.isatty():
        words = f"--user {given.user} needs a password: --password-file FILE or ${PASSWORD_VARIABLE}"
        raise Failure(ExitCode.AUTHENTICATION, words)
    import getpass

    return getpass.getpass(f"Password of {given.user}: ").encode()
