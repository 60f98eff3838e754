"""Access to journals in local folders and at URLs: object storage and HDFS.

For a local path, the only extra cost is a search for "://".
"""

import configparser
import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kestreld.files import FileLayer, FileTimes
from kestreld.journal.discovery import JournalFile, find_moved
from kestrelspark.options import BadOption, option

Found = TypeVar("Found")
OPTIONS: Final = {"endpoint": "", "region": "", "credentialsfile": ""}
AS_S3: Final = {"s3a": "s3", "s3n": "s3"}
KNOWN: Final = "s3 (or s3a), gs, abfs, abfss, hdfs, and what the fsspec package knows"
READS_AT_ONCE: Final = 32
_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_KEY_NAMES: Final = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
}


@dataclass(slots=True, frozen=True)
class Storage:
    """Access to object storage; "" = as the environment says. It is part of plans and has no secrets in it.

    `credentials_file` has the format of ~/.aws/credentials and is read on the nodes that read the journals.
    """

    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""

    @property
    def files(self) -> FileLayer:
        """A FileLayer for `discover` that reads local paths and URLs."""
        return _files(self)

    def read(self, path: str) -> bytes:
        """The content of a file. Raises OSError, BadOption for an unknown scheme."""
        if "://" not in path:
            with open(path, "rb") as opened:
                return opened.read()
        return _files(self).read_operators_file(path)

    def content(self, file: JournalFile) -> bytes:
        """The content of a journal's file, even if it has been archived since it was found. Raises OSError."""
        if file.missing:
            return b""
        try:
            return self.read(file.path)
        except FileNotFoundError:
            moved = find_moved(self.files, file)
            if moved is None:
                raise
            return self.read(moved)

    def is_there(self, file: JournalFile) -> bool:
        """True if a journal's file has not been deleted."""
        return self.files.exists(file.path) or find_moved(self.files, file) is not None


ENVIRONMENT: Final = Storage()


def storage_in(options: Mapping[str, str]) -> Storage:
    """The storage that the source's options describe."""
    return Storage(*(option(options, name, default) for name, default in OPTIONS.items()))


def is_remote(path: str) -> bool:
    return "://" in path and not path.startswith("file:")


@functools.cache
def _files(storage: Storage) -> "AnyFiles":
    return AnyFiles(storage)


class AnyFiles(FileLayer):
    """Reads local files as FileLayer does, and URLs through pyarrow or fsspec. Read only."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._systems: dict[str, Any] = {}
        self._listed: dict[str, Any] = {}  # entries of the last listing, which save a request for each file

    def matching(self, pattern: str) -> list[str]:
        """Matches as from FileLayer; URLs have the scheme as normalised here."""
        if not is_remote(pattern):
            return super().matching(pattern)
        url = pattern.rstrip("/")
        scheme, rest = split_url(url)
        url = f"{scheme}://{rest}"
        if self._exists(url):
            return [url]
        return sorted(f"{scheme}://{path}" for path in self._globbed(scheme, rest.split("/")))

    def _globbed(self, scheme: str, parts: list[str]) -> list[str]:
        """Paths that match a pattern, whose first part must be a name."""
        found, last = parts[:1], len(parts) - 1
        for at, part in enumerate(parts[1:], 1):
            if not re.search(r"[*?[]", part):
                found = [f"{folder}/{part}" for folder in found]
                found = [path for path in found if self._exists(f"{scheme}://{path}")]
                continue
            found = [
                f"{folder}/{info.base_name}"
                for folder in found
                for info in self._list(f"{scheme}://{folder}", recursive=False)
                if fnmatch.fnmatchcase(info.base_name, part)
                and info.base_name.startswith(".") == part.startswith(".")
                and (at == last or not info.is_file)
            ]
        return found

    def is_dir(self, path: str) -> bool:
        return str(self._info(path).type.name) == "Directory" if is_remote(path) else super().is_dir(path)

    def is_file(self, path: str) -> bool:
        return bool(self._info(path).is_file) if is_remote(path) else super().is_file(path)

    def exists(self, path: str) -> bool:
        return self._exists(path) if is_remote(path) else super().exists(path)

    def list_dir(self, path: str) -> list[str]:
        if not is_remote(path):
            return super().list_dir(path)
        return sorted(info.base_name for info in self._list(path, recursive=False))

    def files_below(self, folder: str) -> Iterator[str]:
        if not is_remote(folder):
            yield from super().files_below(folder)
            return
        scheme, top = split_url(folder)
        infos = sorted(self._list(folder, recursive=True), key=lambda info: str(info.path))
        for info in infos:
            inside = info.path.removeprefix(top)
            if info.is_file and "/." not in inside:
                url = f"{scheme}://{info.path}"
                self._listed[url] = info
                yield url

    def size_bytes(self, path: str) -> int:
        if not is_remote(path):
            return super().size_bytes(path)
        info = self._listed.get(path) or self._info(path)
        if not info.is_file:
            raise FileNotFoundError(2, "no such object", path)
        return int(info.size)

    def times(self, path: str) -> FileTimes:
        """Times of a file; for a URL, its upload time."""
        if not is_remote(path):
            return super().times(path)
        uploaded_ns = int(self._info(path).mtime_ns or 0)
        return FileTimes(None, uploaded_ns, uploaded_ns)

    def read_start(self, path: str, size_bytes: int) -> bytes:
        if not is_remote(path):
            return super().read_start(path, size_bytes)
        with _named(path), self._open(path) as opened:
            found: bytes = opened.read_at(min(size_bytes, self.size_bytes(path)), 0)
        return found

    def read_operators_file(self, path: str) -> bytes:
        if not is_remote(path):
            return super().read_operators_file(path.removeprefix("file://"))
        with _named(path), self._open(path) as opened:
            found: bytes = opened.readall()
        return found

    def at_once(self, look: Callable[[str], Found], paths: Iterable[str]) -> Iterator[Found]:
        known = list(paths)
        if not any(map(is_remote, known)):
            yield from map(look, known)
            return
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            yield from pool.map(look, known)
        self._listed.clear()  # the entries may be outdated

    # URLs, by pyarrow

    def _open(self, url: str) -> Any:
        system, path = self._system(url)
        return system.open_input_file(path)

    def _info(self, url: str) -> Any:
        with _named(url):
            system, path = self._system(url)
            return system.get_file_info(path)

    def _exists(self, url: str) -> bool:
        return str(self._info(url).type.name) != "NotFound"

    def _list(self, url: str, *, recursive: bool) -> list[Any]:
        """Entries of a folder. Raises FileNotFoundError."""
        from pyarrow.fs import FileSelector

        with _named(url):
            system, path = self._system(url)
            found: list[Any] = system.get_file_info(FileSelector(path, recursive=recursive))
        return found

    def _system(self, url: str) -> tuple[Any, str]:
        scheme, path = split_url(url)
        where = f"{scheme}://{path.partition('/')[0]}" if scheme in ("hdfs", "abfs", "abfss") else scheme
        if where not in self._systems:
            self._systems[where] = _file_system(scheme, url, self._storage)
        return self._systems[where], _path_in(scheme, path)


def split_url(url: str) -> tuple[str, str]:
    """The normalised scheme, and the rest. Raises BadOption if the URL has credentials in it."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BadOption(f"{url}: not a URL such as s3://bucket/folder")
    scheme = found[1].lower()
    authority = found[2].partition("/")[0]
    # A secret may have a slash, before the "@".
    is_bucket = AS_S3.get(scheme, scheme) in ("s3", "gs")
    if (is_bucket and ":" in authority) or (
        "@" in authority and (scheme not in ("abfs", "abfss", "hdfs") or ":" in authority.partition("@")[0])
    ):
        raise BadOption(
            f"a URL of {scheme} must not have credentials in it: give them in the environment or a credentialsFile"
        )
    return AS_S3.get(scheme, scheme), found[2].rstrip("/")


def _path_in(scheme: str, path: str) -> str:
    """The path in the form that the file system expects."""
    if scheme == "hdfs":
        return "/" + path.partition("/")[2]
    if scheme in ("abfs", "abfss"):
        authority, _, rest = path.partition("/")
        return f"{authority.partition('@')[0]}/{rest}"
    return path


def _file_system(scheme: str, url: str, storage: Storage) -> Any:
    """The file system of a scheme. Raises BadOption if it is unknown, OSError if a required library is missing."""
    from pyarrow import fs

    if scheme == "s3":
        return fs.S3FileSystem(**s3_settings(storage))
    if scheme in ("gs", "abfs", "abfss"):
        return fs.FileSystem.from_uri(f"{scheme}://{urlsplit(url).netloc}/")[0]
    if scheme == "hdfs":
        try:
            return fs.FileSystem.from_uri(f"hdfs://{urlsplit(url).netloc}/")[0]
        except OSError as problem:
            raise OSError(
                f"hdfs needs libhdfs, Hadoop's client, on every node: install Hadoop, set HADOOP_HOME, and CLASSPATH "
                f"to what `hadoop classpath --glob` prints ({str(problem).splitlines()[0]})"
            ) from problem
    try:
        import fsspec
    except ModuleNotFoundError as problem:
        raise BadOption(f"{scheme}: not a scheme that can be read here without fsspec; known are {KNOWN}") from problem
    try:
        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme)))
    except ValueError:
        raise BadOption(f"{scheme}: no such scheme; known are {KNOWN}") from None
    except ImportError as problem:
        raise BadOption(f"{scheme}: {problem}") from problem


def s3_settings(storage: Storage) -> dict[str, Any]:
    """Arguments of pyarrow's S3FileSystem, which finds others by itself: profiles, roles of the machine.

    Raises BadOption for a credentials file that has none.
    """
    settings: dict[str, Any] = {}
    endpoint = storage.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if endpoint:
        scheme, separator, host = endpoint.rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if separator else "https"}
    region = storage.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if region:
        settings["region"] = region
    if storage.credentials_file:
        settings |= _credentials(storage.credentials_file)
    return settings


def _credentials(path: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    with open(path, encoding="utf-8") as file:
        try:
            parser.read_file(file)
        except configparser.Error:
            # The parser's own message quotes lines of the file.
            raise BadOption(f"{path}: not a file of credentials such as ~/.aws/credentials") from None
    profile = os.environ.get("AWS_PROFILE", "default")
    found = dict(parser[profile]) if parser.has_section(profile) else {}
    if not {"aws_access_key_id", "aws_secret_access_key"} <= found.keys():
        raise BadOption(f"{path}: [{profile}] must have aws_access_key_id and aws_secret_access_key")
    return {ours: found[theirs] for theirs, ours in _KEY_NAMES.items() if theirs in found}


class _named:
    """Turns errors of pyarrow into OSErrors that name the URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such object or folder", self._url) from error
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno or 5, str(error), self._url) from error
