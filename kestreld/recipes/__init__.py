"""Queues built on a memcached dictionary: a memcached, or kestreld's `listen.cache`. Requires pymemcache.

docs/recipes-memcached.md lists costs and guarantees, and the cases in which a queue of kestreld is the better choice.
"""

from kestreld.errors import (
    CacheAway,
    CacheRefused,
    ClaimLost,
    ConnectionLost,
    LockLost,
    LockTimeout,
    TooManyWaiting,
)
from kestreld.recipes.locking import LockedWriter, LockingQueue
from kestreld.recipes.locks import Lock
from kestreld.recipes.numbered import Claim, LogQueue, NumberedQueue, RingQueue
from kestreld.recipes.positions import MessagesMissed, Position
from kestreld.recipes.reader import LogReader
from kestreld.recipes.servers import Servers
from kestreld.recipes.sweeper import Sweeper

__all__ = [
    "CacheAway",
    "CacheRefused",
    "Claim",
    "ClaimLost",
    "ConnectionLost",
    "Lock",
    "LockLost",
    "LockTimeout",
    "LockedWriter",
    "LockingQueue",
    "LogQueue",
    "LogReader",
    "MessagesMissed",
    "NumberedQueue",
    "Position",
    "RingQueue",
    "Servers",
    "Sweeper",
    "TooManyWaiting",
]
