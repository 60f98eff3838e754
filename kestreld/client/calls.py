"""Calls: what a client does with its servers, as generators of steps, which do no I/O themselves.

Whoever carries a call out does each step that it yields and sends back the outcome, or throws the KestrelError that
came of it into the call. So a thread and an event loop have the same call, and a test can have any outcome.
"""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import update_wrapper
from inspect import signature
from typing import Any, TypeVar, get_args

from kestreld.errors import KestrelError

S = TypeVar("S")  # the steps
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Call = Generator[S, Any, T]


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait for some seconds, or until the client is closed."""

    seconds: float


def carry_out(call: Call[S, T], take: Callable[[S], object]) -> T:
    """Carry a call out in this thread. `take` does a step."""
    try:
        step = call.send(None)
        while True:
            try:
                outcome = take(step)
            except KestrelError as problem:
                step = call.throw(problem)
            else:
                step = call.send(outcome)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


async def carry_out_in_loop(call: Call[S, T], take: Callable[[S], Awaitable[object]]) -> T:
    """Carry a call out in this task. `take` does a step."""
    try:
        step = call.send(None)
        while True:
            try:
                outcome = await take(step)
            except KestrelError as problem:
                step = call.throw(problem)
            else:
                step = call.send(outcome)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


def documented(method: F, call: Callable[..., Any]) -> F:
    """Give a method that carries out a call the name, docstring and signature of that, with the call's result."""
    update_wrapper(method, call)
    del method.__wrapped__  # type: ignore[attr-defined]  # it has another first parameter and result
    own = signature(call)
    method.__signature__ = own.replace(  # type: ignore[attr-defined]
        return_annotation=get_args(own.return_annotation)[-1]
    )
    return method
