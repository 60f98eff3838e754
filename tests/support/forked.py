"""Programs of ours without the time of their imports: `python -m MODULE …`, forked by one that has imported the module.

What comes of it is a process like any other: its arguments, environment, folder, standard streams, signals and exit
code are its own, and it is a child of the tests'. Only /proc tells another command line and environment, and its Python
had started before: tests of a start, of what it imports and of signals use the fixture `installed_programs`.

A shell has `kestrelctl` forked by `stand_in`, which remains as the process that the shell sees.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import marshal
import os
import pickle
import pkgutil
import runpy
import select
import shlex
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

from tests.support import short_paths
from tests.support.process import TICKS_PER_S, environment

ROOT: Final = Path(__file__).parents[2]
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
LENGTH: Final = struct.Struct("<I")
NEEDED: Final = {  # by each program: these, and all that is below them
    "kestrelctl": ("kestrelctl", "kestreld.client", "encodings.idna"),
    "kestreld": ("kestreld.daemon", "kestreld.server", "kestreld.config", "encodings.idna"),
    "kestreld.disque_server": ("kestreld.daemon", "kestreld.server", "kestreld.config", "encodings.idna"),
}
AT_THE_START: Final = ("PYTHON", "LANG", "LC_")  # variables that a Python reads only then

DESCRIPTORS_MAX: Final = 1024  # of who forks
NOT_STARTED: Final = 0  # in the place of a status and 1
LISTENING: Final = "kestrelctl"  # who shells ask for it

_asking = threading.Lock()
_is_wanted = sys.platform == "linux"


@contextmanager
def no_forks() -> Iterator[None]:
    """Programs that start in this block do so as they do for users."""
    global _is_wanted
    before, _is_wanted = _is_wanted, False
    path = _door()[1]
    if before:
        path.rename(path.with_suffix(".closed"))
    try:
        yield
    finally:
        _is_wanted = before
        if before:
            path.with_suffix(".closed").rename(path)


def is_wanted(variables: Mapping[str, str]) -> bool:
    """Whether a program may start otherwise than it does for users: in that environment its Python would be as here."""
    return _is_wanted and _at_the_start(variables) == _at_the_start(environment())


def program() -> str:
    """A shell script that is kestrelctl."""
    python = shlex.quote(sys.executable)
    if not _is_wanted:
        return f'#!/bin/sh\nexec {python} -m kestrelctl "$@"\n'
    _forker(LISTENING)
    path, quick = shlex.quote(str(_door()[1])), shlex.quote(os.path.realpath(sys.executable))
    stand_in = shlex.quote(str(ROOT / "tests" / "support" / "stand_in.py"))
    return (
        f'#!/bin/sh\n[ -S {path} ] && exec {quick} -I -S {stand_in} {path} {python} "$@"\n'
        f'exec {python} -m kestrelctl "$@"\n'
    )


def spent_s() -> float:
    """The processor time of those that fork, and of what shells have had forked: it does not count as children's."""
    return sum(map(_processor_s, _forkers))


class Launched(subprocess.Popen[Any]):
    """A Popen; forked where the command is `sys.executable -m MODULE …` of one of our programs."""

    def _execute_child(self, *positional: Any) -> None:
        execute = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(execute).bind(*positional).arguments
        (program, *arguments), variables = _program(given["args"]), given["env"]
        is_special = given["preexec_fn"] or given["pass_fds"] or given["start_new_session"]
        if not program or is_special or not is_wanted(variables):
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


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S


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


_forkers: list[int] = []


@cache
def _door() -> tuple[socket.socket, Path]:
    """Where shells ask, and its path."""
    listener, path = socket.socket(socket.AF_UNIX), short_paths.new_folder() / "s"
    listener.bind(str(path))
    listener.listen(100)
    return listener, path


@cache
def _forker(module: str) -> socket.socket:
    """To the process that has imported a program, and ends with this one."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forked", module]
    passed = [_door()[0].fileno()] if module == LISTENING else []
    command += map(str, passed)
    process = subprocess.Popen(command, stdin=theirs, cwd=ROOT, env=environment(), pass_fds=passed)
    theirs.close()
    if passed:
        _door()[0].close()  # who asks when nobody listens any more starts as for users
    _forkers.append(process.pid)
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


class _Forking:
    """What who forks waits for: the tests, which ask for children of theirs, and stand-ins, which await their ends."""

    def __init__(self, tests: socket.socket, listener: socket.socket | None) -> None:
        self._tests = tests
        self._listener = listener
        self._stand_ins: dict[int, tuple[socket.socket, int, int]] = {}  # by what is polled; its child, and the pidfd
        self._poll = select.poll()
        for one in (tests, listener):
            if one is not None:
                self._poll.register(one, select.POLLIN)

    def serve(self) -> list[str]:
        """Returns in a child, with its arguments."""
        while True:
            for ready, _ in self._poll.poll():
                if ready == self._tests.fileno():
                    arguments = self._fork_for_tests()
                elif self._listener is not None and ready == self._listener.fileno():
                    arguments = self._fork_for_stand_in(self._listener.accept()[0])
                else:
                    arguments = self._look_after(ready)
                if arguments is not None:
                    return arguments

    def _fork_for_tests(self) -> list[str] | None:
        head, descriptors, _, _ = socket.recv_fds(self._tests, LENGTH.size, 3)
        if not head:
            os._exit(0)
        request = self._tests.recv(*LENGTH.unpack(head), socket.MSG_WAITALL)
        tests = os.getppid()
        between = os.fork()
        if not between:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == middle:
                os.sched_yield()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing stays of tests that are killed
            if os.getppid() != tests:
                os._exit(1)  # they have been
            self._tests.sendall(LENGTH.pack(os.getpid()))
            self._leave()
            arguments, folder, variables = pickle.loads(request)
            return _become(arguments, variables, dict(enumerate(descriptors)), folder)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _fork_for_stand_in(self, asking: socket.socket) -> list[str] | None:
        head, passed, _, _ = socket.recv_fds(asking, LENGTH.size, 4)
        length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
        request = asking.recv(length, socket.MSG_WAITALL) if length else b""
        if not passed or not length or len(request) < length:  # it has been ended meanwhile
            for descriptor in passed:
                os.close(descriptor)
            asking.close()
            return None
        folder, *descriptors = passed
        numbers, words, given, session, umask, ignored = marshal.loads(request)
        arguments = [os.fsdecode(word) for word in words]
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
        # In a session of its own it has another terminal, which a completion does not care for.
        is_here = session == os.getsid(0) or arguments[:1] == ["__complete"]
        pid = os.fork() if is_here and is_wanted(variables) else -1
        if not pid:
            asking.detach()
            self._leave()
            os.umask(umask)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            return _become(arguments, variables, dict(zip(numbers, descriptors, strict=True)), folder)
        for descriptor in (folder, *descriptors):
            os.close(descriptor)
        if pid < 0:
            asking.sendall(LENGTH.pack(NOT_STARTED))
            asking.close()
        else:
            ending = os.pidfd_open(pid)
            for one in (asking.fileno(), ending):
                self._poll.register(one, select.POLLIN)
                self._stand_ins[one] = (asking, pid, ending)
        return None

    def _look_after(self, ready: int) -> None:
        if ready not in self._stand_ins:
            return  # it was ready for the second time
        asking, pid, ending = self._stand_ins[ready]
        if ready == ending:
            for one in (asking.fileno(), ending):
                self._poll.unregister(one)
                del self._stand_ins[one]
            with suppress(OSError):
                asking.sendall(LENGTH.pack(os.waitpid(pid, 0)[1] + 1))
            asking.close()
            os.close(ending)
        else:
            for number in asking.recv(100) or [signal.SIGKILL]:
                os.kill(pid, number)

    def _leave(self) -> None:
        """In a child: their numbers are not to be closed with them, the tests' is that of the standard input."""
        for one in (self._tests, self._listener, *(asking for asking, _, _ in self._stand_ins.values())):
            if one is not None:
                one.detach()


def _become(arguments: list[str], variables: dict[str, str], streams: dict[int, int], folder: int | str) -> list[str]:
    """What a process is given when it starts."""
    os.chdir(folder)
    for number in range(3):
        if number in streams:
            os.dup2(streams[number], number)
        else:
            os.close(number)
    os.closerange(3, DESCRIPTORS_MAX)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(number, mode, 0 if number and old.write_through else -1, closefd=False),  # noqa: SIM115
            old.encoding,
            old.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=old.write_through,
        )
        if number in streams
        else None
        for number, mode, old in ((0, "rb", sys.stdin), (1, "wb", sys.stdout), (2, "wb", sys.stderr))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    return arguments


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
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    name = sys.argv[1]
    for needed in NEEDED[name]:
        _import_all(needed)
    gc.freeze()  # else a process that ends looks through all that there is
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    listener = socket.socket(fileno=int(sys.argv[2])) if sys.argv[2:] else None
    sys.argv[1:] = _Forking(socket.socket(fileno=0), listener).serve()
    _end(_run(name))
