"""Addresses, passwords and TLS from the options of a command line."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import PORT_DEFAULT, Login, ServerAddress

if TYPE_CHECKING:
    import ssl

PASSWORD_VARIABLE: Final = "KESTREL_PASSWORD"


@dataclass(slots=True)
class PasswordSource:
    """Source of a login's password: `file` ("" = none), $KESTREL_PASSWORD, or the terminal, asked once."""

    user: str
    file: str = ""
    _typed: bytes | None = field(default=None, repr=False)

    def __call__(self) -> bytes:
        """The password. Raises Failure."""
        if self.file:
            try:
                first = Path(self.file).read_bytes().split(b"\n", 1)[0]
            except OSError as error:
                reason = f"--password-file {self.file}: {(error.strerror or '').lower()}"
                raise Failure(ExitCode.NO_INPUT, reason) from error
            return first.removesuffix(b"\r")
        if PASSWORD_VARIABLE in os.environ:
            return os.fsencode(os.environ[PASSWORD_VARIABLE])
        if self._typed is None:
            if sys.stdin is None or not sys.stdin.isatty():
                who = f"--user {self.user} requires a password" if self.user else "the server requires a password"
                words = f"{who}: use --password-file FILE or ${PASSWORD_VARIABLE}"
                raise Failure(ExitCode.AUTHENTICATION, words)
            import getpass

            self._typed = getpass.getpass(f"Password for {self.user}: " if self.user else "Password: ").encode()
        return self._typed


def login_of(
    user: str = "", password_file: str = "", *, tls: bool = False, ca: str = "", cert: str = "", key: str = ""
) -> Login:
    """A new login with the given options; "" = not given."""
    return Login(user, PasswordSource(user, password_file), tls, ca, cert, key)


def password_file_of(login: Login) -> str:
    """The login's password file; "" = none."""
    return login.password.file if isinstance(login.password, PasswordSource) else ""


def needs_terminal(login: Login) -> bool:
    """True if the user would have to type the password."""
    return bool(login.user) and not password_file_of(login) and PASSWORD_VARIABLE not in os.environ


def tls_context(login: Login) -> "ssl.SSLContext":
    """The TLS context of the login's connections. Raises Failure for options that do not match."""
    for option, path in (("--ca", login.ca), ("--cert", login.cert), ("--key", login.key)):
        if path and not os.access(path, os.R_OK):
            raise Failure(ExitCode.NO_INPUT, f"{option} {path}: cannot be read")
    if login.key and not login.cert:
        raise Failure(ExitCode.USAGE, "--key requires --cert")
    try:
        return login.context
    except OSError as error:
        option = f"--cert {login.cert}" if login.cert else f"--ca {login.ca}"
        reason = (getattr(error, "reason", None) or error.strerror or str(error)).replace("_", " ").lower()
        raise Failure(ExitCode.USAGE, f"{option}: {reason}") from error


def parse_address(address: str, port_default: int = PORT_DEFAULT) -> ServerAddress:
    """Parse an address. Raises Failure."""
    try:
        return ServerAddress.parse(address, port_default)
    except ValueError as error:
        raise Failure(ExitCode.USAGE, str(error)) from error
