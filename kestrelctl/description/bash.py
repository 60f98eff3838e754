"""The bash completion script. It does not need the bash-completion package."""

from collections.abc import Iterable, Sequence

from kestrelctl.description.settings import SettingName, setting_function
from kestrelctl.description.tree import Command, Value

_SCRIPT = r"""# bash completion for @PROGRAM@. Made from its command tree by `make completions`.

_@NAME@_options() { # of command $1
    case $1 in
@OPTIONS@
    esac
}

_@NAME@_commands() { # of command $1
    case $1 in
@COMMANDS@
    esac
}

# What stands behind an option, or as the argument of that number: "COMMAND --option", "COMMAND 1", "COMMAND +".
# Fails for a flag, and where nothing can stand.
_@NAME@_place() {
    kind= choice=
    case $1 in
@PLACES@
        *) return 1 ;;
    esac
}
@SETTINGS@
_@NAME@() {
    local line=${COMP_LINE:0:COMP_POINT} piece i kind choice
    local -a typed=()
    COMPREPLY=()
    # The words as the program gets them: bash cuts them at : and =, too.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if [[ $i -eq 0 || $line == [[:blank:]]* ]]; then typed+=(""); fi
        line=${line#"${line%%[![:blank:]]*}"}
        piece=${COMP_WORDS[i]}
        if ((i == COMP_CWORD)); then piece=$line; fi
        line=${line#"$piece"}
        typed[${#typed[@]}-1]+=$piece
    done

    local command= argument=1 option= plain= word
    local -i last=$((${#typed[@]} - 1))
    for ((i = 1; i < last; i++)); do
        word=${typed[i]}
        if [[ $option ]]; then
            option=
        elif [[ $word == -- ]]; then
            plain=1
        elif [[ $word == -?* && ! $plain ]]; then
            if _@NAME@_place "$command $word"; then option=$word; fi
        elif [[ " $(_@NAME@_commands "$command") " == *" $word "* ]]; then
            command+=${command:+ }$word
        else
            argument=$((argument + 1))
        fi
    done

    local cur=${typed[last]} before= quote=
    if [[ ! $option && $cur == --*=* && ! $plain ]]; then
        option=${cur%%=*} before=${cur%%=*}= cur=${cur#*=}
    fi
    if [[ $cur == [\'\"]* ]]; then
        quote=1 cur=${cur:1}
    else
        cur=${cur//\\/}
    fi
    local -a found=()
    local name rest
    if [[ $option ]]; then
        _@NAME@_place "$command $option" || return 0
    elif [[ $cur == -* && ! $plain ]]; then
        kind=words choice=$(_@NAME@_options "$command")
    elif choice=$(_@NAME@_commands "$command") && [[ $choice ]]; then
        kind=words
    else
        _@NAME@_place "$command $argument" || _@NAME@_place "$command +" || return 0
    fi
    case $kind in
        words) while IFS= read -r name; do found+=("$name"); done < <(compgen -W "$choice" -- "$cur") ;;
        queue | job-queue | journal | context | reader)
            while IFS=$'\t' read -r name rest; do
                if [[ ! $quote ]]; then printf -v name %q "$name"; fi
                found+=("$name")
            done < <(timeout 5 "${typed[0]/#\~/$HOME}" __complete "${kind}s" "$cur" "${typed[@]:1}" \
                2>/dev/null </dev/null)
            ;;
        file | folder | data)
            compopt -o filenames 2>/dev/null
            if [[ $kind == data ]]; then
                if [[ $cur != @* ]]; then return 0; fi
                before+=@ cur=${cur:1}
            fi
            [[ $kind == folder ]] && piece=-d || piece=-f
            while IFS= read -r name; do found+=("$name"); done < <(compgen "$piece" -- "${cur/#\~/$HOME}")
            ;;
        command) while IFS= read -r name; do found+=("$name"); done < <(compgen -c -- "$cur") ;;
        setting) _@NAME@_setting ;;
    esac

    # What bash takes for the word ends at the last : or = before it.
    local whole=$before$cur cut=
    for ((i = 0; i < ${#whole}; i++)); do
        if [[ ! $quote && ${whole:i:1} == [:=] && $COMP_WORDBREAKS == *"${whole:i:1}"* ]]; then cut=${whole:0:i+1}; fi
    done
    for name in "${found[@]}"; do
        name=$before$name
        COMPREPLY+=("${name#"$cut"}")
    done
}

complete -F _@NAME@ @PROGRAM@
"""

_SETTINGS = r"""
_@NAME@_setting() { # KEY=VALUE
    local key=${cur%%=*} names='@NAMES@'
    if [[ $cur == *=* ]]; then
        case ${key##*.} in
@VALUES@
            *) return 0 ;;
        esac
        while IFS= read -r name; do found+=("$key=$name"); done < <(compgen -W "$choice" -- "${cur#*=}")
        return 0
    fi
    compopt -o nospace 2>/dev/null
    if [[ $cur == queues.*.* ]]; then
        names='@QUEUE_NAMES@'
        key=${cur%.*}.
    elif [[ $cur == queues.* ]]; then
        names=$(timeout 5 kestrelctl __complete queues "${cur#queues.}" 2>/dev/null </dev/null | cut -f 1)
        while IFS= read -r name; do [[ $name ]] && found+=("queues.$name."); done <<<"$names"
        return 0
    else
        key=
    fi
    while IFS= read -r name; do found+=("$key${name%=}${name:+=}"); done < <(compgen -W "$names" -- "${cur#"$key"}")
    if [[ queues. == "$cur"* ]]; then found+=(queues.); fi
}
"""


def script(program: Command, settings: Sequence[SettingName]) -> str:
    commands = list(program.walk())
    name = program.program
    options = [
        f"        {_quoted(command.words)}) echo {_quoted(' '.join(n for o in command.options for n in o.names))} ;;"
        for command in commands
    ]
    groups = [
        f"        {_quoted(command.words)}) echo {_quoted(' '.join(each.path[-1] for each in command.commands))} ;;"
        for command in commands
        if command.commands
    ]
    text = _SCRIPT.replace("@SETTINGS@", setting_function(program, _SETTINGS, settings, _value_case))
    text = text.replace("@OPTIONS@", "\n".join(options)).replace("@COMMANDS@", "\n".join(groups))
    text = text.replace("@PLACES@", "\n".join(_places(commands)))
    return text.replace("@NAME@", name).replace("@PROGRAM@", name)


def _places(commands: Iterable[Command]) -> list[str]:
    """Branches of `case` for all places in which a value of one kind stands."""
    places: dict[Value, list[str]] = {}
    everywhere: dict[Value, list[str]] = {}
    for command in commands:
        for option in command.options:
            if option.value is None:
                continue
            value = Value("", option.value.kind, option.value.words)
            if option.is_shared:
                patterns = everywhere.setdefault(value, [])
                patterns += [pattern for each in option.names if (pattern := f"*{_quoted(f' {each}')}") not in patterns]
            else:
                places.setdefault(value, []).extend(_quoted(f"{command.words} {each}") for each in option.names)
        for number, argument in enumerate(command.arguments, 1):
            value = Value("", argument.value.kind, argument.value.words)
            place = "+" if argument.is_repeated else str(number)
            places.setdefault(value, []).append(_quoted(f"{command.words} {place}"))
    return [
        f"        {' | '.join(patterns)}) kind={value.kind} choice={_quoted(' '.join(value.words))} ;;"
        for found in (places, everywhere)
        for value, patterns in found.items()
    ]


def _value_case(setting: SettingName) -> str:
    return f"            {_quoted(setting.name.rpartition('.')[2])}) choice={_quoted(' '.join(setting.words))} ;;"


def _quoted(words: str) -> str:
    assert "'" not in words
    return f"'{words}'"
