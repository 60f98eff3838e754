"""export and import: a queue as lines of JSON, out and in again with nothing changed that can be kept."""

import base64
import gzip
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.shell import Kestrelctl
from tests.support.wire import connected


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path / "other", admin="127.0.0.1:0") as daemon:
        yield daemon


def put(ctl: Kestrelctl, queue: str, items: list[tuple[int, int, bytes]]) -> None:
    """Flags, expiry and data of each."""
    with connected(ctl.address) as client:
        for first in range(0, len(items), 500):
            some = items[first : first + 500]
            sets = [b"set %b %d %d %d\r\n%b\r\n" % (queue.encode(), *each[:2], len(each[2]), each[2]) for each in some]
            client.ask(b"".join(sets), b"STORED\r\n" * len(some))


def fill(ctl: Kestrelctl, queue: str, numbers: range) -> None:
    put(ctl, queue, [(0, 0, b"%d" % number) for number in numbers])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def kept(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What an import keeps of the lines of an export: an expiry to the second."""
    return [
        (line.get("data"), line.get("data_base64"), line.get("flags", 0), -(-line.get("expire_ms", 0) // 1000))
        for line in lines[1:]
    ]


def odd_items(count: int) -> list[tuple[int, int, bytes]]:
    """Binary, text, empty, with every byte there is; flags and expiry of some."""
    chance = random.Random(2)
    later = int(time.time()) + 100_000
    samples = [b"", b"\r\n", b"\0", bytes(range(256)), "ü€😀\u2028".encode(), b'{"a": "\\"}', b"END\r\n"]
    return [
        (
            chance.choice((0, 0, 7, 2**32 - 1)),
            chance.choice((0, 0, later + number)),
            samples[number] if number < len(samples) else chance.randbytes(chance.randrange(60)),
        )
        for number in range(count)
    ]


def test_an_export_has_all_that_is_known_of_each_item(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    expiry_s = int(time.time()) + 5000
    put(kestrelctl, queue, [(7, 0, "tëxt".encode()), (0, expiry_s, b"\xff\0")])
    run = kestrelctl("export", queue, str(tmp_path / "out"))
    assert (run.code, run.out, run.err) == (0, b"", "")
    header, first, second = lines_of(tmp_path / "out")
    assert (header["kestrelctl_export"], header["queue"]) == (1, queue)
    assert first == {"id": 1, "add_ms": first["add_ms"], "flags": 7, "data": "tëxt"}
    assert abs(first["add_ms"] / 1000 - time.time()) < 600
    assert second == {
        "id": 2,
        "add_ms": second["add_ms"],
        "expire_ms": expiry_s * 1000,
        "data_base64": base64.b64encode(b"\xff\0").decode(),
    }
    assert kestrelctl("export", queue).out == (tmp_path / "out").read_bytes()
    assert kestrelctl("get", queue).out == "tëxt".encode()


def _round_trip(kestrelctl: Kestrelctl, other: Daemon, queue: str, folder: Path, count: int) -> None:
    items = odd_items(count)
    put(kestrelctl, queue, items)
    out, back = folder / "out", folder / "back"
    assert kestrelctl("export", queue, str(out)).code == 0
    there = ["-s", other.address]
    run = kestrelctl("import", queue, str(out), *there)
    assert (run.code, run.out, run.err) == (0, b"", "")
    assert not (folder / "out.importing").exists()
    assert kestrelctl("export", queue, str(back), *there).code == 0
    assert len(kept(lines_of(out))) == count
    assert kept(lines_of(out)) == kept(lines_of(back))
    with connected(other.address) as client:
        for flags, _, data in items:
            client.ask(
                b"get %b\r\n" % queue.encode(),
                b"VALUE %b %d %d\r\n%b\r\nEND\r\n" % (queue.encode(), flags, len(data), data),
            )


def test_items_go_out_and_in_identical(kestrelctl: Kestrelctl, other: Daemon, queue: str, tmp_path: Path) -> None:
    _round_trip(kestrelctl, other, queue, tmp_path, 1500)


@pytest.mark.long
def test_100_000_binary_items_go_out_and_in_identical(
    kestrelctl: Kestrelctl, other: Daemon, queue: str, tmp_path: Path
) -> None:
    _round_trip(kestrelctl, other, queue, tmp_path, 100_000)


def test_a_pipe_will_do_for_both(kestrelctl: Kestrelctl, queue: str) -> None:
    fill(kestrelctl, queue, range(1000))
    run = kestrelctl.script("bash", 'kestrelctl export "$Q" | kestrelctl import "$Q-2"', Q=queue)
    assert (run.code, run.err) == (0, "")
    assert kestrelctl("get", f"{queue}-2", "--all").out.split() == [b"%d" % number for number in range(1000)]


def test_an_export_is_not_written_over_and_goes_on_behind_its_last_whole_line(
    kestrelctl: Kestrelctl, queue: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(kestrelctl, queue, range(1200))
    assert kestrelctl("export", queue, str(out), "--resume").code == 0  # there is nothing yet
    whole = out.read_bytes()
    assert kestrelctl("export", queue, str(out)).code == 73
    ends = [0, 10, len(whole) // 2, whole.rindex(b"\n", 0, -1) + 1, len(whole) - 3]
    for end in ends:
        out.write_bytes(whole[:end])
        assert kestrelctl("export", queue, str(out), "--resume").code == 0
        assert out.read_bytes() == whole, end
    fill(kestrelctl, queue, range(1200, 1203))
    kestrelctl("export", queue, str(out), "--resume")
    assert [line["id"] for line in lines_of(out)[1:]] == list(range(1, 1204))


def test_a_file_of_another_journal_is_not_gone_on_with(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(kestrelctl, queue, range(3))
    kestrelctl("export", queue, str(out))
    kestrelctl("delete", queue)
    fill(kestrelctl, queue, range(5))
    run = kestrelctl("export", queue, str(out), "--resume")
    assert (run.code, "deleted since" in run.err) == (73, True)
    assert kestrelctl("export", f"{queue}-missing").code == 1


def test_an_import_that_was_refused_goes_on_where_it_was(
    kestrelctl: Kestrelctl, queue: str, small: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(kestrelctl, queue, range(8))
    kestrelctl("export", queue, str(out))
    for expected, more in (([0, 1, 2], []), ([3, 4, 5], ["--resume"])):
        run = kestrelctl("import", small, str(out), *more)
        assert (run.code, run.err.count("\n")) == (81, 1)
        assert "use --resume to continue from there" in run.err
        assert kestrelctl("get", small, "--all").out.split() == [b"%d" % number for number in expected]
    refused = kestrelctl("import", small, str(out))
    assert (refused.code, "stopped at item 6" in refused.err) == (73, True)
    assert kestrelctl("import", "another", str(out), "--resume").code == 2
    assert kestrelctl("import", small, str(out), "--resume").code == 0
    assert kestrelctl("get", small, "--all").out.split() == [b"6", b"7"]
    assert not (tmp_path / "out.importing").exists()


@pytest.mark.long
def test_an_import_that_is_killed_loses_nothing_and_repeats_little(
    kestrelctl: Kestrelctl, other: Daemon, queue: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(kestrelctl, queue, range(10_000))
    kestrelctl("export", queue, str(out))
    there = ["-s", other.address]
    running = kestrelctl.start("import", queue, str(out), *there)
    while not (tmp_path / "out.importing").exists() and running.poll() is None:
        pass
    stop(other.pid)
    running.kill()
    running.communicate()
    other.signal(signal.SIGCONT)
    if running.returncode == 0:
        pytest.skip("it was done before it could be killed")
    kestrelctl("import", queue, str(out), "--resume", *there)
    found = [int(item) for item in kestrelctl("get", queue, "--all", *there).out.split()]
    assert sorted(set(found)) == list(range(10_000))
    assert len(found) <= 10_000 + 512


def test_lines_that_are_no_items_are_named_and_what_is_before_them_is_stored(
    kestrelctl: Kestrelctl, queue: str
) -> None:
    bad = [
        "{",
        "[]",
        "{}",
        '{"data": 5}',
        '{"data_base64": "?"}',
        '{"data": "x", "flags": -1}',
        '{"data": "x", "id": "1"}',
    ]
    for line in bad:
        run = kestrelctl("import", queue, stdin=f'{{"data":"a"}}\n\n{line}\n{{"data":"b"}}\n'.encode())
        assert (run.code, run.err.count("\n")) == (65, 1), line
        assert "-: line 3: " in run.err
        assert kestrelctl("get", queue, "--all").out == b"a\n"
    assert kestrelctl("import", queue, stdin=b'{"kestrelctl_export":2}\n').code == 65
    assert kestrelctl("import", queue, "/nowhere").code == 66
    assert kestrelctl("import", queue, "--resume").code == 2


def test_what_has_expired_is_left_out(kestrelctl: Kestrelctl, queue: str) -> None:
    run = kestrelctl("import", queue, stdin=b'{"data":"old","expire_ms":1000}\n{"data":"new"}\n')
    assert run.code == 0
    assert kestrelctl("get", queue, "--all").out == b"new\n"


def test_on_a_terminal_there_is_a_bar(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    fill(kestrelctl, queue, range(1000))
    main, terminal = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "kestrelctl", "export", queue, str(tmp_path / "out")],
        env=kestrelctl.environment | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while select.select([main], [], [], 30)[0]:
        try:
            shown += os.read(main, 4096)
        except OSError:  # nobody has it open any more
            break
    os.close(main)
    assert run.wait(30) == 0
    assert f"export {queue}".encode() in shown
    assert b"exported items=1000" in shown


# Compressed


def compressed(kind: str, data: bytes) -> bytes:
    """In two streams."""
    half = len(data) // 2
    if kind == "gz":
        return gzip.compress(data[:half]) + gzip.compress(data[half:]) + bytes(7)
    zstandard = pytest.importorskip("zstandard")
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_an_import_reads_what_gzip_and_zstd_wrote(
    kestrelctl: Kestrelctl, queue: str, tmp_path: Path, kind: str
) -> None:
    data = b"".join(b'{"data":"%d %s"}\n' % (number, b"x" * 200) for number in range(3000))
    file = tmp_path / f"items.{kind}"
    file.write_bytes(compressed(kind, data))
    assert kestrelctl("import", queue, str(file)).code == 0
    assert kestrelctl("import", queue, "-", stdin=file.read_bytes()).code == 0
    items = kestrelctl("get", queue, "--all").out.splitlines()
    assert items == 2 * [b"%d %s" % (number, b"x" * 200) for number in range(3000)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_compressed_import_that_was_cut_short_resumes(
    kestrelctl: Kestrelctl, queue: str, tmp_path: Path, kind: str
) -> None:
    lines = [
        b'{"data":"%d %s"}\n' % (number, random.Random(number).randbytes(40).hex().encode()) for number in range(3000)
    ]
    file = tmp_path / "items"
    whole = compressed(kind, b"".join(lines))
    file.write_bytes(whole[:-100])
    short = kestrelctl("import", queue, str(file))
    assert short.code == 65
    assert f"{file}: ends inside compressed data" in short.err
    file.write_bytes(whole)
    assert kestrelctl("import", queue, str(file), "--resume").code == 0
    items = kestrelctl("get", queue, "--all").out.splitlines()
    assert items == [line[9:-3] for line in lines]


def test_a_damaged_gzip_file_is_exit_65(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "items.gz"
    file.write_bytes(gzip.compress(b'{"data":"x"}\n')[:-6] + b"damage")
    run = kestrelctl("import", queue, str(file))
    assert (run.code, run.out) == (65, b"")
    assert run.err.startswith(f"kestrelctl: {file}: cannot be decompressed: ")


def test_where_python_has_no_zstd_an_import_says_what_to_install(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    file = tmp_path / "items.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00")
    without = "import sys; sys.modules |= dict.fromkeys(['zstandard', 'compression', 'compression.zstd'])"
    run = subprocess.run(
        [sys.executable, "-c", f"{without}; from kestrelctl.app import main; main()", "import", "q", str(file)],
        env=kestrelctl.environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 74
    assert run.stderr.startswith(
        f"kestrelctl: cannot read {file}: zstd requires Python 3.14 or pip install 'kestreld[zstd]'"
    )
