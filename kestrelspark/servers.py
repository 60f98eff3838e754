"""The servers named by the options: addresses, login, time-outs and retries."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelctl.remote.access import login_of, parse_address
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login
from kestreld.errors import KestrelError
from kestrelspark.options import BadOption, flag, number, option, words

OPTIONS: Final = ("servers", "user", "passwordfile", "tls", "ca", "cert", "key", "timeoutms", "retries")
TIMEOUT_MS: Final = 10_000
RETRIES: Final = 10
DELAY_MS: Final = 100
DELAY_MS_MAX: Final = 5000
# Failures after which a retry may succeed later or on another server.
PASSING: Final = frozenset(
    {ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN, ExitCode.FULL, ExitCode.IO, ExitCode.QUEUE_STOPPED}
)


class ServerTrouble(KestrelError):
    """A request to a server failed after all retries."""


@dataclass(slots=True, frozen=True)
class Servers:
    """The servers of the options. `where`: addresses, or @FILE with an address per line, read again each time."""

    where: str
    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout_ms: int = TIMEOUT_MS
    retries: int = RETRIES

    def addresses(self) -> list[str]:
        """The addresses, sorted, each once. Raises BadOption."""
        text = self.where
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text(encoding="utf-8")
            except OSError as problem:
                raise BadOption(f"servers: {self.where[1:]}: {(problem.strerror or '').lower()}") from problem
            text = " ".join(line.partition("#")[0] for line in text.splitlines())
        found = sorted(set(words(text)))
        if not found:
            raise BadOption("servers is empty; use HOST:PORT,HOST:PORT or @FILE")
        for address in found:
            try:
                parse_address(address)
            except Failure as problem:
                raise BadOption(f"servers: {problem}") from problem
        return found

    def login(self) -> Login:
        """A new login for each connection: a worker may have sources of several users."""
        return login_of(self.user, self.password_file, tls=self.tls, ca=self.ca, cert=self.cert, key=self.key)


def servers_in(options: Mapping[str, str]) -> Servers:
    """The servers that the options name. Raises BadOption."""
    where = option(options, "servers").strip()
    if not where:
        raise BadOption("the kestrel format requires the option servers: HOST:PORT,HOST:PORT or @FILE")
    servers = Servers(
        where,
        option(options, "user"),
        option(options, "passwordfile"),
        flag(options, "tls"),
        option(options, "ca"),
        option(options, "cert"),
        option(options, "key"),
        number(options, "timeoutms", TIMEOUT_MS, least=1),
        number(options, "retries", RETRIES),
    )
    servers.addresses()
    return servers


class Patience:
    """Counts failed attempts and waits longer after each."""

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._delay_ms = DELAY_MS

    def spend(self, failure: Failure) -> None:
        """Wait before the next attempt. Raises ServerTrouble if retries are used up or would not help."""
        if failure.code not in PASSING or not self._left:
            raise ServerTrouble(failure.words) from failure
        self._left -= 1
        time.sleep(self._delay_ms / 1000)
        self._delay_ms = min(2 * self._delay_ms, DELAY_MS_MAX)
