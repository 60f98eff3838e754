"""Functions for programs that send tasks."""

from typing import Any, Final

from kestreld.integrations.celery.messages import task_key
from kestreld.integrations.celery.names import level_of, queue_of

RETRIES_MAX: Final = 10


def cancel(result: Any, queue: str | None = None) -> bool:
    """Cancel a task that waits for its `countdown` or `eta`, or for a retry. False = none is waiting.

    `result` is what `apply_async` returned. `queue` is the name of the queue that it was sent to, by default the
    app's default queue. Finds the first 10 retries.
    """
    app = result.app
    name = queue_of(queue or app.conf.task_default_queue)
    with app.connection_for_write() as connection:
        broker = connection.default_channel.broker
        levels = [level_of(name, step) for step in broker.settings.priority_steps]
        keys = [task_key(result.id, retries) for retries in range(RETRIES_MAX + 1)]
        return any(broker.cancel(level, key) for key in keys for level in levels)
