"""Kombu transport for Celery: docs/celery.md describes its use.

Celery finds it by itself, through an entry point. A program that uses Kombu without Celery imports this package first.
"""

from typing import TYPE_CHECKING, Any

from kestreld.integrations.celery.aliases import add_aliases

if TYPE_CHECKING:
    from kestreld.integrations.celery.tasks import cancel

__all__ = ["cancel"]

add_aliases()


def __getattr__(name: str) -> Any:
    # Loaded lazily: every program that imports Kombu imports this package.
    if name != "cancel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kestreld.integrations.celery.tasks import cancel

    return cancel
