"""Decompression of gzip and zstd input, recognised by its first bytes."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
# A piece of this size decompresses to at most 4 MiB with gzip and 128 MiB with zstd.
PIECE_BYTES: Final = 4096


def is_compressed(start: bytes) -> bool:
    return start.startswith((GZIP, ZSTD))


def inflated(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The chunks, decompressed if compressed; several streams may follow each other. Raises Failure."""
    rest = iter(chunks)
    first = next(rest, b"")
    if not is_compressed(first):
        yield from chain([first], rest)
        return
    new, error_class = (partial(zlib.decompressobj, 31), zlib.error) if first.startswith(GZIP) else _zstd(name)
    stream = new()
    try:
        for chunk in chain([first], rest):
            for at in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[at : at + PIECE_BYTES]
                while piece:
                    if stream.eof:
                        stream = new()
                    yield stream.decompress(piece)
                    piece = stream.unused_data.lstrip(b"\0") if stream.eof else b""  # gzip may be padded
    except error_class as error:
        raise Failure(ExitCode.CORRUPT, f"{name}: cannot be decompressed: {error}") from error
    if not stream.eof:
        raise Failure(ExitCode.CORRUPT, f"{name}: ends inside compressed data")


def _zstd(name: str) -> tuple[Callable[[], Any], type[Exception]]:
    """A function that makes a decompressor, and the exception that it raises. Raises Failure if Python has no zstd."""
    try:
        module = import_module("compression.zstd")  # from Python 3.14 on
        return module.ZstdDecompressor, module.ZstdError
    except ImportError:
        pass
    try:
        module = import_module("zstandard")
    except ImportError as error:
        words = "zstd requires Python 3.14 or pip install 'kestreld[zstd]'; or use zstd -dc FILE | kestrelctl import"
        raise Failure(ExitCode.IO, f"cannot read {name}: {words}") from error
    return module.ZstdDecompressor().decompressobj, module.ZstdError
