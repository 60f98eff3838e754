"""Forked children of the test's process: what they find, and that they end."""

import ctypes
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
PR_SET_PDEATHSIG = 1
CHILD_S = 100  # no child takes so long unless it hangs


def in_child(do: Callable[[], T]) -> T:
    """What `do` returns, or raises, in a child. A child that hangs fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, pickle.dumps(_outcome(do)))
        os._exit(0)
    os.close(writing)
    try:
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(reading, select.POLLIN)
        is_over = bool(poll.poll(CHILD_S * 1000))
        if not is_over:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert is_over, "the child hangs"
        outcome, problem = pickle.loads(os.read(reading, 1 << 16))
    finally:
        os.close(reading)
    if problem is not None:
        raise AssertionError(f"in the child: {problem}")
    found: T = outcome
    return found


def _outcome(do: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return do(), None
    except BaseException as error:  # noqa: BLE001 - the child must not go on with the parent's test
        return None, repr(error)


class Child:
    """A forked child that runs a function. It may stop or kill itself, which `stopped` and `ended` wait for."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # one that has stopped hears of no alarm
            signal.alarm(CHILD_S)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(_outcome(do), pipe)
            os._exit(0)
        os.close(writing)

    def stopped(self) -> None:
        """Returns once it has got SIGSTOP."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"ended with {status}: {self._result()}"

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def killed(self) -> None:
        """Returns once it has died of SIGKILL."""
        _, status = os.waitpid(self.pid, 0)
        assert os.WIFSIGNALED(status), f"ended with {status}: {self._result()}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        os.close(self._reading)

    def result(self) -> Any:
        """What its function returned, once it has."""
        outcome, problem = self._result()
        os.waitpid(self.pid, 0)
        if problem is not None:
            raise AssertionError(f"in the child: {problem}")
        return outcome

    def _result(self) -> Any:
        with os.fdopen(self._reading, "rb") as pipe:
            return pickle.loads(pipe.read() or pickle.dumps((None, "it was killed")))


def before_first_call(owner: type, method: str, do: Callable[[], object]) -> None:
    """In a child: `do` is called when a method is called for the first time, and then the method."""
    real = getattr(owner, method)

    def called(*arguments: Any, **named: Any) -> Any:
        setattr(owner, method, real)
        do()
        return real(*arguments, **named)

    setattr(owner, method, called)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Recording:
    """A forked child whose function says what it has done, until it is killed."""

    def __init__(self, do: Callable[[Callable[[bytes], None]], None]) -> None:
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            signal.alarm(CHILD_S)
            _outcome(lambda: do(lambda line: _write_line(writing, line)))
            os._exit(1)
        os.close(writing)
        self._lines: list[bytes] = []
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with os.fdopen(self._reading, "rb") as pipe:
            self._lines = [line.rstrip(b"\n") for line in pipe if line.endswith(b"\n")]

    def kill(self) -> list[bytes]:
        """SIGKILL; what it has said, a line each."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._reader.join()
        return self._lines


def _write_line(writing: int, line: bytes) -> None:
    os.write(writing, line + b"\n")
