"""Workers of Celery: what they do for transports that Celery knows, and would leave out for this one."""

import sys
from types import FrameType


def reserved_tasks() -> int:
    """Return how many tasks the worker of this process has that have not ended, acknowledged or not."""
    state = sys.modules.get("celery.worker.state")
    return 0 if state is None else len(state.reserved_requests)


def let_mingle(driver_type: str) -> None:
    """Have a worker of this process ask the others for revoked tasks when it starts, as Celery's Mingle does.

    Celery asks a transport of the worker for its type before it looks for that in the set.
    """
    mingle = getattr(sys.modules.get("celery.worker.consumer.mingle"), "Mingle", None)
    if mingle is not None:
        mingle.compatible_transports.add(driver_type)


def is_in_soft_shutdown() -> bool:
    """Return whether the worker of this process waits for its tasks before a cold shutdown.

    Celery sleeps for `worker_soft_shutdown_timeout` in a signal handler, so that its event loop stands still.
    """
    for frame in sys._current_frames().values():
        called: FrameType | None = frame
        while called is not None:
            if called.f_code.co_name == "wait_for_soft_shutdown":
                return True
            called = called.f_back
    return False
