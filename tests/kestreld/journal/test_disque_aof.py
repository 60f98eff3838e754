"""Disque's append-only file: what is read of whole, cut and damaged ones."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal import disque_aof
from kestreld.journal.disque_aof import AofReader, SavedJob, packed_saved_job, read_saved_job
from tests.support.disque_aof import delete, job_id, load, saved_job
from tests.support.memory_files import MemoryFiles
from tests.support.resp import request

PATH = "/dir/disque.aof"


def reader_of(content: bytes) -> AofReader:
    files = MemoryFiles()
    files.files[PATH] = bytearray(content)
    return AofReader(files, PATH)


def read(content: bytes) -> tuple[list[SavedJob | bytes], int | None]:
    reader = reader_of(content)
    return list(reader), reader.torn_at


def test_every_field_of_a_job_is_read() -> None:
    blob = saved_job(
        7, queue=b"q\0/\r\n", body=b"\r\n$3\r\n", state=1, gc=9, flags=255, replicas=3, created_ms=1_600_000_000_123,
        counter=5, ttl_s=60, delay_s=7, retry_s=9, nacks=65_535, deliveries=2, nodes=3,
    )  # fmt: skip
    assert read_saved_job(blob) == SavedJob(
        job_id(7), 1, 3, 1_600_000_060, 1_600_000_000_123_000_005, 7, 9, 65_535, 2, b"q\0/\r\n", b"\r\n$3\r\n",
        (b"0123456789abcdef0123456789abcdef01234567",) * 3,
    )  # fmt: skip


def test_a_job_that_is_packed_again_is_the_same() -> None:
    for blob in (saved_job(1), saved_job(2, queue=b"", body=b"", state=1, replicas=3, delay_s=9, nacks=1, nodes=0)):
        assert read_saved_job(packed_saved_job(read_saved_job(blob))) == replace(read_saved_job(blob), nodes=())
    assert packed_saved_job(read_saved_job(saved_job(3, nodes=0))) == saved_job(3, nodes=0)


def test_a_file_is_jobs_and_ids_of_jobs_that_have_gone(tmp_path: Path) -> None:
    path = tmp_path / "disque.aof"
    path.write_bytes(load(saved_job(1)) + delete(1) + b"*2\r\n$7\r\nloadjob\r\n" + load(saved_job(2))[17:])
    found = list(AofReader(FileLayer(), str(path)))
    assert [one if isinstance(one, bytes) else one.job_id for one in found] == [job_id(1), job_id(1), job_id(2)]


def test_an_empty_file_has_no_jobs() -> None:
    assert read(b"") == ([], None)


def test_jobs_are_read_whatever_chunks_they_lie_in(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [saved_job(number, body=b"x" * size) for number, size in enumerate([0, 1, 100, 5000, 3, 70])]
    content = b"".join(map(load, blobs))
    for chunk_bytes in (1, 2, 7, 64, 1000, 4096):
        monkeypatch.setattr(disque_aof, "CHUNK_BYTES", chunk_bytes)
        assert read(content) == ([read_saved_job(blob) for blob in blobs], None)


def test_a_file_that_is_cut_anywhere_has_what_is_whole_and_says_where_the_rest_begins() -> None:
    first, second = load(saved_job(1)) + delete(3), load(saved_job(2))
    whole = read(first)[0]
    for size in range(1, len(second)):
        assert read(first + second[:size]) == (whole, len(first))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\0\0\0\0", "expected '*' and a number"),
        (b"REDIS0006", "expected '*' and a number"),
        (request("SET", "a", "b"), "a command of 3 words"),
        (request("FLUSHALL", "x"), "unknown command b'FLUSHALL'"),
        (request("DELJOB", "D-short"), "DELJOB of an invalid id"),
        (request("LOADJOB", b"short"), "the job is cut short"),
        (request("LOADJOB", saved_job()[:-1]), "the job's lengths are inconsistent"),
        (request("LOADJOB", saved_job() + b"x"), "the job's lengths are inconsistent"),
        (request("LOADJOB", saved_job(state=7)), "state 7"),
        (request("LOADJOB", saved_job(id=b"x" * 40)), "invalid id"),
        (b"*2\r\n$7\r\nLOADJOBxx$3\r\nabc\r\n", "is not terminated where its length says"),
        (b"*2\r\n$9999999999\r\n", "a word of 9999999999 bytes"),
        (b"*2\r\n:7\r\n", "expected '$' and a number"),
    ],
)
def test_damage_is_named_with_its_place(content: bytes, reason: str) -> None:
    before = load(saved_job(1)) + delete(1)
    with pytest.raises(JournalCorrupt, match="byte") as raised:
        read(before + content)
    assert raised.value.path == PATH
    assert raised.value.offset == len(before)
    assert reason in raised.value.reason


@given(data=st.data())
def test_a_damaged_job_is_refused_or_read_and_never_anything_else(data: st.DataObject) -> None:
    blob = bytearray(saved_job(1, body=b"some body"))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_saved_job(bytes(blob))
    except ValueError:
        return
    assert found.body in bytes(blob)


@given(seed=st.integers(0, 1 << 32), content=st.binary(max_size=300))
def test_whatever_a_file_has_is_read_or_corrupt(seed: int, content: bytes) -> None:
    random = Random(seed)
    whole = load(saved_job(1)) + delete(2) + load(saved_job(3))
    at = random.randrange(len(whole))
    for mixed in (content, whole[:at] + content, whole[:at] + content + whole[at:]):
        reader = reader_of(mixed)
        try:
            list(reader)
        except JournalCorrupt:
            continue
        assert reader.torn_at is None or reader.torn_at < len(mixed)
