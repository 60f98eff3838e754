"""The fish completion script: a line for each option, command and argument of the command tree."""

from collections.abc import Sequence

from kestrelctl.description.settings import SettingName, setting_function
from kestrelctl.description.tree import Command, Kind, Option, Value

_SCRIPT = r"""# fish completion for @PROGRAM@. Made from its command tree by `make completions`.

# Whether the cursor stands behind this command, and, with a number, at its argument of that number (or a later one).
function __@NAME@_at
    set -l line (commandline -cp)
    if test "$line" != "$__@NAME@_line"
        set -g __@NAME@_line $line
        set -g __@NAME@_command ''
        set -g __@NAME@_number 1
        set -l takes
        for word in (commandline -opc)[2..-1]
            if set -q takes[1]
                set takes
            else if string match -q -- '-?*' $word
                if __@NAME@_takes_value "$__@NAME@_command $word"
                    set takes $word
                end
            else if contains -- (string trim "$__@NAME@_command $word") @COMMANDS@
                set __@NAME@_command (string trim "$__@NAME@_command $word")
            else
                set __@NAME@_number (math $__@NAME@_number + 1)
            end
        end
    end
    test "$argv[1]" = "$__@NAME@_command"; or return 1
    set -q argv[2]; or return 0
    if string match -q -- '*+' $argv[2]
        test $__@NAME@_number -ge (string trim -r -c + $argv[2])
    else
        test $__@NAME@_number -eq $argv[2]
    end
end

function __@NAME@_takes_value
    switch $argv[1]
        case @TAKERS@
            return 0
    end
    return 1
end

function __@NAME@_names # queues, job-queues, journals, contexts or readers
    set -l typed (commandline -ct | string replace -r '^--[^=]*=' '' | string unescape)
    string match -q -- '-*' $typed; and return # an option, for which fish wants the arguments as well
    set -l words (commandline -opc)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    timeout 5 $program __complete $argv[1] "$typed" $words[2..-1] 2>/dev/null </dev/null
end

function __@NAME@_files # behind an @
    set -l word (commandline -ct)
    if string match -q '@*' -- $word
        string replace -r '^' @ -- (__fish_complete_path (string sub -s 2 -- $word))
    end
end
@SETTINGS@
complete -c @PROGRAM@ -e
complete -c @PROGRAM@ -f
@LINES@
"""

_SETTINGS = r"""
function __@NAME@_settings # KEY=VALUE
    set -l names @NAMES@
    set -l queue_names @QUEUE_NAMES@
    set -l word (commandline -ct | string replace -r '^--set=' '')
    if string match -q '*=*' -- $word
        set -l key (string split -m 1 = -- $word)[1]
        switch (string split -r -m 1 . -- $key)[-1]
@VALUES@
        end
    else if string match -q 'queues.*.*' -- $word
        string replace -r '\.[^.]*$' '' -- $word | read -l queue
        printf '%s\n' $queue.$queue_names=
    else if string match -q 'queues.*' -- $word
        set -l typed (string replace queues. '' -- $word)
        for line in (timeout 5 kestrelctl __complete queues $typed 2>/dev/null </dev/null)
            echo queues.(string split \t -- $line)[1].
        end
    else
        printf '%s\n' $names= queues.
    end
end
"""


def script(program: Command, settings: Sequence[SettingName]) -> str:
    commands = list(program.walk())
    name = program.program
    text = _SCRIPT.replace("@SETTINGS@", setting_function(program, _SETTINGS, settings, _value_case))
    text = text.replace("@COMMANDS@", " ".join(_quoted(command.words) for command in commands if command.path))
    text = text.replace("@TAKERS@", " ".join(_takers(commands)))
    lines = [line for command in commands for line in _lines(command)]
    return text.replace("@LINES@", "\n".join(lines)).replace("@NAME@", name).replace("@PROGRAM@", name)


def _takers(commands: Sequence[Command]) -> list[str]:
    """Patterns of the options that take the next word as their value."""
    patterns: dict[str, None] = {}
    for command in commands:
        for option in command.options:
            for name in option.names if option.value is not None else ():
                patterns[_quoted(f"* {name}" if option.is_shared else f"{command.words} {name}")] = None
    return list(patterns)


def _lines(command: Command) -> list[str]:
    here = f"complete -c @PROGRAM@ -n {_quoted(f'__@NAME@_at {_quoted(command.words)}')}"
    first = f"complete -c @PROGRAM@ -n {_quoted(f'__@NAME@_at {_quoted(command.words)} 1')}"
    lines = [f"{first} -a {each.path[-1]} -d {_quoted(each.summary)}" for each in command.commands]
    lines += [f"{here} {_option(option)}" for option in command.options]
    for number, argument in enumerate(command.arguments, 1):
        place = f"{number}+" if argument.is_repeated else str(number)
        offered = _offered(argument.value)
        if offered:
            condition = _quoted(f"__@NAME@_at {_quoted(command.words)} {place}")
            lines.append(f"complete -c @PROGRAM@ -n {condition} {offered}")
    return lines


def _option(option: Option) -> str:
    words = [f"-s {name[1:]}" if len(name) == 2 else f"-l {name[2:]}" for name in option.names]
    if option.value is not None:
        words += ["-r", _offered(option.value) or "-f"]
    return " ".join([*words, "-d", _quoted(option.help)])


def _offered(value: Value) -> str:
    match value.kind:
        case Kind.WORDS:
            return f"-f -a {_quoted(' '.join(value.words))}"
        case Kind.QUEUE | Kind.JOB_QUEUE | Kind.JOURNAL | Kind.CONTEXT | Kind.READER:
            return f"-f -a '(__@NAME@_names {value.kind}s)'"
        case Kind.FILE:
            return "-F"
        case Kind.FOLDER:
            return "-f -a '(__fish_complete_directories)'"
        case Kind.COMMAND:
            return "-f -a '(__fish_complete_command)'"
        case Kind.DATA:
            return "-f -a '(__@NAME@_files)'"
        case Kind.SETTING:
            return "-f -a '(__@NAME@_settings)'"
        case Kind.NOTHING:
            return ""


def _value_case(setting: SettingName) -> str:
    return (
        f"            case {setting.name.rpartition('.')[2]}\n"
        f"                printf '%s\\n' $key={{{','.join(setting.words)}}}"
    )


def _quoted(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"
