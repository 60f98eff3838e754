"""Interface to systemd: passed sockets, sd_notify(3), and detection of journald."""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

FIRST_PASSED_FD: Final = 3
Environment = MutableMapping[str, str]


@dataclass(frozen=True, slots=True)
class PassedSocket:
    """A socket that was bound by another process, with its unit's name for it (FileDescriptorName=)."""

    bound: socket.socket
    name: str


def passed_sockets(environ: Environment) -> list[PassedSocket]:
    """Return the passed sockets, and remove their variables from `environ`: no child may use them. Raises OSError."""
    pid, count, names = (environ.pop(f"LISTEN_{what}", "") for what in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    passed = []
    named = names.split(":") + [""] * int(count)
    for number in range(int(count)):
        bound = socket.socket(fileno=FIRST_PASSED_FD + number)
        bound.set_inheritable(False)
        bound.setblocking(False)
        passed.append(PassedSocket(bound, named[number]))
    return passed


def is_journal(environ: Environment, descriptor: int) -> bool:
    """Return True if journald reads `descriptor`. $JOURNAL_STREAM alone does not tell: children inherit it."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class Notifier:
    """Sends the service's state to the service manager, if there is one."""

    def __init__(self, environ: Environment) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        watched = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.is_watched = bool(environ.pop("WATCHDOG_USEC", "")) and watched

    def tell(self, state: str) -> None:
        """Send a state such as `READY=1`. It is lost if the manager does not listen."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as wire:
            try:
                wire.sendto(state.encode(), self._address)
            except OSError:  # the service runs without
                return

    def still_alive(self) -> None:
        """Notify the watchdog, if there is one."""
        if self.is_watched:
            self.tell("WATCHDOG=1")
