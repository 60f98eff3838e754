"""Clients of kestrelds on other machines: queues and jobs, on one server or several.

docs/library.md describes the use of queues, docs/jobs.md that of jobs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kestreld.client.async_cluster import AsyncClusterLease, AsyncClusterQueue, AsyncKestrelCluster
    from kestreld.client.async_jobs import AsyncJobClient
    from kestreld.client.cluster import KestrelCluster
    from kestreld.client.job_commands import Job
    from kestreld.client.jobs import JobClient
    from kestreld.client.lease import ClusterLease
    from kestreld.client.queue import ClusterQueue
    from kestreld.errors import ConnectionLost, JobRefused, ServerRefused, ServersAway

__all__ = [
    "AsyncClusterLease",
    "AsyncClusterQueue",
    "AsyncJobClient",
    "AsyncKestrelCluster",
    "ClusterLease",
    "ClusterQueue",
    "ConnectionLost",
    "Job",
    "JobClient",
    "JobRefused",
    "KestrelCluster",
    "ServerRefused",
    "ServersAway",
]


def __getattr__(name: str) -> Any:
    # Loaded lazily: a command line starts twice as fast without the modules that it does not use.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    homes = {
        "AsyncClusterLease": "kestreld.client.async_cluster",
        "AsyncClusterQueue": "kestreld.client.async_cluster",
        "AsyncJobClient": "kestreld.client.async_jobs",
        "AsyncKestrelCluster": "kestreld.client.async_cluster",
        "Job": "kestreld.client.job_commands",
        "JobClient": "kestreld.client.jobs",
        "KestrelCluster": "kestreld.client.cluster",
        "ClusterLease": "kestreld.client.lease",
        "ClusterQueue": "kestreld.client.queue",
    }
    value = globals()[name] = getattr(import_module(homes.get(name, "kestreld.errors")), name)
    return value
