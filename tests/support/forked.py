"""Programs of ours without the time of their imports: `python -m MODULE …`, forked by one that has imported the module.

What comes of it is a process like any other: its arguments, environment, folder, standard streams, signals and exit
code are its own, and it is a child of the tests'. Only /proc tells another command line and environment, and its Python
had started before: tests of a start, of what it imports and of signals use the fixture `installed_programs`.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.process import environment

ROOT: Final = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER: Final = 36
LENGTH: Final = struct.Struct("<I")
NEEDED: Final = {  # by each program: these, and all that is below them
    "kestrelctl": ("kestrelctl", "kestreld.client", "encodings.idna"),
    "kestreld": ("kestreld.daemon", "kestreld.server", "encodings.idna"),
    "kestreld.disque_server": ("kestreld.daemon", "kestreld.server", "encodings.idna"),
}
AT_THE_START: Final = ("PYTHON", "LANG", "LC_")  # variables that a Python reads only then

_asking = threading.Lock()
_is_wanted = sys.platform == "linux"


@contextmanager
def no_forks() -> Iterator[None]:
    """Programs that start in this block do so as they do for users."""
    global _is_wanted
    before, _is_wanted = _is_wanted, False
    try:
        yield
    finally:
        _is_wanted = before


class Launched(subprocess.Popen[Any]):
    """A Popen; forked where the command is `sys.executable -m MODULE …` of one of our programs."""

    def _execute_child(self, *positional: Any) -> None:
        execute = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(execute).bind(*positional).arguments
        (program, *arguments), variables = _program(given["args"]), given["env"]
        is_special = given["preexec_fn"] or given["pass_fds"] or given["start_new_session"]
        if not (_is_wanted and program) or is_special or _at_the_start(variables) != _at_the_start(environment()):
            execute(*positional)
            return
        ends = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        try:
            theirs = [number if end < 0 else end for number, end in enumerate((ends[0], ends[3], ends[5]))]
            request = pickle.dumps((arguments, os.path.abspath(given["cwd"] or "."), variables))
            with _asking:
                forker = _forker(program)
                _adopt(True)
                socket.send_fds(forker, [LENGTH.pack(len(request))], theirs)
                forker.sendall(request)
                (self.pid,) = LENGTH.unpack(forker.recv(LENGTH.size))
                _adopt(False)
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def run(command: Sequence[str], stdin: bytes | None, seconds: float, **options: Any) -> "Ended":
    """As subprocess.run, with what it writes."""
    streams = {"stdin": subprocess.DEVNULL if stdin is None else subprocess.PIPE, "stdout": subprocess.PIPE}
    with Launched(command, **streams, stderr=subprocess.PIPE, **options) as process:
        try:
            written = process.communicate(stdin, seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, *written)


Ended = subprocess.CompletedProcess[Any]


def _program(command: Sequence[str]) -> Sequence[str]:
    """The module and its arguments; an empty name where there is none of ours."""
    is_ours = list(command[:2]) == [sys.executable, "-m"] and command[2] in NEEDED
    return command[2:] if is_ours else [""]


def _at_the_start(variables: Mapping[str, str]) -> dict[str, str]:
    paths = (str(ROOT), os.environ.get("PYTHONPATH"))  # where who forks has found what there is to import
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(AT_THE_START) and not (name == "PYTHONPATH" and value in paths)
    }


def _adopt(is_wanted: bool) -> None:
    """Whether who is left by its parent becomes a child of this process."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, is_wanted, 0, 0, 0) == 0


@cache
def _forker(module: str) -> socket.socket:
    """To the process that has imported a program, and ends with this one."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forked", module]
    process = subprocess.Popen(command, stdin=theirs, cwd=ROOT, env=environment())
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(asked: socket.socket) -> list[str]:
    """Forks whenever it is asked to; returns in the child, with its arguments."""
    tests = os.getppid()
    while True:
        head, descriptors, _, _ = socket.recv_fds(asked, LENGTH.size, 3)
        if not head:
            os._exit(0)
        request = asked.recv(*LENGTH.unpack(head), socket.MSG_WAITALL)
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            while os.getppid() != tests:
                os.sched_yield()
            asked.sendall(LENGTH.pack(os.getpid()))
            asked.detach()  # its number is that of the standard input, and not to be closed with it
            return _become(request, descriptors)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: bytes, descriptors: list[int]) -> list[str]:
    """What a process is given when it starts."""
    arguments, folder, variables = pickle.loads(request)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(number, mode, 0 if number and old.write_through else -1, closefd=False),  # noqa: SIM115
            old.encoding,
            old.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=old.write_through,
        )
        for number, mode, old in ((0, "rb", sys.stdin), (1, "wb", sys.stdout), (2, "wb", sys.stderr))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    return list(arguments)


def _import_all(name: str) -> None:
    """A module and those below it."""
    for found in pkgutil.iter_modules(getattr(importlib.import_module(name), "__path__", ()), f"{name}."):
        if not found.name.endswith("__main__"):
            _import_all(found.name)


def _run(name: str) -> Any:
    """The program; what it calls sys.exit with."""
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code
    return 0


def _end(code: Any) -> None:
    """As Python does, but for taking apart all modules: that is three times the work of most commands."""
    if isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # Python says what is wrong
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    name = sys.argv[1]
    for needed in NEEDED[name]:
        _import_all(needed)
    gc.freeze()  # else a process that ends looks through all that there is
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv[1:] = _serve(socket.socket(fileno=0))
    _end(_run(name))
