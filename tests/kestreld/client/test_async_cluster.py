"""AsyncKestrelCluster against real servers: what KestrelCluster does, for tasks, some of which are cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kestreld.client import AsyncClusterQueue, AsyncKestrelCluster, ConnectionLost, ServerRefused, ServersAway
from kestreld.errors import BadQueueName, LeaseLost, LoginRefused
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.waiting import PATIENCE_S

LONG_MS = 60_000  # no test waits so long
LONG_S = LONG_MS / 1000
NOBODY = "127.0.0.1:1"

Body = Callable[[AsyncClusterQueue], Awaitable[None]]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    folder = tmp_path_factory.mktemp("daemons")
    limit = "queues.small.max_items=2"
    with running_daemon(folder / "0", limit) as first, running_daemon(folder / "1", limit) as second:
        yield [first, second]


def run(daemons: list[Daemon], name: str, body: Body) -> None:
    """Run a coroutine with an empty queue on these servers."""

    async def with_queue() -> None:
        async with AsyncKestrelCluster([daemon.address for daemon in daemons]) as cluster, asyncio.timeout(PATIENCE_S):
            await cluster.queue(name).delete()
            await body(cluster.queue(name))

    asyncio.run(with_queue())


async def total(queue: AsyncClusterQueue, counter: str) -> int:
    return sum(int(counters[counter]) for counters in (await queue.stats()).values() if counters)


async def until_total(queue: AsyncClusterQueue, counter: str, wanted: int) -> None:
    while await total(queue, counter) != wanted:
        await asyncio.sleep(0.005)


def test_items_go_to_all_servers_and_come_from_all(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        items = [b"%d" % number for number in range(40)]
        assert all([await queue.put(item) for item in items])
        assert min(int(counters["items"]) for counters in (await queue.stats()).values()) > 2
        assert await queue.peek() in items
        assert sorted([await queue.get() or b"" for _ in items]) == sorted(items)
        assert await queue.get() is None

    run(daemons, "work", body)


def test_a_queue_is_flushed_and_deleted_everywhere(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        for _ in range(20):
            await queue.put(b"x")
        await queue.flush()
        assert await total(queue, "items") == 0
        assert await queue.delete()
        assert not await queue.delete()

    run(daemons, "wiped", body)


def test_false_is_what_full_servers_answer(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        assert [await queue.put(b"x") for _ in range(5)] == [True] * 4 + [False]

    run(daemons, "small", body)


def test_items_may_be_put_for_later_once_and_be_cancelled(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        assert await queue.put(b"later", delay=3600, key="order-17")
        assert await queue.put(b"again", delay=3600, key="order-17", once=True)
        assert await total(queue, "delayed") == 1
        assert await queue.cancel("order-17")
        assert not await queue.cancel("order-17")
        assert await queue.put(b"once", once=True)
        assert await queue.get() == b"once"

    run(daemons, "later", body)


def test_a_read_waits_for_its_item(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        waiting = [asyncio.create_task(queue.get(timeout=LONG_S)), asyncio.create_task(queue.lease(LONG_S, None))]
        await until_total(queue, "waiters", 2)
        await queue.put(b"1")
        await queue.put(b"2")
        got, leased = await asyncio.gather(*waiting)
        assert leased is not None
        assert {got, leased.item} == {b"1", b"2"}
        assert await queue.get(20) is None

    run(daemons[:1], "waits", body)


def test_a_lease_is_confirmed_extended_given_back_or_failed(daemons: list[Daemon]) -> None:
    async def body(queue: AsyncClusterQueue) -> None:
        await queue.put(b"x")
        first = await queue.lease(LONG_S, by="worker-7")
        assert first is not None
        assert await queue.lease(LONG_S) is None
        assert await first.extend(2 * LONG_S)
        assert await first.give_back()
        second = await queue.lease(LONG_S)
        assert second is not None
        assert await second.fail(reason="no such picture")
        third = await queue.lease(LONG_S)
        assert third is not None
        assert (third.item, third.is_lost, third.is_unsure) == (b"x", False, False)
        assert (first.deliveries, second.deliveries, third.deliveries) == (0, 1, 2)
        assert await third.confirm()
        assert not await second.confirm()
        assert await total(queue, "items") == await total(queue, "leased") == 0

    run(daemons[:1], "leased", body)


def test_a_block_confirms_its_item_or_lets_it_fail_or_gives_it_back(daemons: list[Daemon]) -> None:
    async def in_block(queue: AsyncClusterQueue, failure: BaseException | None) -> None:
        lease = await queue.lease(LONG_S, heartbeat=True)
        assert lease is not None
        async with lease:
            if failure is not None:
                raise failure

    async def body(queue: AsyncClusterQueue) -> None:
        await queue.put(b"x")
        with pytest.raises(ZeroDivisionError):
            await in_block(queue, ZeroDivisionError())
        with pytest.raises(asyncio.CancelledError):
            await in_block(queue, asyncio.CancelledError())
        await in_block(queue, None)
        assert await total(queue, "items") == await total(queue, "leased") == 0
        await queue.put(b"y")
        lost = await queue.lease(0.001)
        assert lost is not None
        other = await queue.lease(LONG_S, None)
        assert other is not None
        with pytest.raises(LeaseLost):
            async with lost:
                pass
        assert await other.confirm()

    run(daemons[:1], "blocks", body)


def test_a_heartbeat_keeps_a_lease_and_goes_on_over_a_kill_of_the_server(tmp_path: Path) -> None:
    async def body(queue: AsyncClusterQueue, daemon: Daemon) -> None:
        await queue.put(b"x")
        lease = await queue.lease(2, heartbeat=True, by="worker-7")
        assert lease is not None
        async with lease:
            daemon.kill()
            daemon.start()
            ends_at_ms = lease._calls.until_ms
            while lease._calls.until_ms <= ends_at_ms:
                await asyncio.sleep(0.01)
            assert await queue.lease(1) is None
        assert not lease.is_lost
        assert await queue.get() is None

    async def with_queue() -> None:
        with running_daemon(tmp_path) as daemon:
            async with AsyncKestrelCluster([daemon.address]) as cluster, asyncio.timeout(PATIENCE_S):
                await body(cluster.queue("work"), daemon)

    asyncio.run(with_queue())


def test_a_wait_goes_on_over_a_kill_of_the_server(tmp_path: Path) -> None:
    async def with_queue() -> None:
        with running_daemon(tmp_path) as daemon:
            async with AsyncKestrelCluster([daemon.address]) as cluster, asyncio.timeout(PATIENCE_S):
                queue = cluster.queue("work")
                await queue.put(b"0")
                assert await queue.get() == b"0"
                waiting = asyncio.create_task(queue.lease(LONG_S, None))
                await until_total(queue, "waiters", 1)
                daemon.kill()
                daemon.start()
                await queue.put(b"x")
                lease = await waiting
                assert lease is not None
                assert await lease.confirm()

    asyncio.run(with_queue())


def test_a_task_that_is_cancelled_anywhere_takes_no_item_along(daemons: list[Daemon]) -> None:
    chance = Random(17)

    async def body(queue: AsyncClusterQueue) -> None:
        for number in range(100):
            waiting = asyncio.create_task(queue.lease(LONG_S, None) if number % 2 else queue.get(None))
            if number % 3:
                await asyncio.sleep(chance.random() / 200)
            putting = asyncio.create_task(queue.put(b"%d" % number, once=True))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            waiting.cancel()
            found, is_put = await asyncio.gather(waiting, putting, return_exceptions=True)
            assert is_put is True
            if isinstance(found, asyncio.CancelledError):
                assert await queue.get(timeout=LONG_S) == b"%d" % number
            elif not isinstance(found, bytes):
                assert not isinstance(found, BaseException)
                assert found is not None
                assert await found.confirm()
        assert await total(queue, "items") == await total(queue, "leased") == await total(queue, "waiters") == 0

    run(daemons[:1], "cancelled", body)


def test_closing_ends_the_waits_of_other_tasks(daemons: list[Daemon]) -> None:
    async def with_cluster() -> None:
        cluster = AsyncKestrelCluster([daemons[0].address])
        queue = cluster.queue("closed")
        waiting = asyncio.create_task(queue.get(None))
        await until_total(queue, "waiters", 1)
        await cluster.close()
        assert cluster.is_closed
        assert await waiting is None
        with pytest.raises(ServersAway, match="the cluster is closed"):
            await queue.put(b"x")

    asyncio.run(with_cluster())


def test_a_server_that_is_away_is_left_out_until_it_is_back(daemons: list[Daemon], tmp_path: Path) -> None:
    async def with_both() -> None:
        with running_daemon(tmp_path) as daemon:
            servers = [NOBODY, daemons[0].address, daemon.address]
            async with AsyncKestrelCluster(servers) as cluster, asyncio.timeout(PATIENCE_S):
                queue = cluster.queue("away")
                daemon.kill()
                assert all([await queue.put(b"x") for _ in range(10)])
                assert len(await cluster.stats()) == 1
                daemon.start()
                while len(await cluster.stats()) < 2:
                    await asyncio.sleep(0.01)
        async with AsyncKestrelCluster([NOBODY], patience_ms=0) as nobody:
            with pytest.raises(ServersAway, match="refused"):
                await nobody.queue("away").get()

    asyncio.run(with_both())


def test_a_put_that_is_not_answered_is_an_error(daemons: list[Daemon]) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not (await reader.readline()).startswith(b"set "):
            writer.write(b"VERSION 1\r\n")
        writer.close()

    async def with_server() -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, AsyncKestrelCluster([f"{host}:{port}"]) as cluster:
            with pytest.raises(ConnectionLost, match="it may have executed the command"):
                await cluster.queue("work").put(b"x")

    asyncio.run(with_server())


def test_names_and_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="servers"):
        AsyncKestrelCluster(["host:0"])

    async def with_cluster() -> None:
        async with AsyncKestrelCluster([NOBODY]) as cluster:
            with pytest.raises(BadQueueName):
                cluster.queue("a/b")
            with pytest.raises(TypeError):
                await cluster.queue("work").put("text")  # type: ignore[arg-type]

    asyncio.run(with_cluster())


def test_a_user_logs_in_and_may_do_what_their_rights_are(tmp_path: Path) -> None:
    users = f"""
users:
  alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}
  bob: {{password: "{quick_hash("bob")}", rights: {{"b*": [put]}}}}
"""

    async def with_users() -> None:
        with running_daemon(tmp_path, config=users) as daemon:
            async with AsyncKestrelCluster([daemon.address], user="alice", password="all of it") as alice:
                assert await alice.queue("work").put(b"x")
                assert await alice.queue("work").get() == b"x"
            async with AsyncKestrelCluster([daemon.address], user="bob", password="bob") as bob:
                assert await bob.queue("bills").put(b"x")
                with pytest.raises(ServerRefused, match="not allowed"):
                    await bob.queue("bills").get()
            for login in ({}, {"user": "bob", "password": "wrong"}):
                async with AsyncKestrelCluster([daemon.address], patience_ms=0, **login) as other:
                    with pytest.raises(LoginRefused):
                        await other.queue("bills").put(b"x")

    asyncio.run(with_users())


def test_tls_and_unix_sockets(short_path: Path) -> None:
    authority = Authority(short_path / "ca")
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}}}\n"

    async def with_both() -> None:
        with (
            running_daemon(short_path / "a", config=config, listen="tls:127.0.0.1:0") as secured,
            running_daemon(short_path / "b", listen=f"unix:{short_path}/b.sock") as local,
        ):
            servers = [f"tls:{secured.address.removeprefix('tls:')}", local.address]
            async with AsyncKestrelCluster(servers, ca=str(authority.certificate)) as cluster:
                queue = cluster.queue("work")
                assert all([await queue.put(b"x") for _ in range(20)])
                assert len(await queue.stats()) == 2
                assert await total(queue, "items") == 20

    asyncio.run(with_both())
