"""The benchmark of the cache with few keys: that it runs, notices wrong values, and says what is above its limit."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import cache
from benchmarks.limits import line, ratio
from benchmarks.load import Load, LoadResult, run
from tests.support.daemon import running_daemon
from tests.support.tampering import tampering_proxy

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")

KEYS = 50


@pytest.fixture(scope="module")
def cache_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), "listen.cache=127.0.0.1:0") as daemon:
        yield daemon.cache_port


def loaded(port: int, work: str, *, fill: int = 0, at_least: int = 20) -> LoadResult:
    load = Load(work=work, clients=2, depth=4, size="64-100", keys=KEYS, fill=fill, at_least=at_least)
    return run(load, protocol="memcached", port=port, pid=0, queue="k", seconds=0.05)


def test_values_of_random_keys_come_back_as_they_were_put(cache_port: int) -> None:
    for work in ("put+take", "take", "put"):
        result = loaded(cache_port, work, fill=KEYS)
        assert (result.faults, result.first_fault) == (0, "")
        assert (result.puts > 0) == (work != "take")
        assert (result.takes > 0) == (work != "put")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda reply: reply[:-8] + bytes([reply[-8] ^ 1]) + reply[-7:], "an item is damaged, or not ours"),
        (lambda reply: b"END\r\n", "a key had no value"),
        (lambda reply: b"ERROR\r\n", "refused: ERROR"),
    ],
    ids=["damaged", "missing", "refused"],
)
def test_a_wrong_value_is_noticed(cache_port: int, change: Callable[[bytes], bytes], fault: str) -> None:
    loaded(cache_port, "put", fill=KEYS)
    with tampering_proxy(cache_port, lambda reply: change(reply) if reply.startswith(b"VALUE ") else reply) as address:
        result = loaded(int(address.rpartition(":")[2]), "take", at_least=0)
    assert result.first_fault == fault


def test_the_median_of_the_ratios_of_the_rounds_is_held_against_the_limit() -> None:
    figure = ratio("name", [2.0, 4.0, 3.0], [2.0, 2.0, 1.0], 1.9)
    assert (figure.value, figure.is_above) == (2.0, True)
    assert line(figure).startswith("ABOVE name")
    assert "minima 2.00 (2.00 and 1.00 µs); rounds 1.00 to 3.00" in line(figure)


@pytest.mark.long
def test_all_parts_run_and_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("memcached") is None:
        pytest.skip("memcached is not installed")
    assert cache.main(["--quick", "--folder", str(tmp_path)]) in (0, 1)  # so short a run may be above
    said = capsys.readouterr().out
    for words in ("16 clients x 32", "get of 5,000 keys", "RSS of 8 MiB", "10,000 keys expire at once"):
        assert words in said, said
    assert not list(tmp_path.iterdir())
