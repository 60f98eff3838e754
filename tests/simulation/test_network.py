"""The simulated network is as strict as the kernel's: what a client could not do there it cannot do here."""

import pytest

from tests.simulation.world import World


def test_nothing_can_be_sent_once_the_input_is_ended() -> None:
    world = World(0)
    world.lay_out()
    world.start()
    assert world.server is not None
    link = world.server.network.connect_client(lambda data, sent_us: None, lambda: None)
    assert link is not None
    link.send(b"version\r\n")
    link.end_input()
    with pytest.raises(BrokenPipeError):
        link.send(b"version\r\n")
