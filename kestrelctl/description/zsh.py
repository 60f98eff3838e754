"""The zsh completion script: `_arguments` specs for each command of the command tree."""

from collections.abc import Sequence
from typing import Final

from kestrelctl.description.settings import SettingName, setting_function
from kestrelctl.description.tree import Argument, Command, Kind, Option, Value

_SCRIPT = r"""#compdef @PROGRAM@
# zsh completion for @PROGRAM@. Made from its command tree by `make completions`.

_@NAME@_names() { # the last word: of what kind; $program and $typed are of the whole command line
    [[ $PREFIX == -* ]] && return 1 # an option, for which _arguments wants the arguments as well
    local -a names notes
    local line kind=$argv[-1]
    argv[-1]=()
    local found="$(timeout 5 ${(Q)program} __complete $kind ${(Q)PREFIX} ${(Q)typed} 2>/dev/null </dev/null)"
    for line in ${(f)found}; do
        names+=("${line%%$'\t'*}")
        notes+=("${line/$'\t'/  -- }")
    done
    compadd "$@" -l -d notes -a names
}

_@NAME@_data() {
    if compset -P '@'; then _files; fi
}
@SETTINGS@
@FUNCTIONS@
# Replaces the autoloaded function of the same name: what it sets has to be set for every later completion, too.
_@NAME@() {
    local curcontext=$curcontext program=${words[1]/#\~/$HOME}
    local -a typed=("${(@)words[2,-1]}")
    _@NAME@_root
}

if [[ ${funcstack[1]} == _@NAME@ ]]; then
    _@NAME@ "$@"
else
    compdef _@NAME@ @PROGRAM@
fi
"""

_SETTINGS = r"""
_@NAME@_setting() { # KEY=VALUE
    local -a names=(@NAMES@)
    local -a queue_names=(@QUEUE_NAMES@)
    if compset -P '*='; then
        case ${${IPREFIX##*--set=}%=} in
@VALUES@
        esac
    elif compset -P 'queues.*.'; then
        compadd -S = -q -a queue_names
    elif compset -P 'queues.'; then
        local line
        names=()
        for line in ${(f)"$(timeout 5 kestrelctl __complete queues ${(Q)PREFIX} 2>/dev/null </dev/null)"}; do
            names+=("${line%%$'\t'*}")
        done
        compadd -S . -q -a names
    else
        compadd -S = -q -a names
        compadd -S . -q queues
    fi
}
"""

_WITHOUT: Final = " "  # the message is a blank: zsh offers nothing and prints nothing


def script(program: Command, settings: Sequence[SettingName]) -> str:
    name = program.program
    text = _SCRIPT.replace("@SETTINGS@", setting_function(program, _SETTINGS, settings, _value_case))
    functions = [_function(command) for command in program.walk()]
    return text.replace("@FUNCTIONS@", "\n".join(functions)).replace("@NAME@", name).replace("@PROGRAM@", name)


def _function(command: Command) -> str:
    name = "_".join(("_@NAME@", *command.path)).replace("-", "_")
    if not command.path:
        name = "_@NAME@_root"
    specs = [spec for option in command.options for spec in _option(option)]
    if command.commands:
        return _group(command, name, specs)
    specs += [_argument(number, argument) for number, argument in enumerate(command.arguments, 1)]
    return f"{name}() {{\n    _arguments -S \\\n        " + " \\\n        ".join(specs) + "\n}\n"


def _group(command: Command, name: str, specs: list[str]) -> str:
    specs = [*specs, "'1:command:->command'", "'*::argument:->argument'"]
    described = [f"                {_quoted(f'{each.path[-1]}:{each.summary}')}" for each in command.commands]
    prefix = "_".join(("_@NAME@", *command.path)).replace("-", "_")
    cases = [
        f"                {each.path[-1]}) {prefix}_{each.path[-1].replace('-', '_')} ;;" for each in command.commands
    ]
    return "\n".join(
        [
            f"{name}() {{",
            "    local state line",
            "    typeset -A opt_args",
            "    _arguments -C -S -A '-*' \\",
            "        " + " \\\n        ".join(specs) + " && return",
            "    case $state in",
            "        command)",
            "            local -a commands=(",
            *described,
            "            )",
            "            _describe -t commands command commands",
            "            ;;",
            "        argument)",
            "            case $line[1] in",
            *cases,
            "            esac",
            "            ;;",
            "    esac",
            "}",
            "",
        ]
    )


def _option(option: Option) -> list[str]:
    """One spec for each name of the option; each name excludes the others once given."""
    excluded = "" if option.is_repeated else f"({' '.join(option.names)})"
    if option.ends:
        excluded = "(- *)"
    star = "*" if option.is_repeated else ""
    specs = []
    for name in option.names:
        joint = "" if option.value is None else "=" if name.startswith("--") else "+"
        value = "" if option.value is None else f":{_escaped(option.value.metavar)}:{_action(option.value)}"
        help = option.help.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
        specs.append(_quoted(f"{excluded}{star}{name}{joint}[{help}]{value}"))
    return specs


def _argument(number: int, argument: Argument) -> str:
    place = "*" if argument.is_repeated else f"{number}" if argument.is_required else f"{number}:"
    return _quoted(f"{place}:{_escaped(argument.value.metavar)}:{_action(argument.value)}")


def _action(value: Value) -> str:
    match value.kind:
        case Kind.WORDS:
            return f"({' '.join(value.words)})"
        case Kind.QUEUE | Kind.JOB_QUEUE | Kind.JOURNAL | Kind.CONTEXT | Kind.READER:
            return f"_@NAME@_names {value.kind}s"
        case Kind.FILE:
            return "_files"
        case Kind.FOLDER:
            return "_files -/"
        case Kind.COMMAND:
            return "_cmdstring"
        case Kind.DATA:
            return "_@NAME@_data"
        case Kind.SETTING:
            return "_@NAME@_setting"
        case Kind.NOTHING:
            return _WITHOUT


def _value_case(setting: SettingName) -> str:
    pattern = f"{setting.name} | queues.*.{setting.name}" if setting.is_per_queue else setting.name
    return f"            {pattern}) compadd {' '.join(setting.words)} ;;"


def _escaped(words: str) -> str:
    return words.replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")


def _quoted(words: str) -> str:
    return "'" + words.replace("'", "'\\''") + "'"
