"""What the real Disque was recorded to answer, this server answers too."""

import pytest

from tests.support.daemon import Daemon
from tests.support.disque_scenarios import Player, scenarios, slept_ms, steps_of


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if slept_ms(name) > 900 else name for name in scenarios()],
)
def test_answers_are_those_of_the_real_disque(server: Daemon, name: str) -> None:
    Player(server.disque).play(steps_of(name))
