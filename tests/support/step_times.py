"""How long the steps of a piece of work take, none of which may hold up a turn."""

import gc
import time
from collections.abc import Callable, Iterator


def timed_steps(make: Callable[[], Iterator[object]]) -> tuple[list[object], float]:
    """What the steps of the last of three times gave, and how long the longest step took this thread, in ms.

    The best of the three counts: on a virtual machine, a thread's time includes what the host took away from it.
    """
    longest_ms = []
    for _ in range(3):
        work = make()
        gc.disable()  # a collection now and then is not of their making
        given, took_ms, started = [], 0.0, time.thread_time()
        for one in work:
            given.append(one)
            took_ms = max(took_ms, (time.thread_time() - started) * 1000)
            started = time.thread_time()
        gc.enable()
        longest_ms.append(took_ms)
    return given, min(longest_ms)
