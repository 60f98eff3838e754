"""Threads, locks and sockets of the system, as Python had them before gevent or eventlet patched it.

A thread of our own uses these, so that it goes on while a greenlet computes and lets no other one run.
"""

import sys
from importlib import import_module
from typing import Any


def is_patched() -> bool:
    """True if `threading` makes greenlets: what they wait for must not be asked of a thread of the system."""
    return original("_thread", "start_new_thread") is not import_module("_thread").start_new_thread


def original(module: str, name: str) -> Any:
    """Return what a module has of that name where nothing is patched."""
    if (gevent := sys.modules.get("gevent.monkey")) is not None:
        return gevent.get_original(module, name)
    if (eventlet := sys.modules.get("eventlet.patcher")) is not None and eventlet.is_monkey_patched("thread"):
        return getattr(eventlet.original(module), name)
    return getattr(import_module(module), name)
