"""The directives of a disque.conf and their syntax; settings.py has the parameters that CONFIG can set."""

import re
from collections.abc import Callable
from typing import Final

from kestreld.server.disque.settings import PARAMETERS, Check, capped_hz, one_of, whole_number

Words = tuple[bytes, ...]

INCLUDE: Final = b"include"
RENAME: Final = b"rename-command"
BUFFER_LIMIT: Final = b"client-output-buffer-limit"
BIND: Final = b"bind"
BIND_MAX: Final = 16  # addresses
PORT_MAX: Final = 65_535
REPLICATE_MAX: Final = 65_535
KEEPALIVE_S: Final = b"60"  # where CONFIG has turned it on
KEEPALIVE_S_MAX: Final = 32_767  # tcp(7)
_YES_NO: Final = one_of(b"yes", b"no")
_FACILITIES: Final = (b"user", *[b"local%d" % number for number in range(8)])

# Allowed in a disque.conf, but without effect on this server.
WITHOUT_EFFECT: Final = frozenset(
    [
        b"activerehashing", b"aof-rewrite-incremental-fsync", BUFFER_LIMIT, b"databases",
        b"hz", b"maxmemory-samples", b"no-appendfsync-on-rewrite", b"pidfile", b"syslog-enabled", b"syslog-facility",
        b"syslog-ident", b"watchdog-period",
    ]
)  # fmt: skip


def _filled(value: bytes) -> bytes | None:
    return value or None


def _file_name(value: bytes) -> bytes | None:
    return value if value not in (b"", b".", b"..") and b"/" not in value else None


def _mode(value: bytes) -> bytes | None:
    return value if re.fullmatch(rb"[0-7]{1,4}", value) and int(value, 8) <= 0o777 else None


def _keepalive(value: bytes) -> bytes | None:
    seconds = whole_number(0, KEEPALIVE_S_MAX)(value)
    return _YES_NO(value) if seconds is None else b"no" if seconds == b"0" else b"yes"


def keepalive_s(value: bytes) -> int:
    """Return the seconds of a valid tcp-keepalive; 0 = it is off."""
    words = {b"yes": KEEPALIVE_S, b"no": b"0"}
    return int(words.get(value.lower(), value))


def _hz(value: bytes) -> bytes | None:
    found = whole_number(-1 << 62)(value)
    return None if found is None else capped_hz(int(found))


# Directives with one word: those of a file only, and those whose syntax there differs from CONFIG's.
_OF_FILES: Final[dict[bytes, Check]] = {
    b"appendfilename": _file_name,
    b"cluster-announce-bus-port": whole_number(0, PORT_MAX),
    b"cluster-announce-ip": _filled,
    b"cluster-announce-port": whole_number(0, PORT_MAX),
    b"cluster-config-file": _filled,
    b"cluster-port": whole_number(0, PORT_MAX),
    b"cluster-secret-file": bytes,
    b"daemonize": _YES_NO,
    b"databases": whole_number(1),
    b"dir": _filled,
    b"hz": _hz,
    b"jobs-min-replicate": whole_number(0, REPLICATE_MAX),
    b"logfile": bytes,
    b"no-appendfsync-on-rewrite": _YES_NO,
    b"pidfile": bytes,
    b"port": whole_number(0, PORT_MAX),
    b"syslog-enabled": _YES_NO,
    b"syslog-facility": one_of(*_FACILITIES),
    b"syslog-ident": bytes,
    b"tcp-backlog": whole_number(0, PORT_MAX),
    b"tcp-keepalive": _keepalive,
    b"tls-auth-clients": one_of(b"yes", b"no", b"optional"),
    b"tls-ca-cert-file": bytes,
    b"tls-cert-file": bytes,
    b"tls-cluster": _YES_NO,
    b"tls-key-file": bytes,
    b"tls-port": whole_number(0, PORT_MAX),
    b"unixsocket": bytes,
    b"unixsocketperm": _mode,
    INCLUDE: _filled,
}
_ONE_WORD: Final = {name: check for name, (_, check) in PARAMETERS.items() if check is not None} | _OF_FILES
_MANY_WORDS: Final[dict[bytes, tuple[int, int, Callable[[Words], bool]]]] = {
    BIND: (1, BIND_MAX, lambda words: all(words)),
    BUFFER_LIMIT: (4, 4, lambda words: _ONE_WORD[BUFFER_LIMIT](b" ".join(words)) is not None),
    RENAME: (2, 2, lambda words: bool(words[0])),
}
NAMES: Final = frozenset(_ONE_WORD) | frozenset(_MANY_WORDS)


def checked(name: bytes, words: Words) -> Words | None:
    """Return the value of a known directive; None if its syntax is wrong."""
    if name in _MANY_WORDS:
        least, most, fits = _MANY_WORDS[name]
        return words if least <= len(words) <= most and fits(words) else None
    value = _ONE_WORD[name](words[0]) if len(words) == 1 else None
    return None if value is None else (value,)


def as_written(name: bytes, value: bytes) -> Words:
    """Return the words by which a file sets the value that CONFIG shows."""
    if name == b"tcp-keepalive":
        return (KEEPALIVE_S if value == b"yes" else b"0",)
    return tuple(value.split()) if name == BUFFER_LIMIT else (value,)
