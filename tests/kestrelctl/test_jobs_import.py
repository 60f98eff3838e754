"""kestrelctl jobs import: a Disque's file to a running server."""

import time
from pathlib import Path

from tests.support.disque_aof import delete, job_id, load, saved_job
from tests.support.shell import Kestrelctl


def test_the_jobs_of_a_file_are_imported_once(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    file = tmp_path / "disque.aof"
    now_ms = time.time_ns() // 1_000_000
    jobs = [saved_job(number, queue=b"imported", body=b"\r\n\0", created_ms=now_ms) for number in range(70)]
    expired = saved_job(99, created_ms=now_ms - 61_000, ttl_s=60)
    content = b"".join(map(load, [*jobs, expired])) + delete(3)
    file.write_bytes(content + b"*2\r\n")
    assert kestrelctl("jobs", "import", str(file), "--whole").code == 65
    run = kestrelctl("jobs", "import", str(file))
    assert (run.code, run.out) == (0, b"69\n")
    assert f"{file}: byte {len(content)}: cut short; the last 4 bytes are left out" in run.err
    found = kestrelctl("jobs", "scan", "--in", "imported", "-o", "name").out.split()
    assert sorted(found) == sorted(job_id(number) for number in range(70) if number != 3)
    assert kestrelctl("jobs", "import", str(file)).out == b"0\n"
    assert file.read_bytes() == content + b"*2\r\n"
    assert kestrelctl("jobs", "qdel", "imported", "--yes").code == 0


def test_of_a_file_that_is_corrupt_or_not_there_nothing_is_imported(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    file = tmp_path / "disque.aof"
    run = kestrelctl("jobs", "import", str(file))
    assert (run.code, f"{file}: no such file" in run.err) == (66, True)
    file.write_bytes(load(saved_job(1, queue=b"corrupt")) + b"SAVE")
    run = kestrelctl("jobs", "import", str(file))
    assert (run.code, "nothing was imported" in run.err) == (65, True)
    assert kestrelctl("jobs", "scan", "--in", "corrupt").code == 1
