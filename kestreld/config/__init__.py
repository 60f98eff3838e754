"""Configuration of the server: settings, users and rights, and reading them from a file.

Importing the package does not load `QueueConfig`, only a first use of it does: `kestrelctl put`, which needs nothing
but units, would spend a good part of its time on that.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kestreld.config.config import QueueConfig as QueueConfig


def __getattr__(name: str) -> Any:
    if name != "QueueConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kestreld.config.config import QueueConfig

    return QueueConfig
