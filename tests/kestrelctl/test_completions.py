"""Tab in the three real shells, with the scripts in completions/ as they are."""

import json
import os
import pty
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from kestrelctl.description import completing
from kestrelctl.description.files import generated
from kestrelctl.description.tree import kestrelctl_tree
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.shell import Kestrelctl
from tests.support.waiting import until

ROOT: Final = Path(__file__).parents[2]
COMPLETIONS: Final = ROOT / "completions"
HERE: Final = shlex.quote(str(COMPLETIONS))  # for shells
PRESSES: Final = 10
# A busy machine may miss the deadline of an answer: who presses Tab again gets it.
PATIENCE_S: Final = 60
ANSWER_S: Final = 0.4
ANSWER_CPU_S: Final = 0.3  # of kestrelctl, from its start to its end; no verb that imports all is as quick
FISH_PRESS_MAX: Final = 4.0  # starts of Python; a kestrelctl that is started costs four more
PRESS_CPU_S: Final = 0.04  # of the shell and what it starts, where the answer is in the script itself

BASH: Final = r"""
source "$1"; read -ra COMP_WORDS <<<"$2"; [[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_LINE=$2 COMP_POINT=${#2} COMP_CWORD=$((${#COMP_WORDS[@]}-1))
fn=$(complete -p "${COMP_WORDS[0]}" | sed -E "s/.*-F ([^ ]+).*/\1/")
$fn "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
[[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\n" "${COMPREPLY[@]}"
"""
# zsh's completion works only in a terminal: this one prints what would be offered, and leaves.
ZSH_INSIDE: Final = r"""
PROMPT=; fpath=($ZTEST_FPATH $fpath); autoload -Uz compinit; compinit -u -D
bindkey '^M' undefined-key; bindkey '^J' undefined-key; bindkey '^I' complete-word
zstyle ':completion:*' insert-tab false; _bye(){ exit }; comppostfuncs=(_bye)
compadd(){ [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
 typeset -a __h; builtin compadd -A __h "$@"; (( $#__h )) && print -rl -- '<C>'${^__h}; builtin compadd "$@" }
print READY
"""
ZSH: Final = r"""
zmodload zsh/zpty; export ZTEST_FPATH; zpty z zsh -f -i; zpty -w z "stty -echo; source ${0:A:h}/inside.zsh"
repeat 50; do zpty -r z l; [[ $l == *READY* && $l != *source* ]] && break; done
zpty -w -n z "$1"$'\t'; while zpty -r z l; do a+=$l; done
print -r -- ${a//$'\r'/} | sed -n 's/^.*<C>//p' | sort -u
"""

# What an interactive shell is told first, so that it completes as a user's does.
LOADS: Final = {
    "bash": f"source {HERE}/kestrelctl.bash; source {HERE}/kestreld.bash",
    "zsh": f"fpath=({HERE} $fpath); autoload -Uz compinit; compinit -u -D",
}

Tab = Callable[[str], set[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions")
    (folder / "inside.zsh").write_text(ZSH_INSIDE)
    (folder / "outside.zsh").write_text(ZSH)
    (folder / "settings.yaml").write_text("")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Daemon]:
    with running_daemon(folder / "daemon") as daemon:
        kestrelctl = Kestrelctl(daemon.address, folder)
        for queue in ("orders", "orders+audit", "odd", "ns:jobs", "ns:mail", "a$b'c"):
            kestrelctl("put", queue, "x")
        yield daemon


@pytest.fixture
def environment(server: Daemon, folder: Path) -> dict[str, str]:
    return Kestrelctl(server.address, folder).environment | {"ZTEST_FPATH": str(COMPLETIONS), "HOME": str(folder)}


@pytest.fixture(params=["bash", "zsh", "fish"])
def tab(request: pytest.FixtureRequest, folder: Path, environment: dict[str, str]) -> Tab:
    """What the shell offers at the end of a line."""
    shell = shutil.which(request.param)
    if shell is None:
        pytest.skip(f"{request.param} is not installed")

    def press(line: str) -> set[str]:
        program = line.split()[0]
        commands = {
            "bash": [shell, "--norc", "-c", BASH, "_", str(COMPLETIONS / f"{program}.bash"), line],
            "zsh": [shell, "-f", str(folder / "outside.zsh"), line],
            "fish": [
                shell,
                "--no-config",
                "-c",
                f"source {HERE}/{program}.fish; complete -C $argv[1] | string replace -r '\\t.*' ''",
                line,
            ],
        }
        run = subprocess.run(
            commands[request.param],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert run.stderr == ""
        return set(run.stdout.splitlines())

    return press


def offered(tab: Tab, line: str, awaited: Callable[[set[str]], object] = bool) -> set[str]:
    """What is offered once that is as awaited; what bash is told begins behind the last colon or equals sign."""
    typed = line.rsplit(" ", 1)[-1]
    before = typed[: max(typed.rfind(":"), typed.rfind("=")) + 1]
    until_s = time.monotonic() + PATIENCE_S
    while True:
        found = {each if each.startswith(before) else before + each for each in tab(line)}
        if awaited(found) or time.monotonic() > until_s:
            return found


def test_the_scripts_are_those_that_the_command_tree_gives() -> None:
    stale = [path for path, content in generated({"completions"}).items() if (ROOT / path).read_text() != content]
    assert stale == [], "run make completions"


@pytest.mark.exhaustive("bash", "names0", "names2")
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("kestrelctl get o", {"odd", "orders", "orders+audit"}),
        ("kestrelctl get orders+", {"orders+audit"}),
        ("kestrelctl get ns:", {"ns:jobs", "ns:mail"}),
        ("kestrelctl get ns:j", {"ns:jobs"}),
        ("kestrelctl stats orders od", {"odd"}),
        ("kestrelctl get --wait 5s --all od", {"odd"}),
        ("kestrelctl journal import somewhere --queue od", {"odd"}),
        ("kestrelctl bench flood -q od", {"odd"}),
        ("kestrelctl --timeout 1s delete od", {"odd"}),
    ],
)
def test_names_of_the_queues_there_are(tab: Tab, line: str, names: set[str]) -> None:
    assert offered(tab, line, names.__eq__) == names


@pytest.mark.exhaustive("bash")
def test_the_server_is_the_one_that_the_line_names(tab: Tab, server: Daemon, environment: dict[str, str]) -> None:
    environment["KESTRELCTL_SERVER"] = "127.0.0.1:1"
    for way in (f"-s {server.address} get", f"--server={server.address} get", f"get -s {server.address}"):
        assert offered(tab, f"kestrelctl {way} od") == {"odd"}


@pytest.mark.exhaustive("bash")
def test_contexts_and_the_queues_of_their_servers(
    tab: Tab, server: Daemon, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["XDG_CONFIG_HOME"] = str(tmp_path)
    environment["KESTRELCTL_SERVER"] = "127.0.0.1:1"
    (tmp_path / "kestrelctl").mkdir()
    here = {"servers": ["127.0.0.1:1", server.address]}
    (tmp_path / "kestrelctl" / "contexts.yaml").write_text(json.dumps({"contexts": {"prod": here, "pre": here}}))
    assert offered(tab, "kestrelctl -c pr") == {"prod", "pre"}
    assert offered(tab, "kestrelctl context select pro") == {"prod"}
    assert offered(tab, "kestrelctl get --context=pr") == {"--context=prod", "--context=pre"}
    assert offered(tab, "kestrelctl get --context prod od") == {"odd"}
    assert offered(tab, "kestrelctl -c prod get od") == {"odd"}


@pytest.mark.exhaustive("bash")
def test_readers_of_the_queue_before_them(tab: Tab, folder: Path) -> None:
    with running_daemon(folder / "admin", admin="127.0.0.1:0") as daemon:
        kestrelctl = Kestrelctl(daemon.address, folder)
        for reader in ("report", "replica"):
            kestrelctl("readers", "create", "ns:jobs", reader)
        both = {"report", "replica"}
        assert offered(tab, f"kestrelctl -s {daemon.address} readers drop ns:jobs rep", both.__eq__) == both
        assert offered(tab, f"kestrelctl readers move -s {daemon.address} ns:jobs repo") == {"report"}


def test_no_server_no_names_and_no_words(tab: Tab) -> None:
    assert tab("kestrelctl get -s 127.0.0.1:1 o") == set()


def test_where_a_password_would_be_asked_for_nothing_is(tab: Tab) -> None:
    assert tab("kestrelctl get --user shop o") == set()


@pytest.mark.exhaustive("bash", "words0", "words9", "words13")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kestrelctl journal-", {"journal-verify"}),
        ("kestrelctl journal e", {"export", "explain-space"}),
        ("kestrelctl bench many", {"many-clients"}),
        ("kestrelctl get --empty", {"--empty-ok"}),
        ("kestrelctl put q --us", {"--user"}),
        ("kestrelctl --vers", {"--version"}),
        ("kestrelctl stats -o ", {"table", "json", "ndjson", "yaml", "tsv", "csv", "name"}),
        ("kestrelctl check -o p", {"prometheus"}),
        ("kestrelctl top --theme ", {"dark", "light", "colour-blind"}),
        ("kestreld --check", {"--check-config"}),
        ("kestreld hash", {"hash-password"}),
        ("kestreld --config set", {"settings.yaml"}),
        ("kestrelctl get q --password-file set", {"settings.yaml"}),
        ("kestrelctl put q @set", {"@settings.yaml"}),
    ],
)
def test_commands_options_words_and_files(tab: Tab, line: str, words: set[str]) -> None:
    assert {found.removeprefix("@") for found in tab(line)} == {word.removeprefix("@") for word in words}


@pytest.mark.usefixtures("installed_programs")
@pytest.mark.exhaustive("bash")
def test_the_queues_of_a_spool_that_no_server_holds(tab: Tab, server: Daemon) -> None:
    both = {"ns:jobs", "ns:mail"}
    assert offered(tab, f"kestrelctl journal-verify {server.spool} ns:") == both
    assert offered(tab, f"kestrelctl journal peek --spool {server.spool} ns:") == both


@pytest.mark.exhaustive("bash")
def test_settings_of_kestreld(tab: Tab) -> None:
    # Each shell offers as much as it puts behind the cursor.
    assert {name.rstrip("=") for name in tab("kestreld --set sync_")} == {"sync_journal", "sync_together"}
    names = offered(tab, "kestreld --set queues.od")
    assert {name.removeprefix("queues.").rstrip(".") for name in names} == {"odd"}
    inner = offered(tab, "kestreld --set queues.odd.max_it")
    assert {name.removeprefix("queues.odd.").rstrip("=") for name in inner} == {"max_items", "max_item_size"}
    assert offered(tab, "kestreld --set compat=") == {"compat=none", "compat=kestrel-1"}


def test_the_quick_way_knows_the_server_as_the_command_tree_does() -> None:
    (program,) = [command for command in kestrelctl_tree().walk() if not command.path]
    ways = {name for option in program.options for name in option.names if not option.ends}
    assert ways == {*completing.TEXT_OPTIONS, "--tls", "--timeout"}


def test_the_quick_way_imports_neither_the_command_tree_nor_the_client(environment: dict[str, str]) -> None:
    imported = set[str]()

    def completes() -> bool:
        run = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "kestrelctl", "__complete", "queues", "or"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert run.returncode in (0, -signal.SIGALRM)  # on a busy machine its time is over before it has an answer
        imported.update(re.findall(r"\| +([a-z_0-9]+)(?:\.|$)", run.stderr, re.MULTILINE))
        return "socket" in imported

    until(completes, "a completion that has come as far as to ask the server")
    assert not imported & {"typer", "pymemcache", "rich", "yaml", "asyncio", "textual", "pydantic", "ssl"}


@pytest.mark.usefixtures("installed_programs")
def test_names_come_within_the_deadline(environment: dict[str, str]) -> None:
    """A busy machine may take longer: kestrelctl takes less of its processor than the deadline is long."""
    assert completing.ANSWER_S < ANSWER_S
    answered_s = []
    until_s = time.monotonic() + PATIENCE_S
    while not answered_s or (min(answered_s) > ANSWER_CPU_S and time.monotonic() < until_s):
        before_s = _children_s()
        run = subprocess.run(["kestrelctl", "__complete", "queues", "or", "get"], env=environment, capture_output=True)
        if run.stdout == b"orders\t1 item\norders+audit\t1 item\n":
            answered_s.append(_children_s() - before_s)
        assert run.stderr == b""
        assert time.monotonic() < until_s, f"no answer in {PATIENCE_S} s, at last {run.stdout!r}"
    assert min(answered_s) <= ANSWER_CPU_S


@pytest.mark.usefixtures("installed_programs")
def test_a_server_that_does_not_answer_is_not_waited_for(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        run = subprocess.run(
            ["kestrelctl", "__complete", "queues", "", "get", "-s", address],
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,  # nobody would answer for ever
        )
        assert (run.stdout, run.stderr) == (b"", b"")
        assert silent.accept()[0].recv(100) == b"dump_stats\r\n"


def queues_offered(environment: dict[str, str], *words: str) -> bytes:
    run = subprocess.run(
        [sys.executable, "-m", "kestrelctl", "__complete", "queues", "o", "get", *words],
        env=environment,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert run.stderr == b""
    return run.stdout


@pytest.fixture
def runtime_folder(tmp_path: Path, environment: dict[str, str]) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    environment["XDG_RUNTIME_DIR"] = str(folder)
    return folder


def test_a_server_that_is_late_is_offered_with_the_names_of_a_minute_ago(
    server: Daemon, environment: dict[str, str], runtime_folder: Path
) -> None:
    until(lambda: queues_offered(environment) and list(runtime_folder.iterdir()), "names that are kept")
    (kept,) = runtime_folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = "{}:{}".format(*silent.getsockname())
        assert queues_offered(environment, "-s", away) == b""  # these are another server's
    stop(server.pid)
    try:
        assert b"orders\t1 item\n" in queues_offered(environment)
        assert queues_offered(environment, "--user", "shop", "--password-file", str(kept)) == b""
        os.utime(kept, (time.time() - completing.KEPT_S - 1,) * 2)
        assert queues_offered(environment) == b""
        os.utime(kept)
        assert b"orders\t1 item\n" in queues_offered(environment)
        environment["XDG_RUNTIME_DIR"] = str(runtime_folder / "missing")
        assert queues_offered(environment) == b""
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_names_that_come_after_tab_has_given_up_are_there_at_the_next_one(
    environment: dict[str, str], runtime_folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        address = "{}:{}".format(*slow.getsockname())

        def kept() -> bool:
            assert queues_offered(environment, "-s", address) == b""
            while select.select([slow], [], [], 1)[0] and not list(runtime_folder.iterdir()):
                connection, _ = slow.accept()
                with connection, suppress(ConnectionError):
                    connection.recv(100)
                    connection.sendall(b"queue 'orders' {\r\n  items=1\r\n}\r\nEND\r\n")
            return list(runtime_folder.iterdir()) == [runtime_folder / "kestrelctl-queues"]

        until(kept, "an answer that comes while the names of a late server are awaited")
        assert queues_offered(environment, "-s", address) == b"orders\t1 item\n"


@pytest.mark.exhaustive("bash")
def test_a_program_that_takes_long_to_start_completes(tab: Tab, environment: dict[str, str], tmp_path: Path) -> None:
    """As all do on a busy machine: the time for an answer counts from when there is somebody to ask."""
    program = shutil.which("kestrelctl", path=environment["PATH"])
    slow = tmp_path / "kestrelctl"
    slow.write_text(f'#!/bin/sh\nsleep {ANSWER_S * 2}\nexec {program} "$@"\n')
    slow.chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    assert offered(tab, "kestrelctl get od") == {"odd"}


@pytest.mark.exhaustive("bash")
def test_names_of_the_queues_of_jobs(tab: Tab, folder: Path, environment: dict[str, str]) -> None:
    with running_daemon(folder / "jobs", "listen.disque=127.0.0.1:0") as daemon:
        environment["KESTRELCTL_JOBS"] = daemon.disque
        kestrelctl = Kestrelctl(daemon.address, folder, jobs=daemon.disque)
        for queue in ("mail.urgent", "mail.bulk", "ns:jobs"):
            assert kestrelctl("jobs", "add", queue, "x").code == 0
        both = {"mail.urgent", "mail.bulk"}
        assert offered(tab, "kestrelctl jobs peek mail.", both.__eq__) == both
        assert offered(tab, "kestrelctl jobs scan --in mail.u") == {"mail.urgent"}
        environment["KESTRELCTL_JOBS"] = "127.0.0.1:1"
        assert offered(tab, f"kestrelctl jobs get -s {daemon.disque} mail.bulk ns:") == {"ns:jobs"}


@pytest.fixture
def terminal(folder: Path, environment: dict[str, str]) -> Iterator[Callable[[str], int]]:
    """Starts an interactive shell with the completions of both programs, and gives its terminal."""
    started: list[tuple[int, int]] = []

    def start(shell: str) -> int:
        found = shutil.which(shell)
        if found is None:
            pytest.skip(f"{shell} is not installed")
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            arguments = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
            os.execve(found, [shell, *arguments], environment | {"PS1": "READY ", "TERM": "dumb"})
        started.append((child, terminal))
        _type(terminal, f"{LOADS[shell]}; echo LOA''DED\n", "LOADED")
        return terminal

    yield start
    for child, terminal in started:
        os.close(terminal)
        os.waitpid(child, 0)


def test_bash_completes_a_name_with_colons_and_quotes_what_is_special_in_a_terminal(
    terminal: Callable[[str], int],
) -> None:
    bash = terminal("bash")
    assert _tabbed(bash, "kestrelctl get ns:j", "ns:jobs ")
    assert _tabbed(bash, "kestrelctl get a", "a\\$b\\'c ")
    assert _tabbed(bash, "kestrelctl stats --output=nd", "--output=ndjson ")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_one_shell_completes_live_names_at_every_press(
    shell: str, terminal: Callable[[str], int], server: Daemon, folder: Path
) -> None:
    """zsh loads the script at the first Tab; later ones run what that left behind."""
    opened = terminal(shell)
    kestrelctl = Kestrelctl(server.address, folder)
    for number in range(3):
        kestrelctl("put", f"{shell}-live-{number}", "x")
        assert _tabbed(opened, f"kestrelctl get {shell}-live-{number}"[:-2], f"live-{number}")
        assert _tabbed(opened, f"kestreld --set queues.{shell}-live-{number}"[:-2], f"live-{number}.")
        kestrelctl("delete", f"{shell}-live-{number}")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_files_behind_an_at_sign_with_their_whole_path(
    shell: str, terminal: Callable[[str], int], folder: Path
) -> None:
    assert _tabbed(terminal(shell), f"kestrelctl put work @{folder}/setti", "settings.yaml")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_press_that_asks_for_no_names_costs_little(shell: str, terminal: Callable[[str], int]) -> None:
    opened = terminal(shell)
    assert _tabbed(opened, "kestrelctl get --empt", "--empty-ok")  # loads the script

    def press() -> float:
        before_s = _times_s(opened)
        for _ in range(PRESSES):
            assert _tabbed(opened, "kestrelctl get --empt", "--empty-ok")
        return (_times_s(opened) - before_s) / PRESSES

    assert min(press() for _ in range(5)) <= PRESS_CPU_S


def test_a_press_in_fish_that_asks_for_no_names_costs_little(environment: dict[str, str]) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")

    def cpu_s(presses: int) -> float:
        before_s = _children_s()
        line = f"source {HERE}/kestrelctl.fish" + "; complete -C 'kestrelctl get --empt' >/dev/null" * presses
        subprocess.run([fish, "--no-config", "-c", line], env=environment, stdin=subprocess.DEVNULL, check=True)
        return _children_s() - before_s

    def press() -> float:
        """Measured in starts of Python, so that what else the machine does counts for little."""
        press_s = (cpu_s(1 + PRESSES) - cpu_s(1)) / PRESSES
        before_s = _children_s()
        for _ in range(PRESSES):
            subprocess.run([sys.executable, "-c", ""], check=True)
        return press_s / ((_children_s() - before_s) / PRESSES)

    assert min(press() for _ in range(5)) <= FISH_PRESS_MAX


def _children_s() -> float:
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def _times_s(terminal: int) -> float:
    """What a shell and its children have taken, by its own builtin."""
    os.write(terminal, b"times; echo END''ED\n")
    shown = _until(terminal, "ENDED", PATIENCE_S)
    return sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", shown))


def _tabbed(terminal: int, line: str, completed: str) -> bool:
    """Whether Tab makes of the line one that ends so; the line is thrown away."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        os.write(terminal, f"{line}\t".encode())
        shown = _until(terminal, completed, ANSWER_S * 3)
        os.write(terminal, b"\x15\n")
        _until(terminal, "READY ", PATIENCE_S)
        if completed in shown:
            return True
    return False


def _type(terminal: int, words: str, until: str) -> None:
    os.write(terminal, words.encode())
    assert until in _until(terminal, until, PATIENCE_S)


def _until(terminal: int, words: str, limit_s: float) -> str:
    shown = ""
    until_s = time.monotonic() + limit_s
    while words not in shown and (left_s := until_s - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
