"""AsyncJobClient on real nodes: the same as JobClient, awaited."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kestreld.client import AsyncJobClient, Job, JobRefused, ServersAway, job_nodes
from kestreld.client.job_commands import JobCommand
from kestreld.client.resp import request
from kestreld.errors import ConnectionLost, LoginRefused, UnexpectedReply
from tests.kestreld.client.test_jobs import ANY_BYTES, HELLO, LONG_S, beats
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.peer import Exchange, scripted_peer
from tests.support.resp import resp_client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("jobs"), "listen.disque=127.0.0.1:0") as daemon:
        yield daemon


INFO = JobCommand([b"INFO", b"clients"], str)


async def until_blocked(client: AsyncJobClient, clients: int) -> None:
    """So many wait."""
    async with asyncio.timeout(LONG_S):
        while f"blocked_clients:{clients}\\r" not in await client._do(INFO):
            await asyncio.sleep(0.005)


Body = Callable[[AsyncJobClient], Awaitable[None]]
Run = Callable[[Body], None]


@pytest.fixture
def run(server: Daemon) -> Run:
    """Runs a coroutine with a client of an empty node."""
    with resp_client(server.disque) as wire:
        assert wire("DEBUG", "FLUSHALL") == b"OK"

    async def with_client(body: Body) -> None:
        async with AsyncJobClient([server.disque]) as client:
            await body(client)

    return lambda body: asyncio.run(with_client(body))


def test_every_command_does_what_it_says(run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        job_id = await client.add("mail", ANY_BYTES, retry=60, key="order 7")
        assert await client.add("mail", b"", key="order 7") == job_id
        assert await client.qlen("mail") == 1
        assert [job.id for job in await client.qpeek("mail")] == [job_id]
        job = await client.get("nothing", "mail", timeout=5)
        assert job is not None
        assert (job.id, job.body) == (job_id, ANY_BYTES)
        assert await client.working(job) == 60
        assert await client.nack(job) == 1
        (again,) = await client.get_many("mail", count=5)
        assert again.nacks == 1
        assert await client.enqueue(again) == 1
        shown = await client.show(again)
        assert shown is not None
        assert shown["state"] == "queued"
        assert await client.dequeue(again) == 1
        assert await client.enqueue(again) == 1
        other = await client.add("other", b"x")
        assert await client.delete(other) == 1
        assert (await client.qstat("mail") or {})["len"] == 1
        assert await client.wait(job_id, timeout=0.02) is None
        waiting = asyncio.create_task(client.wait(job_id))
        await until_blocked(client, 1)
        assert await client.fastack(job_id) == 1
        assert await waiting == "acked"
        assert await client.ack(job_id) == 0
        assert await client.get("mail", timeout=0) is None
        with pytest.raises(JobRefused, match="not known"):
            await client.working(job_id)

    run(body)


def test_work_is_acknowledged_or_given_back_and_loops_go_on(run: Run) -> None:
    async def failing(client: AsyncJobClient, failure: BaseException) -> Job:
        with suppress(type(failure)):
            async with client.work("mail") as job:
                raise failure
        return job

    async def body(client: AsyncJobClient) -> None:
        ids = [await client.add("mail", b"%d" % number) for number in range(3)]
        async with client.work("mail") as job:
            assert job.id == ids[0]
        assert await client.show(ids[0]) is None
        jobs = [await failing(client, failure) for failure in (ZeroDivisionError(), asyncio.CancelledError())]
        assert [job.nacks for job in jobs] == [0, 1]
        found = []
        async for job in client.jobs("mail"):
            found.append((job.id, job.nacks, job.additional_deliveries))
            if len(found) == 2:
                await client.close()
        assert found == [(ids[1], 1, 1), (ids[2], 0, 0)]
        async with client.work("mail", timeout=0) as nothing:
            assert nothing is None

    run(body)


@pytest.mark.long
def test_a_heartbeat_keeps_a_job_that_takes_longer_than_its_retry_time(run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        await client.add("slow", b"x", retry=6, ttl=600)
        async with client.work("slow") as job:
            assert await client.get("slow", timeout=7) is None
        assert await client.show(job) is None

    run(body)


def test_a_heartbeat_says_again_and_again_that_somebody_works_until_the_block_ends(
    run: Run, server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_nodes, "BEAT_SHARE", 0.0001)

    async def body(client: AsyncJobClient) -> None:
        await client.add("slow", b"x", retry=60, ttl=600)
        async with client.work("slow") as job, asyncio.timeout(LONG_S):
            while beats(wire) < 3:
                await asyncio.sleep(0.005)
            assert await client.qlen("slow") == 0
        assert await client.show(job) is None
        said = beats(wire)
        await client.qlen("slow")
        assert beats(wire) == said

    with resp_client(server.disque) as wire:
        wire("CONFIG", "RESETSTAT")
        run(body)


def test_a_wait_that_is_cancelled_takes_no_job_along(run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        waiting = asyncio.create_task(client.get("mail"))
        await until_blocked(client, 1)
        waiting.cancel()
        await until_blocked(client, 0)
        job_id = await client.add("mail", b"x")
        job = await client.get("mail", timeout=5)
        assert job is not None
        assert job.id == job_id

    run(body)


def test_a_job_that_comes_for_a_task_that_is_just_cancelled_goes_back_into_its_queue(server: Daemon, run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        waiting = asyncio.create_task(client.get("mail"))
        await until_blocked(client, 1)
        with resp_client(server.disque) as wire:  # while nothing else goes on here: the reply is on its way to the task
            wire("ADDJOB", "mail", "x", 5000, "RETRY", 300)
        waiting.cancel()
        job = await client.get("mail", timeout=60)
        assert job is not None
        assert job.additional_deliveries == 1
        assert await client.ack(job) == 1

    run(body)


def test_a_client_that_is_closed_has_given_back_what_came_for_cancelled_tasks(server: Daemon, run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        waiting = asyncio.create_task(client.get("mail"))
        await until_blocked(client, 1)
        with resp_client(server.disque) as wire:
            wire("ADDJOB", "mail", "x", 5000, "RETRY", 300)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await client.close()
            assert wire("QLEN", "mail") == 1

    run(body)


def test_closing_ends_the_waits_of_other_tasks(run: Run) -> None:
    async def body(client: AsyncJobClient) -> None:
        waiting = asyncio.create_task(client.get("mail"))
        await until_blocked(client, 1)
        await client.close()
        with pytest.raises(ServersAway, match="the client is closed"):
            await waiting
        assert [job async for job in client.jobs("mail")] == []

    run(body)


def test_another_node_is_asked_where_one_is_away(server: Daemon) -> None:
    async def body() -> None:
        async with AsyncJobClient(["127.0.0.1:1", server.disque]) as client:
            assert await client.ack(await client.add("q", b"x")) == 1
        async with AsyncJobClient(["127.0.0.1:1"], patience=0) as client:
            with pytest.raises(ServersAway, match="refused"):
                await client.qlen("q")

    asyncio.run(body())


def test_what_a_lost_node_may_have_done_is_not_done_twice() -> None:
    async def body(address: str) -> None:
        async with AsyncJobClient([address], patience=0) as client:
            with pytest.raises(ConnectionLost, match="it may have executed the command"):
                await client.add("q", b"x")

    with scripted_peer([Exchange(request(["HELLO"]), HELLO), Exchange(b"*", b"", closes=True)]) as peer:
        asyncio.run(body(peer.address))


def test_another_server_is_no_node_and_silence_is_no_answer(tmp_path: Path) -> None:
    async def body(address: str) -> None:
        async with AsyncJobClient([address]) as client:
            with pytest.raises(UnexpectedReply):
                await client.qlen("q")

    async def waiting(address: str) -> None:
        async with AsyncJobClient([address], timeout=0.2, patience=0) as client:
            with pytest.raises(ServersAway, match="no answer within 200 ms"):
                await client.qlen("q")

    with running_daemon(tmp_path) as daemon:
        asyncio.run(body(daemon.address))
    with scripted_peer([Exchange(request(["HELLO"]), b"")]) as peer:
        asyncio.run(waiting(peer.address))


def test_users_log_in_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue_server()
    users = f'users: {{ann: {{password: "{quick_hash("pw")}", jobs: {{"mail*": [get, put]}}}}}}\n'
    tls = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    ca = str(authority.certificate)

    async def body(node: str) -> None:
        async with AsyncJobClient([node], user="ann", password="pw", ca=ca) as client:
            assert await client.ack(await client.add("mail.a", b"x")) == 1
            with pytest.raises(JobRefused, match="no right to put on other"):
                await client.add("other", b"x")
        async with AsyncJobClient([node], user="ann", password="no", ca=ca) as client:
            with pytest.raises(LoginRefused, match="ann: invalid password"):
                await client.qlen("mail.a")

    with running_daemon(tmp_path / "daemon", "listen.disque=tls:127.0.0.1:0", config=users + tls) as daemon:
        asyncio.run(body(f"tls:localhost:{daemon.disque.rpartition(':')[2]}"))
