"""Queues on kestrelds elsewhere: a client for any number of them that do not know each other.

docs/library.md says how it is used.
"""

from kestreld.client.cluster import KestrelCluster
from kestreld.client.queue import ClusterQueue
from kestreld.errors import ConnectionLost, ServerRefused, ServersAway

__all__ = ["ClusterQueue", "ConnectionLost", "KestrelCluster", "ServerRefused", "ServersAway"]
