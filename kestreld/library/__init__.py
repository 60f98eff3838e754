"""Durable queues within a process, on the engine that the server runs. docs/library.md says how it is used."""

from kestreld.config import QueueConfig
from kestreld.library.answer import Answer
from kestreld.library.item import QItem
from kestreld.library.persistent_queue import PersistentQueue

__all__ = ["Answer", "PersistentQueue", "QItem", "QueueConfig"]
