"""The promise that whoever asks is told how often an item was delivered before: at least as often as clients know."""

from tests.simulation.history import POWER_CUT, Delivery, Put
from tests.simulation.lists import Lists


class Counts(Lists):
    """Leases that were answered count, those of earlier servers as one."""

    def _check_counted(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        family, history = put.family, self._history
        # What moves, or is put back, begins a new life; a repair may not know what was leased.
        if put.name not in (reader, reader.partition("+")[0]) or reader in history.undone or family in history.repaired:
            return
        leased = [one for one in deliveries if one.kind == "lease"]
        for later in leased:
            if later.deliveries < 0 or any(family in life.faulty_since for life in history.lives):
                continue
            earlier = [one for one in leased if one is not later and one.served_us <= later.sent_us]
            here = {one.token for one in earlier if one.connection.life is later.connection.life}
            least = len(here) or int(any(self._is_remembered(one, later) for one in earlier))
            if later.deliveries < least:
                self._violation(
                    f"item {put.number} came from {reader} at {later.served_us} as delivered {later.deliveries} times"
                    f" before, and was so {least} times at least"
                )

    def _has_leases(self, family: str, us: int) -> bool:
        """Whether the journal has had a lease by then: the first waits for a segment, and may be over before that."""
        leases = [one for one in self._history.deliveries if one.kind == "lease" and one.put.family == family]
        return any(one.served_us <= us for one in leases)

    def _is_remembered(self, earlier: Delivery, later: Delivery) -> bool:
        """Whether a lease was surely written down, and no power cut came since."""
        family, lives = earlier.put.family, self._history.lives
        if family in self._rules.forgets_leases or not self._has_leases(family, earlier.sent_us):
            return False
        between = lives[earlier.connection.life.number - 1 : later.connection.life.number]
        if not all(life.modes[family].journal for life in between) or self._may_be_cut_up(family):
            return False
        return not any(life.how == POWER_CUT or life.was_last for life in between)
