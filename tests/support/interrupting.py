"""An exception at any of the places where Python looks for signals: what a handler that raises does, one at a time.

Python looks at the start of a function, after a jump back, and after a call of what is not Python. There, and nowhere
else, `interrupted_at` raises in the code of the library, and in that of the standard library it uses.
"""

import dis
import sys
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final

PARTS: Final = ("/kestreld/", "/threading.py", "/concurrent/futures/_base.py")
LOOKS: Final = frozenset({"CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})


class Interrupted(BaseException):
    """What the handler raises."""


_after: dict[CodeType, dict[int, str]] = {}


def _looks(code: CodeType) -> dict[int, str]:
    """The offsets before which a signal may have been looked for: where one instruction behind another has it caught
    by the same handler as that.
    """
    found = _after.get(code)
    if found is None:
        found = _after[code] = {}
        handlers = dis._parse_exception_table(code)  # type: ignore[attr-defined]

        def handler(offset: int) -> object:
            return next((one.target for one in handlers if one.start <= offset < one.end), None)

        instructions = list(dis.get_instructions(code))
        for one, following in pairwise(instructions):
            target = one.argval if one.opname == "JUMP_BACKWARD" else following.offset
            if any(one.opname.startswith(name) for name in LOOKS) and handler(one.offset) == handler(target):
                found[target] = one.opname
    return found


def _is_final(frame: FrameType | None) -> bool:
    """Whether it runs for a finalizer, whose exceptions Python tells nobody of."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class _Tracer:
    def __init__(self, at: int, error: type[BaseException]) -> None:
        self._left = at
        self._error = error
        self.where = ""
        self.in_python: set[FrameType] = set()  # that have called a function of Python's own last

    def _look(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            code = frame.f_code
            self.where = f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_qualname}"
            raise self._error("interrupted")

    def begin(self, frame: FrameType, event: str, arg: Any) -> Any:
        caller = frame.f_back
        if frame.f_code.co_name == "__del__":
            return None  # what is raised there, Python reports and forgets
        if caller is not None and frame.f_code.co_name != "__init__":
            self.in_python.add(caller)
        if not any(part in frame.f_code.co_filename for part in PARTS) or _is_final(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._look(frame)
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            if frame.f_lasti in _looks(frame.f_code) and frame not in self.in_python:
                self._look(frame)
            self.in_python.discard(frame)
        return self.step


def interrupted_at(
    at: int, operation: Callable[[], object], error: type[BaseException] = Interrupted
) -> tuple[object, str] | None:
    """Do it, with an exception at the `at`th place (from 1). What it returned and "", or None and where it was raised;
    None where there is no such place.
    """
    tracer = _Tracer(at, error)
    before = sys.gettrace()
    sys.settrace(tracer.begin)
    try:
        result = operation()
    except error:
        if not tracer.where:
            raise
        return None, tracer.where
    finally:
        sys.settrace(before)
        tracer.in_python.clear()  # frames keep alive what they have in hand
    return None if not tracer.where else (result, tracer.where)
