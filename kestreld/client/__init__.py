"""Queues on kestrelds elsewhere: a client for any number of them that do not know each other.

docs/library.md says how it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kestreld.client.cluster import KestrelCluster
    from kestreld.client.lease import ClusterLease
    from kestreld.client.queue import ClusterQueue
    from kestreld.errors import ConnectionLost, ServerRefused, ServersAway

__all__ = ["ClusterLease", "ClusterQueue", "ConnectionLost", "KestrelCluster", "ServerRefused", "ServersAway"]


def __getattr__(name: str) -> Any:
    # A command line starts twice as fast without what it does not use of this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    homes = {
        "KestrelCluster": "kestreld.client.cluster",
        "ClusterLease": "kestreld.client.lease",
        "ClusterQueue": "kestreld.client.queue",
    }
    value = globals()[name] = getattr(import_module(homes.get(name, "kestreld.errors")), name)
    return value
