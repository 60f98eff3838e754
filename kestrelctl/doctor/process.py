"""The server's process, found by its address, as far as the kernel lets this account inspect it."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelctl.remote.access import parse_address

LISTENING: Final = "0A"
PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A server's process. `spool`: the folder it has locked, or None; `config`: its --config, None if not given."""

    pid: int
    account: int
    spool: str | None
    config: str | None
    overrides: tuple[str, ...]
    environment: dict[str, str]
    descriptors: int
    descriptors_max: int | None
    admin: str | None  # address of its admin port, from the spool's lock file


def is_local(address: str) -> bool:
    """True if the server is on this machine."""
    at = parse_address(address)
    if at.path:
        return True
    with suppress(OSError):
        for *_, where in socket.getaddrinfo(at.host, None, type=socket.SOCK_STREAM):
            with socket.socket(socket.AF_INET6 if ":" in str(where[0]) else socket.AF_INET) as probe, suppress(OSError):
                probe.bind((where[0], 0))
                return True
    return False


def find_process(address: str) -> Process | None:
    """The process that listens on the address. None if it is not here or this account may not inspect it."""
    wanted = {f"socket:[{inode}]" for inode in _listening(address)}
    for folder in PROC.iterdir() if wanted else ():
        if folder.name.isdecimal() and wanted & set(_open_files(folder)):
            with suppress(OSError):
                return _look_at(folder)
    return None


def _listening(address: str) -> Iterator[str]:
    """Inodes of the sockets that listen on the address."""
    at = parse_address(address)
    if at.path:
        for line in _lines(PROC / "net" / "unix"):
            if line.endswith(f" {at.path}") and line.split()[3] == "00010000":
                yield line.split()[6]
        return
    for table in ("tcp", "tcp6"):
        for line in _lines(PROC / "net" / table)[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == at.port:
                yield fields[9]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _open_files(folder: Path) -> list[str]:
    found = []
    with suppress(OSError):
        for descriptor in os.listdir(folder / "fd"):
            with suppress(OSError):  # closed meanwhile
                found.append(os.readlink(folder / "fd" / descriptor))
    return found


def _look_at(folder: Path) -> Process:
    """Read a process's folder in /proc. Raises OSError."""
    files = _open_files(folder)
    words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")]
    cwd = os.readlink(folder / "cwd")
    limit = re.search(r"^Max open files\s+(\d+)", (folder / "limits").read_text(), re.MULTILINE)
    config = next(iter(_values(words, "--config")), None)
    pairs = [os.fsdecode(pair).partition("=") for pair in (folder / "environ").read_bytes().split(b"\0")]
    locks = [path for path in files if path.endswith("/.lock")]
    admin = re.search(r" admin=(\S+)", Path(locks[0]).read_text()) if locks else None
    return Process(
        int(folder.name),
        folder.stat().st_uid,
        os.path.dirname(locks[0]) if locks else None,
        None if config is None else os.path.join(cwd, config),
        tuple(_values(words, "--set")),
        {name: value for name, _, value in pairs if name},
        len(files),
        int(limit[1]) if limit is not None else None,
        admin[1] if admin is not None else None,
    )


def _values(words: list[str], option: str) -> Iterator[str]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            yield following
        elif word.startswith(f"{option}="):
            yield word.partition("=")[2]
