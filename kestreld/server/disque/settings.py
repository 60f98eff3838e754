"""Parameters of CONFIG: their defaults, syntax, and current values.

Parameters without a meaning here (hz, activerehashing, ...) are stored and shown, because clients may read them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from kestreld.jobs.globs import Glob
from kestreld.server.disque.numbers import integer

PASSWORD_BYTES_MAX: Final = 512
_UNITS: Final = {b"": 1, b"b": 1, b"k": 1000, b"kb": 1 << 10, b"m": 10**6, b"mb": 1 << 20, b"g": 10**9, b"gb": 1 << 30}
_MEMORY: Final = re.compile(rb"(\d{1,18})([a-z]{0,2})")
HZ_MAX: Final = 500

Check = Callable[[bytes], bytes | None]  # the value as CONFIG GET shows it; None if it is invalid


def whole_number(least: int, most: int = 1 << 62) -> Check:
    """Return a check for numbers in this range."""

    def check(value: bytes) -> bytes | None:
        number = integer(value) if value else None
        return b"%d" % number if number is not None and least <= number <= most else None

    return check


def one_of(*words: bytes) -> Check:
    """Return a check for one of these words, in upper or lower case."""
    return lambda value: value.lower() if value.lower() in words else None


def _memory(value: bytes) -> bytes | None:
    found = _MEMORY.fullmatch(value.lower())
    if found is None or found[2] not in _UNITS:
        return None
    return b"%d" % (int(found[1]) * _UNITS[found[2]])


def capped_hz(number: int) -> bytes:
    """Return the hz in effect for the number requested."""
    return b"%d" % min(max(number, 1), HZ_MAX)


def _hz(value: bytes) -> bytes | None:
    found = whole_number(0)(value)
    return None if found is None else capped_hz(int(found))


def _password(value: bytes) -> bytes | None:
    return value if len(value) <= PASSWORD_BYTES_MAX else None


def _buffer_limit(value: bytes) -> bytes | None:
    words = value.split()
    if not words or len(words) % 4:
        return None
    for at in range(0, len(words), 4):
        name, sizes = words[at].lower(), [_memory(word) for word in words[at + 1 : at + 3]]
        if name != b"normal" or None in sizes or not words[at + 3].isdigit():
            return None
    return b" ".join(words[-4:])  # there is one class, and the last counts


_YES_NO: Final = one_of(b"yes", b"no")

# Parameter -> its default, and the check of values; None = it cannot be set.
PARAMETERS: Final[dict[bytes, tuple[bytes, Check | None]]] = {
    b"requirepass": (b"", _password),
    b"unixsocket": (b"", None),
    b"logfile": (b"", None),
    b"pidfile": (b"", None),
    b"maxmemory": (b"1073741824", _memory),
    b"maxmemory-samples": (b"16", whole_number(1)),
    b"timeout": (b"0", whole_number(0)),
    b"auto-aof-rewrite-percentage": (b"100", whole_number(0)),
    b"auto-aof-rewrite-min-size": (b"67108864", _memory),
    b"slowlog-log-slower-than": (b"10000", whole_number(-1)),
    b"latency-monitor-threshold": (b"0", whole_number(0)),
    b"slowlog-max-len": (b"128", whole_number(0)),
    b"port": (b"7711", None),
    b"tcp-backlog": (b"511", None),
    b"databases": (b"16", None),
    b"maxclients": (b"10000", whole_number(1)),
    b"watchdog-period": (b"0", whole_number(0)),
    b"hz": (b"10", _hz),
    b"cluster-node-timeout": (b"15000", whole_number(0)),
    b"tcp-keepalive": (b"no", _YES_NO),
    b"no-appendfsync-on-rewrite": (b"no", None),
    b"daemonize": (b"no", None),
    b"activerehashing": (b"yes", _YES_NO),
    b"aof-rewrite-incremental-fsync": (b"yes", _YES_NO),
    b"aof-load-truncated": (b"yes", _YES_NO),
    b"aof-enqueue-jobs-once": (b"no", _YES_NO),
    b"maxmemory-policy": (b"acks", one_of(b"acks", b"noeviction")),
    b"loglevel": (b"notice", one_of(b"debug", b"verbose", b"notice", b"warning")),
    b"appendfsync": (b"everysec", one_of(b"always", b"everysec", b"no")),
    b"syslog-facility": (b"local0", None),
    b"appendonly": (b"no", _YES_NO),
    b"dir": (b"", None),
    b"client-output-buffer-limit": (b"normal 0 0 0", _buffer_limit),
    b"unixsocketperm": (b"0", None),
    b"bind": (b"", None),
}
SETTABLE: Final = frozenset([name for name, (_, check) in PARAMETERS.items() if check is not None]) | {b"dir"}


class DisqueSettings:
    """Values of a node's parameters."""

    def __init__(self, port: int, folder: str) -> None:
        self.needs_password = False  # True if only a password protects the server from other machines
        self._values = {name: value for name, (value, _) in PARAMETERS.items()}
        self._started_with = dict(self._values)
        self._values[b"port"] = b"%d" % port
        self._values[b"dir"] = folder.encode("utf-8", "surrogateescape")

    def __getitem__(self, name: bytes) -> bytes:
        return self._values[name]

    @property
    def evicts(self) -> bool:
        """True if jobs are evicted when memory is full."""
        return self._values[b"maxmemory-policy"] == b"acks"

    def matching(self, pattern: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the parameters whose names match the pattern, with their values."""
        glob = Glob(pattern)
        return ((name, value) for name, value in self._values.items() if glob.matches(name))

    def changed(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the settable parameters that differ from their values at the start."""
        return (
            (name, value)
            for name, value in self._values.items()
            if name in SETTABLE and name != b"dir" and value != self._started_with[name]
        )

    def start_with(self, name: bytes, value: bytes) -> None:
        """Set the value that a parameter has at the start, by the configuration."""
        self._values[name] = self._started_with[name] = value

    def check_settable(self, name: bytes, value: bytes) -> bytes | None:
        """`check` for a name in any case, which may be unknown."""
        return self.check(name.lower(), value) if name.lower() in SETTABLE else None

    def check(self, name: bytes, value: bytes) -> bytes | None:
        """Return a value as it would be shown; None if it is invalid."""
        if name == b"dir":
            return value if value in (b".", self._values[b"dir"]) else None
        if name == b"requirepass" and self.needs_password and not value:
            return None
        check = PARAMETERS[name][1]
        return None if check is None else check(value)

    def set(self, name: bytes, value: bytes) -> None:
        """Store a checked value."""
        if name != b"dir":
            self._values[name] = value
