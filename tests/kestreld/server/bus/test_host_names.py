"""Names become addresses in threads: nobody waits for the resolver."""

import asyncio
from threading import Event

import pytest

from kestreld.net import Network
from kestreld.server.bus.host_names import WAITING_MAX, HostNames, numeric


class SlowNetwork(Network):
    """Its resolver answers when it is let."""

    def __init__(self) -> None:
        self.goes_on = Event()

    def resolve(self, host: str) -> str:
        self.goes_on.wait(60)
        return super().resolve(host)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("n1", ""),
        ("", ""),
        ("1.2.3", ""),
    ],
)
def test_an_address_is_one_in_its_usual_form(host: str, address: str) -> None:
    assert numeric(host) == address


def test_a_name_is_resolved_an_address_is_at_once_and_what_is_none_is_told() -> None:
    async def run() -> list[str]:
        names = HostNames(asyncio.get_running_loop(), Network())
        found: list[str] = []
        names.resolve("10.1.2.3", found.append)
        assert found == ["10.1.2.3"], "at once"
        for host in ("localhost", "no-such-host.invalid", ""):
            done = asyncio.get_running_loop().create_future()
            names.resolve(host, done.set_result)
            found.append(await asyncio.wait_for(done, 60))
        names.stop()
        return found

    found = asyncio.run(run())
    assert found[1] in ("127.0.0.1", "::1")
    assert found[2:] == ["", ""]


def test_a_resolver_that_hangs_is_waited_for_a_second_and_no_more_than_so_many_names_wait() -> None:
    async def run() -> None:
        loop, network = asyncio.get_running_loop(), SlowNetwork()
        names = HostNames(loop, network)
        found: list[str] = []
        began_s = loop.time()
        for _ in range(WAITING_MAX + 5):
            names.resolve("localhost", found.append)
        assert found == [""] * 5, "too many"
        while len(found) < WAITING_MAX + 5:
            assert loop.time() - began_s < WAITING_MAX / 2, f"one after the other: {len(found)} have been told"
            await asyncio.sleep(0.01)
        assert set(found) == {""}
        network.goes_on.set()
        names.stop()

    asyncio.run(run())
