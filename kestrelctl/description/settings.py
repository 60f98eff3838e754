"""Settings as --set takes them, and the function of a completion script that completes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelctl.description.tree import Command, Kind
from kestreld.config.settings import SETTINGS
from kestreld.config.values import switch


@dataclass(frozen=True, slots=True)
class SettingName:
    """A setting as --set takes it, and its possible values if they are few."""

    name: str
    is_per_queue: bool
    words: tuple[str, ...]


_SETTING_WORDS: Final = {
    "compat": ("none", "kestrel-1"),
    "log.format": ("text", "json"),
    "tls.client_certificate": ("required", "optional"),
    "sync_journal": ("true", "false"),
}


def setting_names() -> Sequence[SettingName]:
    return [
        SettingName(
            setting.name,
            setting.per_queue,
            _SETTING_WORDS.get(setting.name, ("true", "false") if setting.parse is switch else ()),
        )
        for setting in SETTINGS
    ]


def setting_function(
    program: Command, template: str, settings: Sequence[SettingName], value_case: Callable[[SettingName], str]
) -> str:
    """The script's function that completes KEY=VALUE; "" for a program without --set.

    `value_case` makes the branch for a setting with few possible values.
    """
    if not any(option.value and option.value.kind == Kind.SETTING for option in program.options):
        return ""
    text = template.replace("@NAMES@", " ".join(each.name for each in settings))
    text = text.replace("@QUEUE_NAMES@", " ".join(each.name for each in settings if each.is_per_queue))
    return text.replace("@VALUES@", "\n".join(value_case(each) for each in settings if each.words))
