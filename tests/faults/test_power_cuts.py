"""The power is cut under the real process, on a disk that loses, keeps or tears what was not synced."""

import os
import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon
from tests.support.load import WRITERS, Load
from tests.support.power_disk import PowerDisk, power_disk
from tests.support.queue_client import QueueClient

SMALL: Final = "max_journal_size=20KiB"
LONG: Final = [pytest.mark.long, pytest.mark.timeout(300)]
CUTS: Final = int(os.environ.get("POWER_CUTS", "30"))  # of a synced journal, in the long tests, thirty to a disk
SYNCED: Final = [pytest.param("true", min(CUTS - before, 30), before, marks=LONG) for before in range(0, CUTS, 30)]


def after_a_cut(daemon: Daemon, disk: PowerDisk, seconds: float) -> tuple[Load, list[bytes] | None]:
    """Clients at work, kill -9, the power cut, a start: what they had been told, and what the queue then holds.

    None where the queue is stopped: of an unsynced journal, later records may be there without earlier ones. What has
    not been read by then, as it is on disk only, may stop it on the way.
    """
    daemon.start()
    try:
        load = Load(daemon.port)
        time.sleep(seconds)
        daemon.kill()
        load.join()
        disk.cut()
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.put("other", b"x")
            assert client.get("other") == b"x"
            if is_stopped(client):
                return load, None
            try:
                left = client.drain("q")
            except AssertionError:
                with QueueClient(daemon.port) as other:
                    if not is_stopped(other):
                        raise
                return load, None
    finally:
        if daemon.process is not None:
            daemon.kill()
    assert len(left) == len(set(left))
    assert set(left) <= load.sent, "never put"
    for writer in range(WRITERS):
        own = [data for data in left if data.startswith(b"%d-" % writer)]
        assert own == sorted(own), "in order"
    return load, left


def is_stopped(client: QueueClient) -> bool:
    return client.stats()["queues_stopped"] == "1"


@pytest.mark.parametrize(
    ("sync", "cycles", "before"), [("true", 2, 0), *SYNCED, pytest.param("false", 10, 0, marks=LONG)]
)
def test_a_power_cut_takes_nothing_that_was_synced_and_alters_nothing(
    tmp_path: Path, sync: str, cycles: int, before: int
) -> None:
    """Now and then the spool itself is a new one."""
    seed = before + cycles
    rng = random.Random(seed)
    stored = confirmed = lost = repeated = stopped = 0
    with power_disk(tmp_path / "disk", seed) as disk:
        for cycle in range(cycles):
            memory = f"max_memory_size={rng.choice([1, 1000])}KiB"
            daemon = Daemon(tmp_path, [f"sync_journal={sync}", SMALL, memory])
            daemon.spool = disk.folder / f"{cycle // 2 if sync == 'true' else cycle}" / "spool"
            load, left = after_a_cut(daemon, disk, rng.uniform(0.05, 0.3))
            stored, confirmed = stored + len(load.stored), confirmed + len(load.confirmed)
            stopped += left is None
            lost += len(load.stored - load.confirmed - load.closing - set(left or ()))
            repeated += len(load.confirmed & set(left or ()))
    print(
        f"\n{cycles} power cuts, sync_journal {sync}: {stored} stored, {confirmed} confirmed;"
        f" {lost} lost, {repeated} confirmed and there again, {stopped} times stopped"
    )
    if sync == "true":
        assert (lost, repeated, stopped) == (0, 0, 0)


def test_what_a_stop_has_put_on_disk_survives_a_power_cut(tmp_path: Path) -> None:
    """Also where the file system is a program, which is not told of a sync of the whole."""
    names = [f"q{number}" for number in range(5)]
    with power_disk(tmp_path / "disk", 1) as disk:
        daemon = Daemon(tmp_path, ["sync_journal=false"])
        daemon.spool = disk.folder / "spool"
        daemon.start()
        try:
            with QueueClient(daemon.port) as client:
                for name in names:
                    client.put(name, b"item")
            assert daemon.stop() == 0
            disk.cut()
            daemon.start()
            with QueueClient(daemon.port) as client:
                assert [client.get(name) for name in names] == [b"item"] * 5
        finally:
            if daemon.process is not None:
                daemon.kill()
