"""Origins of values of settings: for comments in a dump of the configuration, and for `dump_config origins`."""

from collections.abc import Mapping
from typing import Final

from kestreld.config.blocks import blocks_of, is_pattern
from kestreld.config.config import Config
from kestreld.config.values import as_clients_send_it, as_people_write_it
from kestreld.config.yaml_tree import SourceLocation

DEFAULT: Final = "default"

Places = Mapping[str, SourceLocation]


def place_of(places: Places, field: str) -> str:
    place = places.get(field)
    if place is None:
        return DEFAULT
    return f"{place.source}:{place.line}" if place.line else place.source


def in_one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def origin_of(config: Config, queue: str, field: str) -> str:
    """Return where a queue's setting is from, in the form of queue names: a place, and the block if it is another's.

    Patterns further down that match and have another value are named, too.
    """
    owners = [block for block in blocks_of(config.queues, config.patterns, queue) if field in config.queues[block]]
    if not owners:
        return _as_sent(place_of(config.places, field))
    first, *others = owners
    text = _place_in(config, first, field)
    if first != queue:
        text += f" ({as_people_write_it(first)})"
    value = config.queues[first][field]
    for block in others if is_pattern(first) else ():
        if is_pattern(block) and config.queues[block][field] != value:
            text += f", before {_place_in(config, block, field)} ({as_people_write_it(block)})"
    return _as_sent(text)


def _place_in(config: Config, block: str, field: str) -> str:
    return place_of(config.block_places.get(block, {}), field)


def _as_sent(text: str) -> str:
    return as_clients_send_it(in_one_line(text))
