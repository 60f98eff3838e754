"""Queues within a process: durable ones on the engine that the server runs, and others in memory.

docs/library.md describes their use.
"""

from kestreld.config.config import QueueConfig
from kestreld.library.answer import Answer
from kestreld.library.blocking_queue import BlockingQueue, FullPolicy
from kestreld.library.concurrent_blocking_queue import ConcurrentBlockingQueue
from kestreld.library.item import QItem
from kestreld.library.journal_reader import JournalReader
from kestreld.library.journaled_blocking_queue import (
    JournaledBlockingQueue,
    Transaction,
    TransactionalJournaledBlockingQueue,
)
from kestreld.library.journaled_queue import JournaledQueue
from kestreld.library.lease import Lease
from kestreld.library.memory_queue import MemoryFigures
from kestreld.library.persistent_queue import PersistentQueue
from kestreld.library.reading import ReaderFigures
from kestreld.library.simple_blocking_queue import SimpleBlockingQueue

__all__ = [
    "Answer",
    "BlockingQueue",
    "ConcurrentBlockingQueue",
    "FullPolicy",
    "JournalReader",
    "JournaledBlockingQueue",
    "JournaledQueue",
    "Lease",
    "MemoryFigures",
    "PersistentQueue",
    "QItem",
    "QueueConfig",
    "ReaderFigures",
    "SimpleBlockingQueue",
    "Transaction",
    "TransactionalJournaledBlockingQueue",
]
