"""What is promised of leases from lists of queues: their order, strict or in turn, and that no wait is in vain."""

from collections.abc import Iterator
from itertools import takewhile

from tests.simulation.history import Life, Listed, Put
from tests.simulation.times import A_TICK_US, Times


class Lists(Times):
    """An item comes from the first queue of a list that has one, and an empty answer says that there was none."""

    def _check_lists(self) -> None:
        for listed in self._history.listed:
            assert listed.connection is not None
            life = listed.connection.life
            for reader in takewhile(lambda name, listed=listed: name != listed.reader, listed.readers):  # type: ignore[misc]
                if not self._may_be_out_of_use(reader, life, listed.served_us):
                    self._check_looked_at(listed, reader, life)

    def _may_be_out_of_use(self, reader: str, life: Life, at_us: int) -> bool:
        """Whether a queue may have been stopped then, or without what was put there."""
        family, history = reader.partition("+")[0], self._history
        if self._may_be_cut_up(family) or reader in history.undone or reader in self._rules.discards:
            return True
        return life.faulty_since.get(family, self._end_us) <= at_us

    def _check_looked_at(self, listed: Listed, reader: str, life: Life) -> None:
        """No item waited in a queue that was passed over, or while there was said to be none."""
        is_over_us = listed.sent_us + listed.wait_ms * 1000 - 2 * A_TICK_US
        waits_us = is_over_us if not listed.reader and listed.served_us >= is_over_us else 0  # else the server stopped
        for put, maybe_from_us, from_us, until_us in self._first_waits(reader, life):
            is_passed_over = from_us <= max(listed.sent_us, waits_us) and until_us > listed.served_us
            if is_passed_over and not self._may_be_held(reader, life, maybe_from_us, listed.served_us):
                came = f"one came from {listed.reader}" if listed.reader else "none came"
                self._violation(
                    f"item {put.number} waited in {reader} from {from_us} to {until_us}, and when"
                    f" {', '.join(listed.readers)} were asked for one at {listed.sent_us}, {came} at {listed.served_us}"
                )
                return

    def _first_waits(self, reader: str, life: Life) -> Iterator[tuple[Put, int, int, int]]:
        """Items that surely waited in a life before anybody had them: maybe from when, surely from when, and until."""
        for put, deliveries in self._by_reader[reader].items():
            taken = [one for one in deliveries if one.kind != "peek"]
            is_own = put.name in (reader, reader.partition("+")[0]) and put.answered_us >= 0 and not put.delay_ms
            if not taken or not is_own or put in self._history.sent_back or put in self._history.destroyed:
                continue
            if all(one.connection.life is life and not one.came_too_late for one in taken):
                maybe_from_us, from_us = max(put.sent_us, life.ready_us), max(put.answered_us, life.ready_us)
                yield put, maybe_from_us, from_us, min(one.sent_us for one in taken)
