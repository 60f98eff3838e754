"""The hidden command `kestrelctl __complete`, which the scripts in completions/ run to complete names on Tab.

It answers within 300 ms of its start with the names it has by then, and prints nothing if anything fails. A child
process asks the servers: it outlives the answer and keeps names that arrive later for the next Tab.
"""

import json
import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Final

from kestrelctl.remote.access import needs_terminal
from kestrelctl.remote.contexts import JOBS_DEFAULT, Way, load, settle, settle_beside
from kestrelctl.shell.exit_codes import Failure
from kestrelctl.shell.output import counted
from kestreld.client.access import Login, connect
from kestreld.errors import KestrelError

CONNECT_S: Final = 0.15  # for each of several servers
ANSWER_S: Final = 0.3
LATE_S: Final = 3.0  # for an answer that is kept for the next Tab
KEPT_S: Final = 60
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
_IS_A_WORD: Final = re.compile(rb"[^\x00-\x20\x7f]+")
_JOURNAL: Final = re.compile(rb"([A-Za-z0-9_%-]+)\.journal")


Candidates = dict[bytes, bytes]  # names, with words on each


def complete(arguments: Sequence[str]) -> int:
    """Print the candidates for a word, one a line: name, tab, note.

    `arguments`: the kind of name, the part of the word typed so far, the words before it.
    """
    until_s = time.monotonic() + ANSWER_S
    kind, typed, *words = [*arguments, "", ""]
    candidates: Candidates = {}
    if kind in ("journals", "contexts"):
        candidates = dict(_journals(words) if kind == "journals" else _contexts())
    elif (ask := {"queues": _queues, "readers": _readers, "job-queues": _job_queues}.get(kind)) is not None:
        with suppress(Failure):
            options = _read_options(words)
            way = settle_beside(options, "jobs", JOBS_DEFAULT) if kind == "job-queues" else settle(options)
            if not needs_terminal(way.login):
                candidates = _asked(kind, ask, way, _queue_among(words) if kind == "readers" else "", until_s)
    prefix = os.fsencode(typed)
    os.write(1, b"".join(sorted(line for line in _lines(candidates) if line.startswith(prefix))))
    return 0


def _lines(candidates: Candidates) -> list[bytes]:
    return [b"%b\t%b\n" % (name, note) for name, note in candidates.items()]


def _candidates(lines: bytes) -> Candidates:
    found = [line.split(b"\t", 1) for line in lines.splitlines()]
    return {each[0]: each[1] for each in found if len(each) == 2}


# Answers of the servers, new and kept


Asking = Callable[[Way, str, float], tuple[Candidates, bool]]  # True = these are all names


def _asked(kind: str, ask: Asking, way: Way, queue: str, until_s: float) -> Candidates:
    """Names from the servers if they answer in time. If some are missing, names of the last answer are added."""
    kept = _Kept.of(kind, way, queue)
    before = kept.read() if kept is not None else {}
    ours, childs = os.pipe()
    if os.fork() == 0:
        # The default action, not a handler: nothing else ends a wait for a name server that does not answer.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LATE_S if kept is not None else ANSWER_S)
        try:
            os.close(ours)
            for standard in (1, 2):  # the shell reads them to their end
                os.dup2(os.open(os.devnull, os.O_WRONLY), standard)
            found, is_all = ask(way, queue, until_s)
            is_late = time.monotonic() >= until_s
            with suppress(BrokenPipeError):
                os.write(childs, b"".join(_lines(found if is_all else before | found)))
            os.close(childs)
            if kept is not None:
                if is_late and not is_all:
                    found, is_all = ask(way, queue, time.monotonic() + LATE_S)
                if found and (is_all or not before):
                    kept.write(found)
        finally:
            os._exit(0)
    os.close(childs)
    received = bytearray()
    while select.select([ours], [], [], max(until_s + 0.05 - time.monotonic(), 0))[0]:
        chunk = os.read(ours, READ_BYTES)
        if not chunk:
            return _candidates(bytes(received))
        received += chunk
    return before


class _Kept:
    """The names of the last answer, in the user's XDG_RUNTIME_DIR, which is emptied when they log out."""

    def __init__(self, path: str, key: bytes) -> None:
        """`key`, the first line of the file, has the question and its servers."""
        self._path = path
        self._key = key

    @classmethod
    def of(cls, kind: str, way: Way, queue: str) -> "_Kept | None":
        """None if the user has no such folder of their own."""
        folder = os.environ.get("XDG_RUNTIME_DIR", "")
        try:
            found = os.stat(folder)
        except OSError:
            return None
        if not folder.startswith("/") or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return None
        login = way.login
        key = [way.servers, queue, login.user, login.tls, login.ca, login.cert, login.key]
        return cls(f"{folder}/kestrelctl-{kind}", json.dumps(key).encode() + b"\n")

    def read(self) -> Candidates:
        """The names, unless they are older than a minute or of another question."""
        try:
            with open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
                if 0 <= age_s < KEPT_S and file.readline() == self._key:
                    return _candidates(file.read())
        except OSError:
            pass
        return {}

    def write(self, candidates: Candidates) -> None:
        beside = f"{self._path}.{os.getpid()}"
        with suppress(OSError):
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(self._key + b"".join(_lines(candidates)))
            os.replace(beside, self._path)


def _queues(way: Way, _: str, until_s: float) -> tuple[Candidates, bool]:
    """The queues of the servers, and True if these are all."""
    items: dict[bytes, int | None] = {}
    is_all = True
    for server in way.servers:
        connect_s = CONNECT_S if len(way.servers) > 1 else max(until_s - time.monotonic(), CONNECT_S)
        try:
            answer = _dump(server, way.login, connect_s, until_s)
        except (OSError, Failure, KestrelError):
            is_all = False
            continue
        is_all = is_all and answer.endswith(b"END\n")
        counts = dict(_BLOCK.findall(answer))
        for name in _NAME.findall(answer):
            count, before = counts.get(name), items.get(name, 0)
            items[name] = int(count) + before if count is not None and before is not None else None
    return {name: b"" if count is None else counted(count, "item").encode() for name, count in items.items()}, is_all


def _job_queues(way: Way, _: str, until_s: float) -> tuple[Candidates, bool]:
    """The queues of jobs of the node, and True if these are all."""
    from kestreld.client import job_commands
    from kestreld.client.job_connection import JobConnection

    found: Candidates = {}
    answer_ms = max(int((until_s - time.monotonic()) * 1000), 1)
    with closing(JobConnection(way.servers[0], way.login, answer_ms)) as node:
        cursor = ""
        while cursor != "0" and time.monotonic() < until_s:
            try:
                cursor, names = node.ask(job_commands.qscan(cursor or "0"))
            except (OSError, Failure, KestrelError):
                break
            found |= {name: b"" for name in names if _IS_A_WORD.fullmatch(name)}
    return found, cursor == "0"


def _readers(way: Way, queue: str, until_s: float) -> tuple[Candidates, bool]:
    """The streams of the queue, and True if these are all."""
    # Imported here: this takes as long to load as everything else together.
    from http.client import HTTPException

    from kestrelctl.remote.admin import admin_connection, path_of

    answer_s = max(until_s - time.monotonic(), CONNECT_S)
    try:
        admin = _admin_port(way.servers[0], way.login, answer_s)
        connection = admin_connection(way.servers[0], admin, int(answer_s * 1000), way.login) if admin else None
        if connection is None:
            return {}, True
        answer, content = connection.ask("GET", path_of(queue))
    except (OSError, Failure, KestrelError, HTTPException):
        return {}, False
    if answer.status != 200:
        return {}, True
    streams = [one for one in json.loads(content)["readers"] if one["kind"] == "stream"]
    return {os.fsencode(one["reader"]): b"%d behind" % one["behind"] for one in streams}, True


def _queue_among(words: Sequence[str]) -> str:
    """The first argument after `readers VERB`."""
    behind = list(words[words.index("readers") + 2 :]) if "readers" in words else []
    while len(behind) > 1 and behind[0].startswith("-"):
        del behind[: 2 if behind[0] in {*TEXT_OPTIONS, "--timeout"} else 1]
    return behind[0] if behind else ""


def _admin_port(server: str, login: Login, timeout_s: float) -> str:
    """Address of the admin port as the server reports it; "" if it reports none."""
    with connect(server, login, timeout_s) as connected:
        connected.sendall(b"stats\r\n")
        received = b""
        # The server's own figures come first.
        while not (found := _ADMIN.search(received)) and not _OWN_ARE_OVER.search(received):
            chunk = connected.recv(READ_BYTES)
            if not chunk:
                break
            received += chunk
    return found[1].decode("ascii", "replace") if found else ""


def _contexts() -> Iterable[tuple[bytes, bytes]]:
    try:
        contexts = load()
    except Failure:
        return []
    return [(os.fsencode(name), os.fsencode(", ".join(context.servers))) for name, context in contexts.by_name.items()]


def _read_options(words: Sequence[str]) -> dict[str, str | bool]:
    """The options among the words that name the server and the login."""
    found: dict[str, str | bool] = {"tls": "--tls" in words}
    for name, value in _option_values(words):
        if not (name in ("server", "context") and value.isdecimal()):  # options of `bench` with the same names
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


def _dump(server: str, login: Login, connect_s: float, until_s: float) -> bytes:
    """The reply to dump_stats, or the part of it that arrives in time."""
    chunks: list[bytes] = []
    with connect(server, login, connect_s) as connected:
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
    """The queues with a journal in the first folder among the words."""
    for word in words:
        folder = os.fsencode(os.path.expanduser(word))
        if os.path.isdir(folder):
            found = [_JOURNAL.fullmatch(name) for name in os.listdir(folder)]
            return [(_decode(name[1]), b"journal") for name in found if name is not None]
    return []


def _decode(encoded: bytes) -> bytes:
    return re.sub(rb"%([0-9A-F]{2})", lambda code: bytes([int(code[1], 16)]), encoded)
