"""`kestrelctl __complete`, which the scripts in completions/ run when somebody presses Tab.

It answers within 300 ms with what it knows by then, and whatever goes wrong, it says nothing.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kestrelctl.remote.access import needs_terminal
from kestrelctl.remote.contexts import load, settle
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login, connect
from kestreld.errors import KestrelError

CONNECT_S: Final = 0.15
ANSWER_S: Final = 0.3
READ_BYTES: Final = 256 * 1024
TEXT_OPTIONS: Final = {
    "-s": "server",
    "--server": "server",
    "-c": "context",
    "--context": "context",
    "--user": "user",
    "--password-file": "password_file",
    "--ca": "ca",
    "--cert": "cert",
    "--key": "key",
}
_BLOCK: Final = re.compile(rb"^queue '([^\x00-\x20\x7f]+)' \{\n  items=(\d+)", re.MULTILINE)
_NAME: Final = re.compile(rb"^queue '([^\x00-\x20\x7f]+)' \{", re.MULTILINE)
_ADMIN: Final = re.compile(rb"^STAT admin (\S+)\r\n", re.MULTILINE)
_OWN_ARE_OVER: Final = re.compile(rb"^(STAT queue_\S+_items |END\r\n)", re.MULTILINE)
_JOURNAL: Final = re.compile(rb"([A-Za-z0-9_%-]+)\.journal")


def complete(arguments: Sequence[str]) -> int:
    """KIND, what is typed of the word so far, the words before it. Prints candidates, one a line: name, tab, words."""
    # No handler: a name server that does not answer cannot be waited for any other way.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, ANSWER_S + 0.05)
    kind, typed, *words = [*arguments, "", ""]
    candidates = {"queues": _queues, "journals": _journals, "contexts": _contexts, "readers": _readers}.get(kind)
    if candidates is not None:
        prefix = os.fsencode(typed)
        lines = [b"%b\t%b\n" % (name, note) for name, note in candidates(words) if name.startswith(prefix)]
        os.write(1, b"".join(sorted(lines)))
    return 0


def _queues(words: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
    """The queues of the servers that these words mean."""
    until_s = time.monotonic() + ANSWER_S
    try:
        way = settle(_read_options(words))
    except Failure:
        return []
    if needs_terminal(way.login):
        return []
    items: dict[bytes, int | None] = {}
    for server in way.servers:
        try:
            answer = _dump(server, way.login, until_s)
        except (OSError, Failure, KestrelError):
            continue
        counts = dict(_BLOCK.findall(answer))
        for name in _NAME.findall(answer):
            count, before = counts.get(name), items.get(name, 0)
            items[name] = int(count) + before if count is not None and before is not None else None
    return [(name, b"" if count is None else b"%d items" % count) for name, count in items.items()]


def _readers(words: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
    """The streams of the queue that these words name."""
    # As long to load as all else together.
    from http.client import HTTPException

    from kestrelctl.remote.admin import admin_connection, path_of

    try:
        way = settle(_read_options(words))
        if needs_terminal(way.login):
            return []
        admin = _admin_port(way.servers[0], way.login)
        connection = admin_connection(way.servers[0], admin, int(CONNECT_S * 1000), way.login) if admin else None
        if connection is None:
            return []
        answer, content = connection.ask("GET", path_of(_queue_among(words)))
    except (OSError, Failure, KestrelError, HTTPException):
        return []
    if answer.status != 200:
        return []
    streams = [one for one in json.loads(content)["readers"] if one["kind"] == "stream"]
    return [(os.fsencode(one["reader"]), b"%d behind" % one["behind"]) for one in streams]


def _queue_among(words: Sequence[str]) -> str:
    """The first argument behind `readers VERB`."""
    behind = list(words[words.index("readers") + 2 :]) if "readers" in words else []
    while len(behind) > 1 and behind[0].startswith("-"):
        del behind[: 2 if behind[0] in {*TEXT_OPTIONS, "--timeout"} else 1]
    return behind[0] if behind else ""


def _admin_port(server: str, login: Login) -> str:
    """Where the server says it is; "" = it does not."""
    with connect(server, login, CONNECT_S) as connected:
        connected.sendall(b"stats\r\n")
        received = b""
        # The server's own figures come first.
        while not (found := _ADMIN.search(received)) and not _OWN_ARE_OVER.search(received):
            chunk = connected.recv(READ_BYTES)
            if not chunk:
                break
            received += chunk
    return found[1].decode("ascii", "replace") if found else ""


def _contexts(words: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
    try:
        contexts = load()
    except Failure:
        return []
    return [(os.fsencode(name), os.fsencode(", ".join(context.servers))) for name, context in contexts.by_name.items()]


def _read_options(words: Sequence[str]) -> dict[str, str | bool]:
    """What they say of the server and the way in."""
    found: dict[str, str | bool] = {"tls": "--tls" in words}
    for name, value in _option_values(words):
        if not (name in ("server", "context") and value.isdecimal()):  # of `bench` these are other things
            found[name] = value if name in ("server", "context") else os.path.expanduser(value)
    return found


def _option_values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if word in TEXT_OPTIONS:
            yield TEXT_OPTIONS[word], following
        elif equals and option.startswith("--") and option in TEXT_OPTIONS:
            yield TEXT_OPTIONS[option], value
        elif word[:2] in ("-s", "-c") and len(word) > 2:
            yield TEXT_OPTIONS[word[:2]], word[2:]


def _dump(server: str, login: Login, until_s: float) -> bytes:
    """All of dump_stats, or as much as comes in time."""
    chunks: list[bytes] = []
    with connect(server, login, CONNECT_S) as connected:
        connected.sendall(b"dump_stats\r\n")
        while (left_s := until_s - time.monotonic()) > 0:
            connected.settimeout(left_s)
            try:
                chunk = connected.recv(READ_BYTES)
            except TimeoutError:
                break
            chunks.append(chunk)
            if not chunk or (b"".join(chunks[-2:])).endswith(b"END\r\n"):
                break
    return b"".join(chunks).replace(b"\r\n", b"\n")


def _journals(words: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
    """The queues that have a journal in the spool among these words."""
    for word in words:
        folder = os.fsencode(os.path.expanduser(word))
        if os.path.isdir(folder):
            found = [_JOURNAL.fullmatch(name) for name in os.listdir(folder)]
            return [(_decode(name[1]), b"journal") for name in found if name is not None]
    return []


def _decode(encoded: bytes) -> bytes:
    return re.sub(rb"%([0-9A-F]{2})", lambda code: bytes([int(code[1], 16)]), encoded)
