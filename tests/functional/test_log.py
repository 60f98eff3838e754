"""The log: one line an event on stderr, for people, for programs and for journald."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestreld.config.config import LogFormat
from kestreld.log import FromLibraries, Level, Log
from tests.support import forked
from tests.support.daemon import READY, ROOT, STOP_S
from tests.support.process import environment
from tests.support.queue_client import QueueClient

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def command(folder: Path, *options: str) -> list[str]:
    settings = ("listen.memcache=127.0.0.1:0", "listen.admin=null", f"queue_path={folder}/spool")
    return [sys.executable, "-m", "kestreld", *options, *(word for setting in settings for word in ("--set", setting))]


@contextmanager
def said_to_a_pipe(command: list[str], *, is_journal: bool) -> Iterator[list[str]]:
    """What a kestreld says: until it listens, and to its end once it has been left. The pipe may be journald's."""
    reading, writing = os.pipe()
    found = os.fstat(writing)
    variables = environment() | ({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"} if is_journal else {})
    with (
        open(reading) as log,
        forked.Launched(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stderr=writing, text=True
        ) as process,
    ):
        os.close(writing)
        lines = []
        for line in log:
            lines.append(line.rstrip("\n"))
            if READY.search(line):
                break
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
            lines.extend(line.rstrip("\n") for line in log)


def life(folder: Path, *options: str, is_journal: bool = False) -> list[str]:
    """The log of a kestreld that stops a damaged queue, serves the others and is told to stop."""
    with (
        said_to_a_pipe(command(folder, *options), is_journal=is_journal) as lines,
        QueueClient(address(lines)) as client,
    ):
        client.put("work", b"nobody's business", b"more")
    (segment,) = (folder / "spool" / "work.journal").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"business")] ^= 1
    segment.write_bytes(content)
    with said_to_a_pipe(command(folder, *options), is_journal=is_journal) as lines:
        pass
    return lines


def address(lines: list[str]) -> str:
    found = READY.search(lines[-1])
    assert found is not None, lines
    return found[1]


def test_text_has_the_time_in_front_of_every_line(tmp_path: Path) -> None:
    lines = life(tmp_path)
    assert [line for line in lines if not re.match(rf"{TIME} kestreld: \S", line)] == []
    assert [re.sub(r"^\S+ kestreld: (\S+ \S+|stopped).*", r"\1", line) for line in lines] == [
        "work: stopped:",
        "ready 1.0.0",
        "shutting down",
        "stopped",
    ]
    assert "business" not in "".join(lines)


def test_json_has_level_and_source_with_every_line(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in life(tmp_path, "--log-format", "json")]
    assert [(line["level"], line["source"]) for line in lines] == [
        ("warning", "queues"),
        ("info", "daemon"),
        ("info", "server"),
        ("info", "daemon"),
    ]
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert [line["message"] for line in lines][2:] == ["shutting down", "stopped"]


def test_journald_gets_priorities_and_has_its_own_times(tmp_path: Path) -> None:
    lines = life(tmp_path, is_journal=True)
    assert [re.sub(r"^(<\d>)(\S+ \S+|stopped).*", r"\1 \2", line) for line in lines] == [
        "<4> work: stopped:",
        "<6> ready 1.0.0",
        "<6> shutting down",
        "<6> stopped",
    ]


def test_journald_gets_json_where_that_is_asked_for(tmp_path: Path) -> None:
    lines = life(tmp_path, "--set", "log.format=json", is_journal=True)
    assert [line[:3] for line in lines] == ["<4>", "<6>", "<6>", "<6>"]
    assert [line for line in lines if "time" in json.loads(line[3:])] == []


def test_a_stream_of_journald_that_stderr_is_not_says_nothing(tmp_path: Path) -> None:
    variables = environment() | {"JOURNAL_STREAM": "8:12345"}
    done = forked.run(command(tmp_path, "--set", "max_itms=1"), None, STOP_S, cwd=ROOT, env=variables, text=True)
    assert (done.returncode, done.stderr[:10]) == (78, "kestreld: ")


def test_a_start_that_fails_says_why_in_the_format_of_the_log(tmp_path: Path) -> None:
    words = command(tmp_path, "--log-format=json", "--set", "max_itms=1")
    done = forked.run(words, None, STOP_S, cwd=ROOT, env=environment(), text=True)
    said = json.loads(done.stderr)
    assert (done.returncode, said["level"]) == (78, "error")
    assert said["message"].endswith("unknown setting 'max_itms'; did you mean max_items?")


def test_a_server_without_stderr_serves(short_path: Path) -> None:
    listening = short_path / "kestreld.sock"
    words = [*command(short_path), "--set", f"listen.memcache=unix:{listening}"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_path / "notify"))
        manager.settimeout(STOP_S)
        variables = environment() | {"NOTIFY_SOCKET": str(short_path / "notify")}
        with subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], cwd=ROOT, env=variables) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                with QueueClient(f"unix:{listening}") as client:
                    client.put("work", b"x")
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S) == 0


def test_a_line_stays_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for form, expected in ((LogFormat.TEXT, "kestreld: a\\nb\\x1b[2J\n"), (LogFormat.JSON, None)):
        Log(form).say(Level.WARNING, "queues", "a\nb\x1b[2J")
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "\x1b" not in said
        assert expected in (None, said)
    Log(LogFormat.TEXT, is_journal=True).say(Level.CRITICAL, "daemon", "broken", "one\ntwo\n")
    assert capsys.readouterr().err == "<2>broken\n<2>one\n<2>two\n"


def test_what_libraries_complain_of_is_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    handler = FromLibraries(Log(LogFormat.JSON))
    handler.handle(logging.LogRecord("asyncio", logging.WARNING, "", 1, "%s raised", ("send",), None))
    said = json.loads(capsys.readouterr().err)
    assert said == {"level": "warning", "source": "asyncio", "message": "send raised"}
