"""What the library's queues are made with, checked where it is given."""

from kestreld import checks
from kestreld.config.config import QueueConfig, queue_name_problem
from kestreld.errors import BadQueueName


def checked_name(name: str) -> str:
    """The name of a queue. Raises TypeError or BadQueueName."""
    problem = queue_name_problem(checks.text(name, "the name of a queue", may_be_empty=True))
    if problem is not None:
        raise BadQueueName(problem)
    return name


def checked_config(config: QueueConfig | None) -> QueueConfig:
    """The configuration of a queue, None = the defaults. Raises TypeError."""
    if config is None:
        return QueueConfig()
    checks.instance(config, QueueConfig, "config")
    return config
