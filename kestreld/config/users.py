"""Users as configured: their credentials, their rights by patterns of names, and the parser of both.

The server checks logins, see `server/accounts.py`.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kestreld.config.values import BadValue, as_clients_send_it, path_of, size_bytes_from, text_of
from kestreld.config.yaml_tree import Entry, Kind, Node
from kestreld.errors import ConfigProblem
from kestreld.files import FileLayer
from kestreld.passwords import PasswordHash

SECRET_BYTES_MAX: Final = 4096


class Right(Enum):
    """An operation that a user may be allowed on the queues, or the keys of the cache, that match a pattern.

    ADMIN on all queues includes the server's own commands and every right on the cache. CREATE is required only if
    some user has it by name; otherwise PUT or GET is enough to create a queue.
    """

    PUT = "put"
    GET = "get"
    PEEK = "peek"
    FLUSH = "flush"
    DELETE = "delete"
    ADMIN = "admin"
    CREATE = "create"


class Thing(Enum):
    """Kind of object that a right applies to."""

    QUEUE = "queue"
    CACHE = "cache"  # a key of the cache
    JOB = "job"  # a queue of jobs


Rights = frozenset[Right]
ALL: Final[Rights] = frozenset(Right)
ALL_OF_CACHE: Final[Rights] = ALL - {Right.PEEK, Right.CREATE}
ALL_OF_JOBS: Final[Rights] = ALL - {Right.CREATE}
ALL_WORD: Final = "all"
EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """A user: credentials and rights."""

    name: str
    password: PasswordHash | None = None  # None = not by password
    certificates: tuple[str, ...] = ()  # names, one of which a certificate must have; empty = not by certificate
    rights: tuple[tuple[str, Rights], ...] = ()  # pattern of queue names (latin-1 text) -> rights; all that match count
    cache_rights: tuple[tuple[str, Rights], ...] = ()  # the same of keys
    job_rights: tuple[tuple[str, Rights], ...] = ()  # the same of queues of jobs
    names_create: bool = False  # has CREATE by name, not only by "all"
    password_file: str | None = field(default=None, compare=False)  # source of the password
    rate_bytes: int | None = None  # bytes a second, of all connections in both directions; None = unlimited


def pattern_of(patterns: Iterable[str]) -> "re.Pattern[str]":
    """Combine patterns into one regular expression for the whole name; `*` stands for any characters."""
    return re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns) or "(?!)", re.S)


def read_users(node: Node, files: FileLayer) -> tuple[dict[str, UserConfig], list[ConfigProblem]]:
    """Return the users of a configuration by name, and the mistakes in their settings."""
    users: dict[str, UserConfig] = {}
    problems: list[ConfigProblem] = []
    if node.kind not in (Kind.MAPPING, Kind.NULL):
        problems.append(node.place.problem(f"users: expected a mapping of user names to their settings, not {node}"))
    certificates: dict[str, str] = {}
    for name, entry in node.entries.items():
        user = _User(name, entry, files)
        problems += user.problems
        if user.problems:
            continue
        users[name] = made = user.finish()
        for certificate in made.certificates:
            if (other := certificates.setdefault(certificate, name)) != name:
                reason = f"users.{name}: certificate name {certificate!r} is already used by {other}"
                problems.append(entry.place.problem(reason))
    return users, problems


class _User:
    """A user while being read."""

    def __init__(self, name: str, entry: Entry, files: FileLayer) -> None:
        self.name = name
        self.problems: list[ConfigProblem] = []
        self._files = files
        self._password: PasswordHash | None = None
        self._password_file: str | None = None
        self._certificates: tuple[str, ...] = ()
        self._rights: list[tuple[str, Rights]] = []
        self._cache_rights: list[tuple[str, Rights]] = []
        self._job_rights: list[tuple[str, Rights]] = []
        self._names_create = False
        self._rate_bytes: int | None = None
        readers = {
            "password": self._read_password,
            "password_file": self._read_password_file,
            "certificate": self._read_certificate,
            "rights": self._read_rights,
            "cache": self._read_cache_rights,
            "jobs": self._read_job_rights,
            "max_rate": self._read_rate,
        }
        if not re.fullmatch(r"[^\x00-\x20\x7f]{1,64}", name):
            self._problem(entry, "user name must have 1 to 64 characters and no spaces")
        elif entry.place.source.startswith("--set"):
            self._problem(entry, "set users in a file: command lines are visible to every account on the machine")
        elif entry.node.kind is not Kind.MAPPING:
            self._problem(entry, f"expected a mapping such as {{rights: {{'*': [put, get]}}}}, not {_kind(entry.node)}")
        else:
            for key, one in entry.node.entries.items():
                if (read := readers.get(key)) is None:
                    near = difflib.get_close_matches(key, readers, n=1)
                    self._problem(one, f"unknown setting {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
                    continue
                try:
                    read(one.node)
                except BadValue as bad:
                    self.problems.append(bad.node.place.problem(f"users.{name}.{key}: {bad.reason}"))
            self._check(entry)

    def _problem(self, entry: Entry, reason: str) -> None:
        self.problems.append(entry.place.problem(f"users.{self.name}: {reason}"))

    def _check(self, entry: Entry) -> None:
        given = entry.node.entries
        if "password" in given and "password_file" in given:
            self._problem(given["password_file"], "set password or password_file, not both")
        elif not {"password", "password_file", "certificate"} & given.keys():
            self._problem(entry, "no credentials: set password, password_file or certificate")
        if not {"rights", "cache", "jobs"} & given.keys():
            also = "cache for those on the cache, or jobs for those on jobs"
            self._problem(entry, f"no rights: set rights, such as {{'*': [put, get]}}, {also}")

    def finish(self) -> UserConfig:
        return UserConfig(
            name=self.name,
            password=self._password,
            password_file=self._password_file,
            certificates=self._certificates,
            rights=tuple(self._rights),
            cache_rights=tuple(self._cache_rights),
            job_rights=tuple(self._job_rights),
            names_create=self._names_create,
            rate_bytes=self._rate_bytes,
        )

    def _read_password(self, node: Node) -> None:
        # The value is never repeated: it may be a password in the place of its hash.
        try:
            self._password = PasswordHash.parse(node.text if node.kind is Kind.TEXT else "")
        except ValueError as error:
            raise BadValue(node, str(error)) from None

    def _read_password_file(self, node: Node) -> None:
        self._password_file = path = path_of(node)
        try:
            content = self._files.read_operators_file(path)[:SECRET_BYTES_MAX]
        except OSError as error:
            raise BadValue(node, f"{path}: {error.strerror}") from error
        try:
            self._password = PasswordHash.parse(content.decode("ascii", "replace").strip())
        except ValueError as error:
            raise BadValue(node, f"{path}: {error}") from None

    def _read_certificate(self, node: Node) -> None:
        expected = "a name contained in the certificate"
        names = [text_of(item, expected) for item in (node.items if node.kind is Kind.LIST else [node])]
        if not names or not all(names):
            raise BadValue(node, f"expected {expected}")
        self._certificates = tuple(names)

    def _read_rights(self, node: Node) -> None:
        self._rights = _patterns(node, ALL, "queue patterns to rights, such as {'orders*': [put, get]}")
        for entry in node.entries.values():
            words = entry.node.items if entry.node.kind is Kind.LIST else [entry.node]
            self._names_create = self._names_create or any(word.text == Right.CREATE.value for word in words)

    def _read_cache_rights(self, node: Node) -> None:
        self._cache_rights = _patterns(node, ALL_OF_CACHE, "key patterns to rights, such as {'session:*': [put, get]}")

    def _read_job_rights(self, node: Node) -> None:
        self._job_rights = _patterns(node, ALL_OF_JOBS, "patterns of job queues to rights, such as {'mail.*': [put]}")

    def _read_rate(self, node: Node) -> None:
        infinite = node.kind is Kind.TEXT and node.text == "infinite"
        self._rate_bytes = None if infinite else size_bytes_from(1024)(node)


def _patterns(node: Node, known: Rights, expected: str) -> list[tuple[str, Rights]]:
    """Return patterns with the rights, among `known` ones, on names that match them."""
    if node.kind is not Kind.MAPPING or not node.entries:
        raise BadValue(node, f"expected a mapping of {expected}")
    return [(as_clients_send_it(pattern), _rights(entry.node, known)) for pattern, entry in node.entries.items()]


def _rights(node: Node, all_rights: Rights) -> Rights:
    rights: set[Right] = set()
    for item in node.items if node.kind is Kind.LIST else [node]:
        if item.kind is Kind.TEXT and item.text == ALL_WORD:
            rights |= all_rights
            continue
        known = {right.value: right for right in Right if right in all_rights}
        if (right := known.get(text_of(item, "a right"))) is not None:
            rights.add(right)
        else:
            near = difflib.get_close_matches(item.text, known, n=1)
            more = f"; did you mean {near[0]}?" if near else ""
            raise BadValue(item, f"unknown right {item}: expected {', '.join(known)} or {ALL_WORD}{more}")
    return frozenset(rights)


def _kind(node: Node) -> str:
    # Not the text: somebody may have put a password there.
    return "a plain value" if node.kind is Kind.TEXT else str(node)
