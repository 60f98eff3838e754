"""kestrelctl in shell scripts under `set -eu`: pipes, closed descriptors, servers that are not there."""

import pytest

from tests.support.shell import Kestrelctl

pytestmark = [pytest.mark.parametrize("shell", ["dash", "bash"]), pytest.mark.exhaustive("dash")]


@pytest.mark.usefixtures("installed_programs")
def test_a_loop_drains_a_queue_and_goes_on_after_it(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        printf 'one\\ntwo\\n' | kestrelctl put "$Q" --lines
        while item=$(kestrelctl get "$Q"); do echo "got $item"; done
        echo drained
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out, run.err) == (0, b"got one\ngot two\ndrained\n", "")


def test_an_empty_queue_ends_the_script_unless_it_is_allowed(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    run = kestrelctl.script(shell, 'kestrelctl get "$Q" --empty-ok; echo on; kestrelctl get "$Q"; echo off', Q=queue)
    assert (run.code, run.out, run.err) == (1, b"on\n", "")


def test_head_takes_what_it_prints_and_no_item_more(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        i=0; while [ $i -lt 50 ]; do i=$((i + 1)); echo "line $i"; done | kestrelctl put "$Q" --lines
        kestrelctl get "$Q" --all | { kestrelctl version >/dev/null; head -n 3; }
        kestrelctl peek "$Q"
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out, run.err) == (0, b"line 1\nline 2\nline 3\nline 4", "")


def test_a_reader_that_reads_nothing_leaves_everything(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        kestrelctl put "$Q" kept
        { kestrelctl get "$Q" --all --wait 5s && code=0 || code=$?; echo "exit $code" >&2; } | true
        kestrelctl peek "$Q"
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out, run.err) == (0, b"kept", "exit 141\n")


def test_closed_standard_input_matters_only_to_who_reads_it(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        kestrelctl put "$Q" fine <&-
        kestrelctl get "$Q" <&-
        kestrelctl put "$Q" piped
        kestrelctl get "$Q" --exec cat <&-
        kestrelctl delete "$Q" <&-
        kestrelctl put "$Q" <&- || echo "exit $?"
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out) == (0, b"finepipedexit 74\n")
    assert run.err == "kestrelctl: cannot read standard input: it is closed\n"


def test_closed_or_full_standard_output_loses_nothing(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        kestrelctl put "$Q" kept >&-
        kestrelctl get "$Q" >&- || echo "exit $?"
        kestrelctl get "$Q" >/dev/full || echo "exit $?"
        kestrelctl --help >/dev/full || echo "exit $?"
        kestrelctl get "$Q" >&- 2>&- || echo "exit $?"
        kestrelctl get "$Q"
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out) == (0, b"exit 141\nexit 74\nexit 74\nexit 141\nkept")
    no_space = "kestrelctl: cannot write to standard output: no space left on device\n"
    assert run.err == "kestrelctl: standard output is closed\n" + no_space * 2


def test_without_a_server_every_verb_says_so_in_one_line(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        for verb in 'put q x' 'get q' 'get q --exec cat' 'peek q' 'flush q' stats reload version shutdown; do
            kestrelctl $verb && echo "$verb: exit 0" || [ $? -eq 69 ] || echo "$verb: another exit"
        done
        kestrelctl put q x | cat
    """
    run = kestrelctl.script(shell, script, KESTRELCTL_SERVER="127.0.0.1:1")
    assert (run.code, run.out) == (0, b"")
    line = (
        "kestrelctl: cannot reach 127.0.0.1:1: connection refused; "
        "is kestreld running? (-s HOST:PORT or KESTRELCTL_SERVER)\n"
    )
    assert run.err == line * 10


def test_the_server_comes_from_the_option_before_or_after_the_verb_else_from_the_environment(
    kestrelctl: Kestrelctl, queue: str, shell: str
) -> None:
    script = """
        kestrelctl put "$Q" x
        export KESTRELCTL_SERVER=127.0.0.1:1
        kestrelctl -s "$A" peek "$Q"
        kestrelctl --timeout 3s peek "$Q" -s "$A"
        kestrelctl -s 127.0.0.1:2 get "$Q" --server="$A"
        kestrelctl peek "$Q" 2>/dev/null || echo "exit $?"
    """
    run = kestrelctl.script(shell, script, Q=queue, A=kestrelctl.address)
    assert (run.code, run.out, run.err) == (0, b"xxxexit 69\n", "")


def test_delete_and_flush_never_ask_in_a_script(kestrelctl: Kestrelctl, queue: str, shell: str) -> None:
    script = """
        kestrelctl put "$Q" x; kestrelctl flush "$Q"; kestrelctl get "$Q" || echo "exit $?"
        kestrelctl delete "$Q"
        kestrelctl delete "$Q" --missing-ok; kestrelctl delete "$Q" || echo "exit $?"
    """
    run = kestrelctl.script(shell, script, Q=queue)
    assert (run.code, run.out, run.err) == (0, b"exit 1\nexit 1\n", f"kestrelctl: no such queue: {queue}\n")
