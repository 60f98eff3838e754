"""Lines of an export file: a JSON object that names the journal, then an object for each item."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

VERSION: Final = 1
HEADER: Final = "kestrelctl_export"
FLAGS_MAX: Final = 2**32 - 1


def line_of(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape") + b"\n"


def fields_in(line: bytes, path: str, number: int) -> dict[str, Any]:
    """The fields of a line, the `number`th of the file. Raises Failure."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Failure(ExitCode.CORRUPT, f"{path}: line {number}: not JSON, or cut off") from error
    if not isinstance(fields, dict):
        raise Failure(ExitCode.CORRUPT, f"{path}: line {number}: not an object")
    return fields


def number_in(fields: dict[str, Any], key: str, path: str, line: int) -> int:
    """The number in a field, 0 if there is none. Raises Failure."""
    value = fields.get(key, 0)
    if type(value) is not int or value < 0 or (key == "flags" and value > FLAGS_MAX):
        raise Failure(ExitCode.CORRUPT, f"{path}: line {line}: {key} is {value!r}")
    return value


@contextmanager
def failing_to(do: str) -> Iterator[None]:
    """Turn an OSError into a Failure."""
    try:
        yield
    except OSError as error:
        code = ExitCode.NO_INPUT if isinstance(error, FileNotFoundError) else ExitCode.IO
        raise Failure(code, f"cannot {do}: {(error.strerror or str(error)).lower()}") from error
