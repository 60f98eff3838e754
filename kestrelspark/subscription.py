"""Choice of the queues to read: the options subscribe, subscribePattern and assign."""

import json
import re
from collections.abc import Mapping
from typing import Final

from kestrelspark.options import BadOption, option, words
from kestrelspark.readers import Fleet
from kestrelspark.servers import Servers

OPTIONS: Final = ("subscribe", "subscribepattern", "assign")


def fleet_of(options: Mapping[str, str], servers: Servers, reader: str, whose: str) -> Fleet:
    """The queues that the options name. Raises BadOption; `whose` begins the message."""
    names, pattern = words(option(options, "subscribe")), option(options, "subscribepattern")
    assigned = option(options, "assign")
    if (bool(names), bool(pattern), bool(assigned)).count(True) != 1:
        raise BadOption(f"{whose} requires one of subscribe, subscribePattern and assign")
    try:
        compiled = re.compile(pattern) if pattern else None
    except re.error as problem:
        raise BadOption(f"subscribePattern {pattern}: {problem}") from None
    return Fleet(servers, reader, tuple(names), compiled, _assigned(assigned, servers) if assigned else None)


def _assigned(text: str, servers: Servers) -> dict[str, tuple[str, ...]]:
    """The queues of each server."""
    found: dict[str, list[str]] = {}
    try:
        for queue, places in json.loads(text).items():
            if not isinstance(places, list):
                raise TypeError("not a list")
            for server in places:
                found.setdefault(str(server), []).append(queue)
    except (ValueError, AttributeError, TypeError):
        raise BadOption(f'assign must be {{"QUEUE": ["HOST:PORT", …]}}, not {text}') from None
    unknown = sorted(set(found) - set(servers.addresses()))
    if unknown and not servers.where.startswith("@"):
        raise BadOption(f"assign: {', '.join(unknown)} is not one of servers")
    return {server: tuple(queues) for server, queues in found.items()}
