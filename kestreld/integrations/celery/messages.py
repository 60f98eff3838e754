"""Messages on the wire: a line of JSON with all that surrounds the body, and behind it the body as it is."""

import json
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any, Final

from kombu.message import Message as KombuMessage
from kombu.utils.json import JSONEncoder
from kombu.utils.json import loads as loads_types

# In the properties while a message is published, so that a retry of the call repeats it; it is not sent.
KEY: Final = "x-kestreld-key"
ONCE: Final = "once"
DELIVERIES: Final = "x-delivery-count"  # header of a message that was delivered before, as of RabbitMQ's quorum queues
_encode: Final = JSONEncoder(separators=(",", ":")).encode
_UNSENT: Final = (KEY, ONCE)


def encoded(message: dict[str, Any]) -> bytes:
    """Return a message of `prepare_message` as the data of an item."""
    properties = message["properties"].copy()
    for name in _UNSENT:
        properties.pop(name, None)
    head = message | {"properties": properties}
    body = head.pop("body")
    return b"%b\n%b" % (_encode(head).encode(), body.encode() if isinstance(body, str) else body or b"")


def decoded(data: bytes) -> dict[str, Any]:
    """Return the message in an item, or in what Kombu's Redis transport has stored, whose JSON includes the body.

    Raises ValueError for anything else.
    """
    line, is_framed, body = data.partition(b"\n")
    message = loads_types(line) if b'"__type__"' in line else json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        raise ValueError("the item is not a message")
    if is_framed:
        message["body"] = body
    elif message["properties"].pop("body_encoding", None) == "base64":
        message["body"] = b64decode(message["body"])
    return message


class Message(KombuMessage):
    """A delivered message. Its `delivery_tag` is good for its channel, also once that is closed."""

    def __init__(self, message: dict[str, Any], channel: Any, delivery_tag: int, deliveries: int) -> None:
        """`deliveries`: how often it was delivered before."""
        properties = message["properties"]
        super().__init__(
            body=message["body"],
            channel=channel,
            delivery_tag=delivery_tag,
            content_type=message.get("content-type"),
            content_encoding=message.get("content-encoding"),
            headers=message.get("headers"),
            properties=properties,
            delivery_info=properties.get("delivery_info"),
            postencode="utf-8",
        )
        self.delivery_info["redelivered"] = deliveries > 0
        self.headers.pop(DELIVERIES, None)  # that of a task which was retried
        if deliveries:
            self.headers[DELIVERIES] = deliveries


def due_in_ms(headers: dict[str, Any] | None, wall_ms: int) -> int:
    """Return the ms until a task's `eta`, rounded up; 0 if it has none, or one that cannot be read."""
    eta = (headers or {}).get("eta")
    if not isinstance(eta, str):
        return 0
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return 0
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    left_us = round(due.timestamp() * 1_000_000) - wall_ms * 1000
    return max(0, -(-left_us // 1000))


def key_of_task(headers: dict[str, Any]) -> str | None:
    """Return the key of a task, by what makes it this task and not a later attempt of it; None if it is no task."""
    if not headers.get("id") or not headers.get("task"):
        return None
    return task_key(headers["id"], headers.get("retries") or 0, headers.get("replaced_task_nesting") or 0)


def task_key(task_id: str, retries: int = 0, nesting: int = 0) -> str:
    """Return the key of a task, its retry, and the number of tasks that have replaced it."""
    return f"{task_id}-{retries}-{nesting}"
