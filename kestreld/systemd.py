"""What systemd hands to a service and wants to hear from it: sockets it has opened, sd_notify(3), and journald."""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

FIRST_PASSED_FD: Final = 3
Environment = MutableMapping[str, str]


@dataclass(frozen=True, slots=True)
class PassedSocket:
    """A socket that somebody else has bound, with the name that its unit gives it (FileDescriptorName=)."""

    bound: socket.socket
    name: str


def passed_sockets(environ: Environment) -> list[PassedSocket]:
    """The sockets of this start; they are taken out of `environ`, so that no child finds them. Raises OSError."""
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
    """Whether journald reads what is written there; its children get the variable too, whatever they write to."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class Notifier:
    """Tells the service manager how things are; nobody, where there is none."""

    def __init__(self, environ: Environment) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        watched = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.is_watched = bool(environ.pop("WATCHDOG_USEC", "")) and watched

    def tell(self, state: str) -> None:
        """Such as `READY=1`. Whoever does not listen misses it."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as wire:
            try:
                wire.sendto(state.encode(), self._address)
            except OSError:  # its trouble, not ours
                return

    def still_alive(self) -> None:
        """For the watchdog, where there is one."""
        if self.is_watched:
            self.tell("WATCHDOG=1")
