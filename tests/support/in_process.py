"""kestrelctl in the process of the tests, for those that ask what it does: nine tenths of what a start of it takes is
neither the command nor looked at.

It finds descriptors, variables and arguments as in a process of its own, standard output and error being files, and
leaves none of them. What has to do with processes stays one: what runs commands, is stopped by signals or measures.
"""

import io
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from kestrelctl import app
from tests.support import forked

PROCESSES: Final = frozenset({"__complete", "bench", "--exec", "shutdown", "spark", "start", "top", "watch", "web"})
_one_at_a_time = threading.Lock()


def can_run(arguments: Sequence[str], variables: Mapping[str, str]) -> bool:
    return (
        bool(arguments)
        and PROCESSES.isdisjoint(word.partition("=")[0] for word in arguments)
        and forked.is_wanted(variables)
        and os.environ.get("TZ") == variables.get("TZ")
        and threading.current_thread() is threading.main_thread()
        and not _one_at_a_time.locked()
    )


def run(arguments: Sequence[str], stdin: bytes, variables: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """The exit code, and what it writes to standard output and to standard error."""
    with _one_at_a_time, ExitStack() as stack:
        files = [stack.enter_context(open(os.memfd_create(name), "w+b", 0)) for name in ("stdin", "stdout", "stderr")]
        files[0].write(stdin)
        files[0].seek(0)
        with _streams([file.fileno() for file in files]), _variables(variables), _arguments(arguments):
            code = int(app.run(list(arguments)))
            sys.stdout.flush()
        for file in files:
            file.seek(0)
        return code, files[1].read(), files[2].read()


@contextmanager
def _streams(descriptors: Sequence[int]) -> Iterator[None]:
    names = ("stdin", "stdout", "stderr")
    kept = [os.dup(number) for number in range(3)]
    before = [(getattr(sys, name), getattr(sys, f"__{name}__")) for name in names]
    for number, name in enumerate(names):
        os.dup2(descriptors[number], number)
        opened = io.TextIOWrapper(
            open(number, "wb" if number else "rb", closefd=False),  # noqa: SIM115
            "utf-8",
            "backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2,
        )
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    try:
        yield
    finally:
        for number, name in enumerate(names):
            os.dup2(kept[number], number)
            os.close(kept[number])
            for written, value in zip((name, f"__{name}__"), before[number], strict=True):
                setattr(sys, written, value)


@contextmanager
def _variables(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, ["kestrelctl", *arguments]
    try:
        yield
    finally:
        sys.argv = before
