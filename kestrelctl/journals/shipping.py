"""The work of `journal ship`: verified copies of closed segments in object storage, never overwritten."""

import base64
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from kestrelctl.journals.spools import reading, shown
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import say
from kestrelctl.shell.progress import progress
from kestreld.client.blocks import Cell
from kestreld.errors import JournalCorrupt
from kestreld.journal.discovery import JournalFile, discover
from kestreld.journal.records import whole_records
from kestreld.journal.segment import FOLDER_SUFFIX, decode_header

COLUMNS: Final = ["queue", "segment", "bytes", "object", "result", "problem"]
SHIPPED, PRESENT, DAMAGED, DIFFERS, GONE = "shipped", "present", "damaged", "differs", "gone"
CODES: Final = {DAMAGED: ExitCode.CORRUPT, DIFFERS: ExitCode.CORRUPT, GONE: ExitCode.TRY_AGAIN}
CHUNK_BYTES: Final = 1 << 20
_EXISTS: Final = frozenset({"PreconditionFailed", "412"})
_DENIED: Final = frozenset({"AccessDenied", "403"})
_UNKNOWN_KEYS: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})


@dataclass(slots=True)
class Shipped:
    """Outcome for a segment. `result` is one of the words above, `problem` "" = its copy exists and is equal."""

    queue: str
    segment: str
    bytes: int
    object: str
    result: str
    problem: str = ""


@dataclass(slots=True, frozen=True)
class Target:
    """A bucket of object storage and a prefix, which is "" or ends with a slash."""

    client: Any
    bucket: str
    prefix: str

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def sizes_bytes(self) -> dict[str, int]:
        """Sizes of all objects under the prefix, by key. Raises Failure."""
        found: dict[str, int] = {}
        with _answering(self.url(self.prefix)):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
                found.update((one["Key"], one["Size"]) for one in page.get("Contents", []))
        return found

    def create(self, key: str, content: bytes) -> bool:
        """Write a new object; return False if one exists already, which is left as it is. Raises Failure."""
        from botocore.exceptions import ClientError

        checksum = base64.b64encode(hashlib.sha256(content).digest()).decode()
        with _answering(self.url(key)):
            try:
                self.client.put_object(
                    Bucket=self.bucket, Key=key, Body=content, IfNoneMatch="*", ChecksumSHA256=checksum
                )
            except ClientError as problem:
                if problem.response["Error"]["Code"] in _EXISTS:
                    return False
                raise
        return True

    def digest(self, key: str) -> bytes:
        """SHA-256 of the stored object, read back. Raises Failure."""
        digest = hashlib.sha256()
        with _answering(self.url(key)):
            # Read raw: the client's own checksum error would not say what differs.
            for chunk in self.client.get_object(Bucket=self.bucket, Key=key)["Body"].iter_chunks(CHUNK_BYTES):
                digest.update(chunk)
        return digest.digest()


def open_target(url: str) -> Target:
    """Open s3://BUCKET or s3://BUCKET/PREFIX. Raises Failure."""
    scheme, separator, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:  # a secret may have a slash, before the "@"
        raise Failure(ExitCode.USAGE, "the URL must not have credentials in it: give them in the environment (AWS_…)")
    if scheme not in ("s3", "s3a") or not separator or not bucket:
        raise Failure(
            ExitCode.USAGE, f"{url}: must be s3://BUCKET/PREFIX: only S3-compatible object storage is supported"
        )
    try:
        import boto3
    except ModuleNotFoundError as problem:
        raise Failure(ExitCode.USAGE, f"{problem.name} is not installed: pip install 'kestreld[s3]'") from problem
    prefix = prefix.strip("/")
    with _answering(url):
        return Target(boto3.client("s3"), bucket, f"{prefix}/" if prefix else "")


def ship(source: str, target: Target, queue: str | None, *, deletes: bool) -> tuple[list[Shipped], int]:
    """Copy the closed segments below `source`, a spool, an archive or a folder of them.

    Returns the outcome of each, and the exit code, the highest of all. Raises Failure if nothing more can be read or
    written. `deletes`: local segments are deleted once their copy has been read back; only an archive's may be.
    """
    try:
        with reading(source):
            found = discover([source], [] if queue is None else [queue]).files
    except Failure as failure:
        if isinstance(failure.__cause__, FileNotFoundError):
            raise Failure(ExitCode.NO_INPUT, f"{source}: no such file or folder") from failure
        raise
    files = [file for file in found if not file.is_kestrel and not file.is_live]
    _say_what_stays(found)
    if deletes and any(_is_in_spool(file) for file in files):
        words = "only an archive's segments can be deleted: those of a spool belong to its kestreld; leave out --delete"
        raise Failure(ExitCode.USAGE, f"{source}: {words}")
    shipped: list[Shipped] = []
    if files:
        sizes_bytes = target.sizes_bytes()
        with progress("shipping", lambda: len(files)) as advance:
            for file in files:
                shipped.append(_ship_one(file, target, sizes_bytes))
                if deletes and not shipped[-1].problem:
                    with reading(file.path):
                        os.unlink(file.path)
                advance(1)
    return shipped, max((CODES.get(one.result, ExitCode.OK) for one in shipped), default=ExitCode.OK)


def as_row(one: Shipped) -> dict[str, Cell]:
    return asdict(one)


def _say_what_stays(found: list[JournalFile]) -> None:
    kestrels = sum(file.is_kestrel for file in found)
    if kestrels:
        say(f"{kestrels} files of Kestrel's left out: they are rewritten in place; import them first")


def _ship_one(file: JournalFile, target: Target, sizes_bytes: dict[str, int]) -> Shipped:
    """Ship one segment. Raises Failure if it can be neither read nor written."""
    key = target.prefix + _key(file)
    one = Shipped(shown(file.queue), os.path.basename(file.path), file.size_bytes, target.url(key), SHIPPED)
    with reading(file.path):
        try:
            with open(file.path, "rb") as opened:
                content = opened.read()
            _check(content, file)
        except FileNotFoundError:
            one.result, one.problem = GONE, "removed by its server in the meantime; try again"
            return one
        except JournalCorrupt as problem:
            one.result, one.problem = DAMAGED, f"byte {problem.offset}: {problem.reason}"
            return one
    if key in sizes_bytes or not target.create(key, content):
        one.result = PRESENT
    is_equal = sizes_bytes.get(key, len(content)) == len(content)
    if not is_equal or target.digest(key) != hashlib.sha256(content).digest():
        kept = (
            "it is not changed" if one.result == PRESENT else "it was damaged in transit: delete it and ship it again"
        )
        one.result, one.problem = DIFFERS, f"the stored object differs from {file.path}; {kept}"
    return one


def _check(content: bytes, file: JournalFile) -> None:
    """Raise JournalCorrupt unless every record of a closed segment is whole."""
    _, at = decode_header(content, file.path)
    end = len(content) if file.end is None else file.end
    if len(content) < end:
        raise JournalCorrupt(file.path, len(content), f"the file ends here, not at byte {end}")
    for _ in whole_records(content[:end], at, file.path):
        pass


def _is_in_spool(file: JournalFile) -> bool:
    return os.path.dirname(file.path).endswith(FOLDER_SUFFIX)


def _key(file: JournalFile) -> str:
    """Key as in an archive: <queue>/<journal_id>/<segment>, below the segment's server=NAME folder if it has one."""
    *above, folder, name = file.path.split("/")
    server = [part for part in above if part.startswith("server=")][-1:]
    queue = folder.removesuffix(FOLDER_SUFFIX) if folder.endswith(FOLDER_SUFFIX) else above[-1]
    return "/".join([*server, queue, str(file.journal_id or 0), name])


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Turn errors of object storage into Failures that name the URL."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as problem:
        code = problem.response["Error"]["Code"]
        exit_code = ExitCode.NO_RIGHTS if code in _DENIED else ExitCode.IO
        exit_code = ExitCode.AUTHENTICATION if code in _UNKNOWN_KEYS else exit_code
        exit_code = ExitCode.NO_INPUT if code == "NoSuchBucket" else exit_code
        raise Failure(exit_code, f"{url}: {problem.response['Error'].get('Message', code)} ({code})") from problem
    except (NoCredentialsError, PartialCredentialsError) as problem:
        words = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise Failure(ExitCode.AUTHENTICATION, f"{url}: {words}") from problem
    except (ConnectionError, HTTPClientError) as problem:
        raise Failure(ExitCode.UNREACHABLE, f"{url}: {problem}") from problem
    except BotoCoreError as problem:
        raise Failure(ExitCode.IO, f"{url}: {problem}") from problem
