"""Where a login is required, no item goes its way: who has no user is told so before anything is sent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kestreld.client import JobClient, KestrelCluster, ServerRefused
from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl
from tests.support.tampering import tampering_proxy

OK, AUTHENTICATION = 0, 82
USER = {"KESTRELCTL_USER": "shop", "KESTREL_PASSWORD": "secret"}
CONFIG = f"""\
users:
  shop: {{password: "{quick_hash("secret")}", rights: {{"*": all}}, cache: {{"*": all}}, jobs: {{"*": all}}}}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = ("listen.cache=127.0.0.1:0", "listen.disque=127.0.0.1:0")
    with running_daemon(tmp_path_factory.mktemp("guarded"), *settings, config=CONFIG) as daemon:
        yield daemon


@pytest.mark.parametrize(
    "line",
    [
        ["put", "w", "shop secret"],
        ["put", "w", "--lines"],
        ["put", "w", "--null"],
        ["put", "w", "@FILE"],
        ["put", "w", "shop secret", "--delay", "5s"],
        ["import", "w"],
        ["cache", "set", "w", "shop secret"],
        ["cache", "add", "w", "shop secret"],
        ["jobs", "add", "w", "shop secret"],
        ["jobs", "add", "w", "--lines"],
        ["get", "w"],
        ["delete", "w", "--yes"],
        ["flush-all", "--yes"],
        ["bench", "flood", "-q", "w"],
    ],
    ids=" ".join,
)
def test_without_a_user_nothing_is_sent(guarded: Daemon, tmp_path: Path, line: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"shop secret")
    sent: list[bytes] = []

    def note(request: bytes) -> bool:
        sent.append(request)
        return True

    ports = (guarded.port, guarded.cache_port, int(guarded.disque.rpartition(":")[2]))
    with (
        tampering_proxy(ports[0], admit=note) as queues,
        tampering_proxy(ports[1], admit=note) as cache,
        tampering_proxy(ports[2], admit=note) as jobs,
    ):
        ctl = Kestrelctl(queues, tmp_path, cache, jobs)
        stdin = b'{"data":"shop secret"}\n' if "import" in line else b"shop secret\nsecond\n"
        run = ctl(*[word.replace("FILE", str(tmp_path / "file")) for word in line], stdin=stdin)
    assert run.code == AUTHENTICATION, run
    needs = "requires a password" if line[0] == "jobs" else "authentication required: use --user or --cert"
    assert needs in run.err
    assert "unknown" not in run.err
    assert b"secret" not in b"".join(sent)


def test_with_a_user_the_same_words_are_items(guarded: Daemon, tmp_path: Path) -> None:
    ctl = Kestrelctl(guarded.address, tmp_path, guarded.cache)
    ctl.environment |= USER
    assert ctl("put", "mine", "--lines", stdin=b"shop secret\nsecond\n").code == OK
    assert ctl("get", "mine", "--all").out == b"shop secret\nsecond\n"
    assert ctl("cache", "set", "mine", "shop secret").code == OK
    assert ctl("cache", "get", "mine").out == b"shop secret"


def test_clients_know_that_they_have_no_user(guarded: Daemon) -> None:
    with KestrelCluster([guarded.address]) as cluster:
        queue = cluster.queue("w")
        operations: list[Callable[[], object]] = [
            lambda: queue.put(b"shop secret"),
            lambda: queue.put(b"shop secret", key="k"),
            queue.get,
            queue.delete,
        ]
        for operation in operations:
            with pytest.raises(ServerRefused, match="unauthenticated"):
                operation()
    with JobClient([guarded.disque]) as jobs, pytest.raises(ServerRefused, match="unauthenticated"):
        jobs.add("w", b"shop secret")
    with KestrelCluster([guarded.address], user="shop", password="secret") as cluster:
        assert cluster.queue("w").stats() == {guarded.address: {}}
        assert cluster.queue("w").put(b"shop secret")
        assert cluster.queue("w").get() == b"shop secret"
