"""A disque.conf with the options of the command line: read at a start, rewritten by CONFIG REWRITE."""

import difflib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kestreld.errors import ConfigError, ConfigProblem
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.journal.disque_aof import AOF_NAME
from kestreld.log import Level, Log
from kestreld.server.disque import directives
from kestreld.server.disque.directives import INCLUDE, RENAME, Words
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.parser import split_line
from kestreld.server.disque.replies import quoted
from kestreld.server.disque.saved_settings import SavedSettings, replace_file
from kestreld.server.disque.settings import PARAMETERS, SETTABLE, DisqueSettings

FILE_BYTES_MAX: Final = 1024**2
DEPTH_MAX: Final = 16  # of files that include others
ADDED: Final = b"# Added by CONFIG REWRITE"
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_./:@%+,-]+")


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive. `number` is the line of the file `source`; 0 = an option of the command line."""

    source: str
    number: int
    name: bytes
    words: Words

    @property
    def place(self) -> str:
        return f"{self.source}:{self.number}" if self.number else self.source

    @property
    def key(self) -> bytes:
        """Key of the directive: of several with the same key, the last one counts."""
        return b"%b %b" % (self.name, self.words[0]) if self.name == RENAME else self.name


class _Reader:
    """Parser of files and options into directives; `problems` has all mistakes in them."""

    def __init__(self, files: FileLayer, folder: str) -> None:
        """`folder` is the working directory."""
        self._files = files
        self._folder = folder
        self.problems: list[ConfigProblem] = []

    def file(self, path: str, depth: int = 0, place: str = "") -> list[Directive]:
        try:
            if self._files.size_bytes(path) > FILE_BYTES_MAX:
                self._complain(place or path, f"{path}: file larger than {FILE_BYTES_MAX} bytes")
                return []
            content = self._files.read_operators_file(path)
        except OSError as error:
            must_be_the_systems(error)
            reason = error.strerror or str(error)
            self._complain(place or path, f"{path}: {reason}" if place else reason)
            return []
        return self.text(content, path, depth)

    def text(self, content: bytes, source: str, depth: int = 0) -> list[Directive]:
        found: list[Directive] = []
        for number, line in enumerate(content.split(b"\n"), 1):
            line = line.strip(b" \t\r\n")
            if line and not line.startswith(b"#"):
                words = split_line(line)
                if words is None:
                    self._complain(f"{source}:{number}", "unbalanced quotes")
                elif words:
                    found += self._directive(source, number, words, depth)
        return found

    def options(self, options: Sequence[tuple[str, list[bytes]]]) -> list[Directive]:
        found: list[Directive] = []
        for name, words in options:
            found += self._directive(f"--{name}", 0, [name.encode("utf-8", "surrogateescape"), *words], 0)
        return found

    def _directive(self, source: str, number: int, words: list[bytes], depth: int) -> list[Directive]:
        name = words[0].lower()
        place = f"{source}:{number}" if number else source
        shown = name.decode("utf-8", "backslashreplace")
        if name not in directives.NAMES:
            near = difflib.get_close_matches(shown, [known.decode() for known in directives.NAMES], n=1)
            self._complain(place, f"unknown directive {shown!r}" + (f"; did you mean {near[0]}?" if near else ""))
            return []
        if directives.checked(name, tuple(words[1:])) is None:
            said = b" ".join(words[1:]) if name != b"requirepass" else b""  # passwords are not logged
            reason = "invalid value" + (f" {said.decode('utf-8', 'backslashreplace')!r}" if said else "")
            reason = reason if words[1:] else "a value is missing"
            self._complain(place, f"{shown}: {reason}" if number else reason)
            return []
        if name != INCLUDE:
            return [Directive(source, number, name, tuple(words[1:]))]
        if depth == DEPTH_MAX:
            self._complain(place, f"include: more than {DEPTH_MAX} files include one another")
            return []
        path = posixpath.join(self._folder, words[1].decode("utf-8", "surrogateescape"))
        return self.file(path, depth + 1, place)

    def _complain(self, source: str, reason: str) -> None:
        self.problems.append(ConfigProblem(source, 0, 0, reason))


class DisqueConf:
    """All directives of a disque.conf and of the options. The last of several counts, and an option before the file.

    It replaces the node's `SavedSettings`. `path` is the file that CONFIG REWRITE writes.
    """

    def __init__(
        self,
        files: FileLayer,
        folder: str,
        file: str,
        options: Sequence[tuple[str, list[bytes]]] = (),
        content: bytes = b"",
    ) -> None:
        """`folder` is the working directory; `file` is an absolute path, or "" if `content` takes its place.

        Raises ConfigError.
        """
        self._files = files
        self._folder = folder
        self.path = file
        self.needs_password = False
        reader = _Reader(files, folder)
        of_file = reader.file(file) if file else reader.text(content, "standard input")
        self._directives = [*of_file, *reader.options(options)]
        if reader.problems:
            raise ConfigError(reader.problems)
        self._last = {one.key: one for one in self._directives}
        self._saved: SavedSettings | None = None

    def words(self, name: bytes) -> Words:
        """Return the value of a directive as CONFIG shows it; () = not set."""
        one = self._last.get(name)
        return () if one is None else directives.checked(name, one.words) or ()

    def text(self, name: bytes, default: str = "") -> str:
        """Return the value of a directive with one word."""
        words = self.words(name)
        return words[0].decode("utf-8", "surrogateescape") if words else default

    def problem(self, name: bytes, reason: str) -> ConfigProblem:
        """Describe a mistake in a directive, with its place."""
        one = self._last.get(name)
        return ConfigProblem(self.path or "disque-server" if one is None else one.place, 0, 0, reason)

    @property
    def dir(self) -> str:
        """Absolute path of `dir`."""
        return posixpath.normpath(posixpath.join(self._folder, self.text(b"dir", ".")))

    def in_dir(self, path: str) -> str:
        """Return the absolute path of one that is relative to `dir`."""
        return posixpath.join(self.dir, path)

    @property
    def aof_path(self) -> str:
        """Path of Disque's append-only file."""
        return self.in_dir(self.text(b"appendfilename", AOF_NAME))

    @property
    def nodes_path(self) -> str:
        """Path of Disque's nodes.conf."""
        return self.in_dir(self.text(b"cluster-config-file", "nodes.conf"))

    @property
    def backlog(self) -> int:
        return int(self.text(b"tcp-backlog", PARAMETERS[b"tcp-backlog"][0].decode()))

    @property
    def keepalive_s(self) -> int:
        """Silence after which a connection is probed, in s; 0 = never."""
        one = self._last.get(b"tcp-keepalive")
        return 0 if one is None else directives.keepalive_s(one.words[0])

    def without_effect(self) -> list[str]:
        """Return the directives that have no effect here, each with its first place."""
        found: dict[bytes, str] = {}
        for one in self._directives:
            if one.name in directives.WITHOUT_EFFECT:
                found.setdefault(one.name, f"{one.name.decode()} ({one.place})")
        return list(found.values())

    # At the start

    def apply(self, node: DisqueNode, log: Log) -> None:
        """Apply directives that are neither parameters nor part of the configuration. Raises ConfigError."""
        for one in self._directives:
            if one.name == RENAME and not node.rename_command(one.words[0].lower(), one.words[1].lower()):
                reason = "rename-command: there is no such command, or another one of that name"
                raise ConfigError([ConfigProblem(one.place, 0, 0, reason)])
        node.set_loglevel = lambda word: log.say_up_to(Level.WARNING if word == b"warning" else Level.INFO)

    def save_in(self, spool: str) -> None:
        """Have CONFIG REWRITE save changes in the spool, if there is no disque.conf."""
        if not self.path:
            self._saved = SavedSettings(self._files, spool)
            self.path = self._saved.path

    def read(self, settings: DisqueSettings) -> tuple[list[tuple[bytes, bytes]], list[str]]:
        """Return the settable parameters with their values, and mistakes in the saved ones. Raises OSError.

        Parameters that cannot be set go directly to `settings`.
        """
        found, problems = self._saved.read(settings) if self._saved is not None else ([], [])
        for name, value in parameters_of(self._directives).items():
            settings.start_with(name, value)
            if name in SETTABLE and name != b"dir":
                found.append((name, value))
        settings.start_with(b"dir", self.dir.encode("utf-8", "surrogateescape"))
        settings.needs_password = self.needs_password
        return found, problems

    def write(self, settings: DisqueSettings) -> str:
        """Execute CONFIG REWRITE; returns the reason for a failure, "" if it is done."""
        if self._saved is not None:
            return self._saved.write(settings)
        try:
            path = self._files.real_path(self.path)
            content = self._files.read_operators_file(path)
            reader = _Reader(self._files, self._folder)
            there = reader.text(content, self.path)
            if reader.problems:
                return f"Rewriting config file: {reader.problems[0]}"
            replace_file(self._files, path, rewritten(content, self.path, there, self._wanted(settings)))
        except OSError as error:
            must_be_the_systems(error)
            return f"Rewriting config file: {error.strerror}"
        return ""

    def _wanted(self, settings: DisqueSettings) -> dict[bytes, Directive]:
        """Return the file's directives by key: settable ones with their current values, others as at the start."""
        wanted = dict(self._last)
        for name in sorted(SETTABLE - {b"dir"}):
            wanted[name] = Directive("", 0, name, directives.as_written(name, settings[name]))
        return wanted


def parameters_of(given: Sequence[Directive]) -> dict[bytes, bytes]:
    """Return the parameters that directives set, as CONFIG shows them."""
    return {
        one.name: b" ".join(directives.checked(one.name, one.words) or ()) for one in given if one.name in PARAMETERS
    }


def _means(one: Directive | None, key: bytes) -> Words | None:
    """Return the value of a directive, its default if it is missing, None if there is no default."""
    if one is not None:
        return directives.checked(one.name, one.words)
    if key not in PARAMETERS:
        return None
    return directives.checked(key, directives.as_written(key, PARAMETERS[key][0]))


def rewritten(content: bytes, source: str, there: Sequence[Directive], wanted: Mapping[bytes, Directive]) -> bytes:
    """Return a file's content with the wanted directives. `there` are those of it and of the files that it includes.

    Its lines stay, in their order; of those with another value the last one is replaced, and missing ones
    are appended.
    """
    lines = content.split(b"\n")
    added: list[bytes] = []
    last = {one.key: one for one in there}
    for key, one in wanted.items():
        now = last.get(key)
        if _means(one, key) == _means(now, key):
            continue
        line = b" ".join([one.name, *[word if _PLAIN.fullmatch(word) else quoted(word) for word in one.words]])
        if now is not None and now.source == source:
            lines[now.number - 1] = line
        else:  # nowhere yet, or in a file that this one includes
            added.append(line)
    if added:
        while lines and not lines[-1].strip():
            lines.pop()
        lines += [*([] if ADDED in lines else [ADDED]), *added, b""]
    return b"\n".join(lines)
