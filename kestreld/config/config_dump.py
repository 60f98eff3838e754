"""A configuration as YAML text: every setting in force, with the source of its value as a comment."""

from collections.abc import Iterator, Sequence
from typing import Final

import yaml

from kestreld.config.cluster import Announce
from kestreld.config.config import Address, Config, PerQueue
from kestreld.config.origins import Places, in_one_line, place_of
from kestreld.config.settings import GROUPED, PER_QUEUE, TOP_LEVEL, Setting, written
from kestreld.config.users import ALL, ALL_OF_CACHE, ALL_OF_JOBS, ALL_WORD, Right, Rights, UserConfig
from kestreld.config.values import as_people_write_it

LINE_LETTERS_MAX: Final = 1 << 30  # a value is never broken over lines


def dump_config(config: Config) -> str:
    """Return the text of a configuration file with the same settings."""
    return "".join(f"{line}\n" for line in _lines(config))


def _lines(config: Config) -> Iterator[str]:
    for group, settings in GROUPED.items():
        yield f"{group}:"
        for name, setting in settings.items():
            yield f"  {_line(name, setting, getattr(config, setting.field), config.places)}"
    for name, setting in TOP_LEVEL.items():
        values = config.defaults if setting.per_queue else config
        yield _line(name, setting, getattr(values, setting.field), config.places)
    if config.queues:
        yield "queues:"
    for queue, block in config.queues.items():
        yield f"  {_quoted(as_people_write_it(queue))}:"
        for name, setting in PER_QUEUE.items():
            if setting.field in block:
                yield f"    {_line(name, setting, block[setting.field], config.block_places[queue])}"
    if config.users:
        yield "users:"
    for user in config.users.values():
        yield f"  {_quoted(user.name)}:{_origin(config.places, f'users.{user.name}')}"
        yield from (f"    {line}" for line in _user_lines(user))


def _line(name: str, setting: Setting, value: object, places: Places) -> str:
    if isinstance(value, tuple) and not setting.field.endswith("_ms"):
        text = f"[{', '.join(_quoted(str(each)) for each in value)}]" if len(value) != 1 else _quoted(str(value[0]))
    else:
        text = written(setting, value)
        if isinstance(value, (str, Address, Announce, PerQueue)):
            text = _quoted(as_people_write_it(text) if setting.per_queue else text)
    return f"{name}: {text}{_origin(places, setting.field)}"


def _origin(places: Places, field: str) -> str:
    return f"  {comment(place_of(places, field))}"


def comment(text: str) -> str:
    """Make a comment that no character in a path can end."""
    return f"# {in_one_line(text)}"


def _user_lines(user: UserConfig) -> Iterator[str]:
    if user.password_file is not None:
        yield f"password_file: {_quoted(user.password_file)}"
    elif user.password is not None:
        yield f"password: {_quoted(str(user.password))}"
    if user.certificates:
        yield f"certificate: [{', '.join(map(_quoted, user.certificates))}]"
    # `all` has the right to create, but does not name it.
    yield from _rights_lines("rights", user.rights, None if user.names_create else ALL)
    yield from _rights_lines("cache", user.cache_rights, ALL_OF_CACHE)
    yield from _rights_lines("jobs", user.job_rights, ALL_OF_JOBS)
    if user.rate_bytes is not None:
        yield f"max_rate: {user.rate_bytes}"


def _rights_lines(name: str, by_pattern: Sequence[tuple[str, Rights]], all_rights: Rights | None) -> Iterator[str]:
    """Yield lines of rights by pattern; `all_rights` are those abbreviated to one word."""
    if by_pattern:
        yield f"{name}:"
    for pattern, rights in by_pattern:
        words = (
            ALL_WORD if rights == all_rights else f"[{', '.join(right.value for right in Right if right in rights)}]"
        )
        yield f"  {_quoted(as_people_write_it(pattern))}: {words}"


def _quoted(text: str) -> str:
    """Return a text as YAML, plain if possible."""
    dumped = yaml.safe_dump(text, default_flow_style=True, width=LINE_LETTERS_MAX, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")
