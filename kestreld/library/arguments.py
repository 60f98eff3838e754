"""Checks of the arguments from which the library's queues are made."""

from reprlib import repr as shortened
from typing import Final

from kestreld import checks
from kestreld.config.config import QueueConfig
from kestreld.config.queue_names import queue_name_problem
from kestreld.errors import BadQueueName, InvalidValue

NO_DELAY: Final[float] = 0  # compared by identity: False is not NO_DELAY


def checked_name(name: str) -> str:
    """Return the name of a queue. Raises TypeError or BadQueueName."""
    problem = queue_name_problem(checks.text(name, "queue name", may_be_empty=True))
    if problem is not None:
        raise BadQueueName(f"{problem}: {shortened(name)}")
    return name


def checked_config(config: QueueConfig | None) -> QueueConfig:
    """Return the configuration of a queue, None = the defaults. Raises TypeError, and ValueError for a server's."""
    if config is None:
        return QueueConfig()
    checks.instance(config, QueueConfig, "config")
    for name in ("idle_delete_ms", "fanout_only"):
        if getattr(config, name):
            raise InvalidValue(name, "unset: it is for servers only", getattr(config, name))
    return config
