"""What is promised of items with a time and an owner of their own: leases, delays, back-off, keys."""

from collections import defaultdict
from itertools import pairwise

from tests.simulation.excuses import FOR_EVER_MS, Excuses
from tests.simulation.history import STOPPED, Cancel, Delivery, LeaseChange, Life, Put

FOR_EVER_US = FOR_EVER_MS
ID_SHIFT = 29  # of a token
A_TICK_US = 1000  # the server's clock counts in milliseconds
NOTICED_US = 1_150_000  # a server that was stopped for longer knows that
A_STEP_US = 100_000  # so often a server looks whether it is late


class Times(Excuses):
    """Nothing comes before its time, or to two at once; keys are refused."""

    def _check_times(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        if "@" in reader or put.number == 0:
            return  # a stream reads the journal, whatever is due
        self._check_delay(reader, put, deliveries)
        if put.name not in (reader, reader.partition("+")[0]):
            return
        handed_out = [one for one in deliveries if one.kind != "peek" and not one.came_too_late]
        for one, following in pairwise(handed_out):
            self._check_rest(reader, one, following, handed_out)
        leases = [one for one in deliveries if one.kind == "lease"]
        for lease in leases:
            self._check_tokens(reader, lease, leases)
            self._check_old_token(reader, lease, handed_out)

    # Delays

    def _due_us(self, put: Put) -> int:
        """An instant before which it was not due, whatever the wall clock was set to later."""
        return put.sent_us + put.delay_ms * 1000

    def _steps_ahead_us(self, since: Life | None, from_us: int, life: Life, until_us: int) -> int:
        """How much too early something may be whose time was read from a journal: by what the clock was set forward."""
        was_reopened = any(one.life is life and one.asked_us < until_us for one in self._history.repairs)
        if since is life and not was_reopened:
            return 0
        return self._history.steps_ahead_ms(from_us, until_us) * 1000 + A_TICK_US

    def _check_delay(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        if not put.delay_ms or put.connection is None or self._may_be_cut_up(put.family):
            return
        family = [name for name, other in self._history.hurried if other is put]
        for one in deliveries:
            hurried_us = min([self._history.hurried[name, put] for name in family], default=FOR_EVER_US)
            if one.served_us >= hurried_us:
                continue
            since = put.connection.life if put.family not in self._undone_families() else None
            early_us = self._steps_ahead_us(since, put.sent_us, one.connection.life, one.served_us)
            if one.served_us < self._due_us(put) - early_us and not self._has_anothers_id(reader, deliveries):
                self._violation(
                    f"item {put.number}, put at {put.sent_us} for {put.delay_ms} ms later,"
                    f" was delivered by {reader} at {one.served_us}"
                )

    def _undone_families(self) -> set[str]:
        """Whose items an undo may have put back: with as much of a delay as is left by the wall clock."""
        return {reader.partition("+")[0] for reader in self._history.undone}

    def _has_anothers_id(self, reader: str, deliveries: list[Delivery]) -> bool:
        """Whether somebody had leased one with its id before: where that was lost in a power cut, its token is good
        for this one as well after another start, and may have given it back.
        """
        ids = {one.token >> ID_SHIFT for one in deliveries if one.kind == "lease"}
        puts = {one.put for one in deliveries}
        return any(
            one.reader == reader and one.put not in puts and one.token >> ID_SHIFT in ids
            for one in self._history.leases
        )

    def _may_be_cut_up(self, family: str) -> bool:
        """Whether what is said of an item may be lost, and the item not: bits flipped, or a hole that was repaired."""
        history = self._history
        return family in history.damaged | history.stopped | history.repaired

    def _has_own_time(self, reader: str, put: Put, deliveries: list[Delivery]) -> bool:
        """Whether it is not in order with the others: delayed, leased, held back after a failure.

        A repair that no longer knows who the readers were takes what is said of one for another's.
        """
        if self._may_be_cut_up(put.family):
            families = [puts for name, puts in self._by_reader.items() if name.partition("+")[0] == put.family]
            deliveries = [one for puts in families for one in puts.get(put, ())]
        if put.delay_ms or any(one.kind == "lease" for one in deliveries):
            return True
        backs_off = put.family in self._rules.retry_delays_ms
        return backs_off and any(one.kind == "open" and one.ending != "close" for one in deliveries)

    def _may_have_been_held_back(self, reader: str, until_us: int) -> bool:
        """Whether somebody whose answer was lost may have had an item before then that came back before its turn."""
        backs_off = reader.partition("+")[0] in self._rules.retry_delays_ms
        return any(
            request.takes and (request.lease_ms or (backs_off and request.opens)) and request.sent_us < until_us
            for request in self._unanswered[reader]
        )

    # Rest after a failure

    def _check_rest(self, reader: str, one: Delivery, following: Delivery, all_of_it: list[Delivery]) -> None:
        """What was given back for later, or has failed, is not delivered before that."""
        life, put = one.connection.life, one.put
        if following.connection.life is not life or (reader, put) in self._history.hurried:
            return
        if following.kind == "lease" and following.sent_us < one.served_us:
            return  # maybe it was the first
        if self._history.undone or self._move_may_be_refused(put, following.served_us):
            return
        delays_ms = self._rules.retry_delays_ms.get(put.family)
        least_ms = min(delays_ms) if delays_ms else 0
        due_us = -1
        shown = [change for other in all_of_it for change in other.changes if change.outcome != "not found"]
        shown = [
            change for change in shown if change.sent_us <= following.served_us and change.latest_us() >= one.sent_us
        ]
        if one.kind == "lease":
            due_us = self._due_after_lease(one, following, shown, least_ms)
        elif one.kind == "open" and one.ending == "abort" and one.ending_answered_us >= 0 and not shown:
            due_us = _rested_us(one.ending_sent_us, least_ms)
        if following.served_us < due_us - self._steps_ahead_us(life, one.served_us, life, following.served_us):
            self._violation(
                f"item {put.number} was delivered by {reader} at {following.served_us},"
                f" and was to rest until {due_us} at least"
            )

    def _due_after_lease(self, lease: Delivery, following: Delivery, shown: list[LeaseChange], least_ms: int) -> int:
        """Before when an item surely did not wait again after an attempt; -1 = nobody can tell.

        An attempt has one end, the first: of what is shown later nothing sets another time.
        """
        if following.sent_us < lease.served_us or self._absent_us(lease, lease.connection.life) <= following.served_us:
            return -1
        for change in shown:
            is_end = change.kind in ("give back", "fail") and change.outcome == "done"
            if change not in lease.changes or not is_end or following.sent_us < change.answered_us:
                return -1
        over_us = lease.sent_us + lease.lease_ms * 1000
        # It begins with the next millisecond, and what comes in the one in which it ends comes before that.
        surely_over_us = lease.served_us + lease.lease_ms * 1000 + 2 * A_TICK_US
        first_answered_us = min((change.answered_us for change in shown), default=FOR_EVER_US)
        dues_us = []
        if over_us - A_TICK_US <= first_answered_us:
            dues_us.append(_rested_us(over_us, least_ms))
        for change in shown:
            if change.sent_us <= min(first_answered_us, surely_over_us):
                rest_ms = change.ms if change.kind == "give back" else least_ms
                dues_us.append(_rested_us(min(change.sent_us, over_us), rest_ms))
        return min(dues_us)

    # Leases

    def _check_old_token(self, reader: str, lease: Delivery, handed_out: list[Delivery]) -> None:
        """A token is good no more once somebody else has had the item, as far as one server can know."""
        family, life = reader.partition("+")[0], lease.connection.life
        if self._may_be_cut_up(family) or reader in self._history.undone or family in life.faulty_since:
            return
        had = [
            one.served_us
            for one in handed_out
            if one is not lease and one.connection.life is life and one.sent_us > lease.served_us and one.kind != "get"
        ]
        for change in lease.changes if had else ():
            is_here = change.connection is not None and change.connection.life is life
            if is_here and change.outcome == "done" and change.sent_us > min(had):
                self._violation(
                    f"item {lease.put.number}, leased from {reader} at {lease.served_us}: the token was good at"
                    f" {change.answered_us} ({change.kind}), after another had it at {min(had)}"
                )

    def _check_forged(self) -> None:
        """Of tokens that nobody was given one in 131,072 is good, or two: two of one run are not."""
        good = [one for one in self._history.forged if one.was_good]
        if len(good) > 1:
            self._violation(f"{len(good)} of {len(self._history.forged)} tokens were good that nobody was given")

    def _is_forged(self, reader: str, lease: Delivery) -> bool:
        """Whether a made-up token of the item may have been good: its lease may have ended by that."""
        return any(
            one.reader == reader and one.token >> ID_SHIFT == lease.token >> ID_SHIFT
            for one in self._history.forged
            if one.was_good or one.answered_us < 0
        )

    def _leased_until(
        self, lease: Delivery, life: Life, from_us: int, until_us: int, without: LeaseChange | None = None
    ) -> int:
        """Until when it surely holds, for something that was asked at one instant and carried out by another.

        One that runs when a life ends goes on in the next one, for its grace at least.
        """
        since, grace_ms = lease.connection.life, self._rules.grace_ms(lease.reader)
        end_us, grace_end_us = lease.sent_us + lease.lease_ms * 1000, 0  # the latter whatever the wall clock is set to
        ends: list[tuple[int, int]] = []  # until when something may have been carried out, and what it makes the end
        changes = [one for one in lease.changes if one is not without and one.outcome != "not found"]
        changes = [one for one in changes if one.sent_us <= until_us]
        starts = self._history.lives[since.number : life.number]
        events: list[tuple[int, LeaseChange | Life]] = [(one.ready_us, one) for one in starts]
        events += [(one.sent_us, one) for one in changes]
        for _, event in sorted(events, key=lambda one: one[0]):
            if isinstance(event, Life):
                before = self._history.lives[event.number - 2]
                ahead_us = self._steps_ahead_us(since, lease.sent_us, event, before.ended_us)
                if max(end_us - ahead_us, grace_end_us) - A_TICK_US > before.ended_us:
                    grace_end_us = event.ready_us + grace_ms * 1000
                continue
            new_us = event.sent_us + event.ms * 1000 if event.kind == "extend" else event.sent_us
            if event.kind == "extend" and event.outcome == "done" and event.answered_us <= from_us:
                end_us = min([new_us, *(one for latest_us, one in ends if latest_us >= event.sent_us)])
                grace_end_us = 0
            else:
                end_us, grace_end_us = min(end_us, new_us), min(grace_end_us, new_us)
            ends.append((event.latest_us(), new_us))
        return max(end_us - self._steps_ahead_us(since, lease.sent_us, life, until_us), grace_end_us)

    def _absent_us(self, lease: Delivery, life: Life) -> int:
        """When the holder of a lease may first have been absent for so long, in a life or one before, that it ends."""
        if not lease.by:
            return FOR_EVER_US
        lives = self._history.lives[lease.connection.life.number - 1 : life.number]
        return min([self._absent_in(one, lease.by.partition(".")[0], lease.sent_us) for one in lives])

    def _absent_in(self, life: Life, name: str, since_us: int) -> int:
        """When a holder that is there since some instant may first have been absent for too long in one life."""
        said = [one for one in self._history.presences if one.name == name]
        said = [one for one in said if one.connection is not None and one.connection.life is life]
        if not said:
            return FOR_EVER_US
        absence_us = min(one.absence_ms for one in said) * 1000
        there = sorted((one.answered_us, max(one.last_us, one.answered_us)) for one in said if one.answered_us >= 0)
        gone_us = min(one.sent_us for one in said)
        for from_us, until_us in [*there, (FOR_EVER_US, FOR_EVER_US)]:
            over_us = self._over_us(life, gone_us, absence_us)
            if from_us > over_us and from_us > since_us:
                return max(over_us, since_us)
            gone_us = max(gone_us, until_us)
        return FOR_EVER_US

    def _over_us(self, life: Life, gone_us: int, absence_us: int) -> int:
        """When the absence of a holder is over at the earliest.

        A server that was stopped itself counts it anew, or leaves out what it has noticed of a shorter stop.
        """
        over_us = gone_us + absence_us - A_TICK_US
        for from_us, until_us in self._history.halts:
            if from_us < life.ready_us or from_us >= over_us or until_us <= gone_us:
                continue  # of those before, some were cut short by a kill
            if until_us - from_us > NOTICED_US:
                over_us = until_us + absence_us - A_TICK_US
            else:
                over_us += max(until_us - max(from_us, gone_us) - 2 * A_STEP_US, 0)
        return over_us

    def _goes_on(self, reader: str, since: Life, life: Life) -> bool:
        """Whether leases of one life are there in another: they are in the journal, unless a power cut took them."""
        if since is life:
            return True
        family = reader.partition("+")[0]
        if life.number < since.number or family in self._history.unmarked or self._may_be_cut_up(family):
            return False
        before = self._history.lives[since.number - 1 : life.number - 1]
        is_sound = not any(family in one.faulty_since for one in self._history.lives[: life.number])
        is_kept = all(one.modes[family].journal and not one.lost(family) for one in before)
        if family in self._rules.forgets_leases:
            is_kept &= len(before) == 1 and before[0].how == STOPPED
        return is_sound and is_kept

    def _surely_leased(
        self, reader: str, lease: Delivery, life: Life, from_us: int, until_us: int, without: LeaseChange | None = None
    ) -> bool:
        """Whether the one who has leased an item had it all that time."""
        since = lease.connection.life
        if from_us < lease.served_us or not self._goes_on(reader, since, life):
            return False
        if self._leased_until(lease, life, from_us, until_us, without) <= until_us:
            return False
        if self._absent_us(lease, life) <= until_us:
            return False
        put = lease.put
        if put.answered_us < 0 or put.answered_us > from_us:
            return False  # its commit may have failed
        family = reader.partition("+")[0]
        if family in self._history.stopped or reader in self._history.undone or self._is_forged(reader, lease):
            return False
        deletes = [wipe for name in (reader, family) for wipe in self._wipes[name] if wipe.deletes]
        return not any(wipe.sent_us <= until_us and self._wiped_until(wipe) >= lease.sent_us for wipe in deletes)

    def _check_tokens(self, reader: str, lease: Delivery, leases: list[Delivery]) -> None:
        """Whoever has a lease can confirm, extend and give back; who had one before can do nothing to it."""
        for change in lease.changes:
            if change.outcome == "not found" and change.connection is not None:
                life = change.connection.life
                if self._surely_leased(reader, lease, life, change.sent_us, change.answered_us, change):
                    self._violation(
                        f"item {lease.put.number}, leased from {reader} at {lease.served_us} for {lease.lease_ms} ms:"
                        f" the token was not known at {change.answered_us} ({change.kind})"
                    )
        for other in leases:
            for change in other.changes if other.token != lease.token else ():
                if change.outcome != "done" or change.connection is None:
                    continue
                life = change.connection.life
                if self._surely_leased(reader, lease, life, change.sent_us, change.answered_us):
                    self._violation(
                        f"item {lease.put.number}, leased from {reader} at {lease.served_us} for {lease.lease_ms} ms:"
                        f" another token was good at {change.answered_us} ({change.kind})"
                    )

    def _check_leased_twice(self, reader: str, lease: Delivery, later: Delivery) -> None:
        """Nobody gets an item that somebody has leased."""
        life = later.connection.life
        from_us = max(lease.served_us, later.sent_us)
        if later.served_us > lease.served_us and self._surely_leased(reader, lease, life, from_us, later.served_us):
            self._violation(
                f"item {lease.put.number}, leased from {reader} at {lease.served_us} for {lease.lease_ms} ms,"
                f" was delivered at {later.served_us}"
            )

    # Keys

    def _check_keys(self) -> None:
        groups: dict[tuple[str, str], list[Put]] = defaultdict(list)
        for put in self._history.puts.values():
            if put.key:
                groups[put.name, put.key].append(put)
        for (name, _), puts in groups.items():
            if self._may_be_cut_up(name.partition("+")[0]):
                continue
            self._check_key(name, sorted(puts, key=lambda one: one.sent_us))

    def _check_key(self, name: str, puts: list[Put]) -> None:
        """Of puts with the same key one is stored as long as it counts."""
        stored = [put for put in puts if put.answered_us >= 0 and self._is_surely_stored(put)]
        for index, first in enumerate(stored):
            for second in stored[index + 1 :]:
                assert second.connection is not None
                if self._key_surely_counts(name, first, second.sent_us, self._known_us(second), second.connection.life):
                    self._violation(
                        f"items {first.number} and {second.number} were put on {name} with the key {first.key}, both"
                    )
        if name in self._rules.discards or name.partition("+")[0] in self._rules.limited:
            return
        for put in puts:
            if put.outcome == "refused" and not any(
                other is not put and other.outcome != "refused" and other.sent_us <= put.answered_us for other in puts
            ):
                self._violation(f"item {put.number} was refused by {name}, and its key {put.key} was not known")

    def _is_surely_stored(self, put: Put) -> bool:
        if put.outcome == "stored":
            return True
        return any(put in puts for puts in self._by_reader.values())

    def _key_surely_counts(self, name: str, put: Put, from_us: int, until_us: int, life: Life) -> bool:
        """Whether the key of an item that was stored is known all that time."""
        assert put.connection is not None
        family, since = name.partition("+")[0], put.connection.life
        if from_us < put.answered_us or self._may_be_undone(family, since, put.answered_us):
            return False
        ahead_us = self._steps_ahead_us(since, put.sent_us, life, until_us)
        if until_us >= self._due_us(put) + self._rules.key_time_ms[family] * 1000 - ahead_us - A_TICK_US:
            return False
        if since is not life and not since.modes[family].journal:
            return False
        for wipe in [*self._wipes[name], *self._wipes[family]]:
            if wipe.sent_us <= until_us and self._wiped_until(wipe) >= put.sent_us:
                return False
        return not any(
            self._cancelled_until(one) >= put.sent_us and one.sent_us <= until_us for one in self._cancels_of(put)
        )

    def _cancels_of(self, put: Put) -> list[Cancel]:
        """What may have cancelled it."""
        return [
            one
            for one in self._history.cancels
            if (one.reader, one.key) == (put.name, put.key) and one.outcome != "not found"
        ]

    def _cancelled_until(self, cancel: Cancel) -> int:
        if cancel.answered_us >= 0 or cancel.connection is None:
            return cancel.answered_us
        over_us = cancel.connection.link.over_us
        return self._end_us if over_us is None else over_us

    def _may_be_cancelled(self, reader: str, put: Put) -> bool:
        if (reader, put) in self._history.withdrawn:
            return True
        return bool(put.key) and any(self._cancelled_until(one) >= put.sent_us for one in self._cancels_of(put))

    def _check_cancelled(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        """What was cancelled before it was due is not delivered."""
        if not put.key or put.connection is None or "@" in reader or reader in self._history.undone:
            return
        for cancel in self._cancels_of(put):
            if cancel.outcome != "done" or cancel.connection is None or cancel.sent_us < put.answered_us:
                continue
            life = cancel.connection.life
            early_us = self._steps_ahead_us(put.connection.life, put.sent_us, life, cancel.answered_us)
            if cancel.answered_us >= self._due_us(put) - early_us or self._was_hurried(reader, put, cancel):
                continue
            others = [one for one in self._history.puts.values() if (one.name, one.key) == (put.name, put.key)]
            if any(one is not put and one.outcome != "refused" and one.sent_us < cancel.answered_us for one in others):
                continue
            since_us = life.faulty_since.get(put.family, self._end_us)
            if since_us <= cancel.answered_us or self._may_be_undone(put.family, life, cancel.answered_us):
                continue
            if any(one.sent_us > cancel.answered_us for one in deliveries):
                self._violation(f"item {put.number} was delivered by {reader}, cancelled at {cancel.answered_us}")

    def _was_hurried(self, reader: str, put: Put, cancel: Cancel) -> bool:
        """Whether it was due before its time when it was cancelled: there, or at a reader it may have moved there from.

        To cancel it then ends it for the others of the family only, if for any: each reader moves its own.
        """
        hurried = [
            name
            for (name, other), at_us in self._history.hurried.items()
            if other is put and at_us <= cancel.answered_us
        ]
        is_elsewhere = reader == self._moved_to(put) and put.name.partition("+")[0] != reader
        return reader in hurried or (is_elsewhere and bool(hurried))


def _rested_us(from_us: int, rest_ms: int) -> int:
    """Before when what rests for so long from then on is not due."""
    return from_us + rest_ms * 1000
