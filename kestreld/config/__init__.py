"""What the server is told: settings, users and rights, and how they are read from a file.

`QueueConfig` is given out here. It is loaded when it is asked for: `kestrelctl put`, for whom units are enough, would
spend a good part of its time on that.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kestreld.config.config import QueueConfig as QueueConfig


def __getattr__(name: str) -> Any:
    if name != "QueueConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kestreld.config.config import QueueConfig

    return QueueConfig
