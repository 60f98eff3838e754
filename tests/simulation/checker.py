"""The promises, checked on a history: nothing lost, invented, altered, doubled or out of order.

It is told nothing of the engine. Where a client cannot know the outcome, every outcome is right; where a mode promises
less, less is asked: a family that is not synced may forget in a power cut what it had answered.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

from tests.simulation.counts import Counts
from tests.simulation.history import Connection, Delivery, Life, Put
from tests.simulation.requests import reason_of
from tests.simulation.times import A_TICK_US


@dataclass(slots=True)
class _Wait:
    """An item that surely waited for so long in a life, and maybe longer."""

    put: Put
    maybe_from_us: int
    from_us: int
    until_us: int


class Checker(Counts):
    """`violations` of one history."""

    def violations(self) -> list[str]:
        for reader, puts in self._by_reader.items():
            for put, deliveries in puts.items():
                if put in self._history.sent_back:
                    continue  # with a life of its own there, and as many readers as it then had
                self._check_right_to_it(reader, put, deliveries)
                self._check_repeats(reader, put, deliveries)
                self._check_wiped(reader, put, deliveries)
                self._check_retries(reader, put, deliveries)
                self._check_moved(reader, put)
                if self._rules.has_times:
                    self._check_times(reader, put, deliveries)
                    self._check_cancelled(reader, put, deliveries)
                    self._check_counted(reader, put, deliveries)
            if reader not in self._history.undone:  # what was put back has come behind what was put since
                self._check_order(reader, puts)
        self._check_nothing_lost()
        self._check_sent_back()
        if self._rules.has_times:
            self._check_keys()
            self._check_forged()
            self._check_reasons()
        self._check_lists()
        self._check_parents_keep_nothing()
        # Where an item's own head is gone, a repair cannot tell a record in its data from others.
        for family in self._history.from_inside - self._history.repaired - self._history.damaged - self._misread:
            self._violation(f"{family} took a record in the data of an item for one of its own")
        return self.found

    # Phantoms

    def _check_right_to_it(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        """The item was put where it was found, was not refused, and was not past its time."""
        if put.outcome == "refused":
            self._violation(f"item {put.number}, refused at {put.answered_us}, was delivered by {reader}")
        elsewhere = put.name not in (reader, reader.partition("+")[0]) and self._moved_to(put) != reader
        # Where a power cut has taken the readers' names, a repair cannot know whose an item was.
        if elsewhere and put.family not in self._history.repaired | self._history.damaged:
            self._violation(f"item {put.number} of {put.name} was delivered by {reader}")
        # What is put back begins a new life.
        if put.name in (reader, reader.partition("+")[0]) and reader not in self._history.undone:
            for delivery in deliveries:
                latest_ms = self._expires_ms(reader, put, latest=True)
                if latest_ms < self._history.earliest_wall_ms(delivery.sent_us, delivery.served_us):
                    self._violation(f"item {put.number} was delivered by {reader} at {delivery.served_us}, expired")

    def _check_parents_keep_nothing(self) -> None:
        """A `fanout_only` parent has no items but those of a torn commit, and what is put until these are taken."""
        for name in self._rules.fanout_only:
            found = [one for deliveries in self._by_reader.get(name, {}).values() for one in deliveries]
            first = min((one.put for one in found), key=lambda put: put.number, default=None)
            if first is not None and first.answered_us >= 0 and not self._put_may_be_undone(first):
                self._violation(f"item {first.number} was delivered by {name}, which is fanout_only")

    # Doubles

    def _check_repeats(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        """It comes again only if the one who had it gave it back, or left, or does not know."""
        if put.name not in (reader, reader.partition("+")[0]):
            return  # moved: a crash repeats that, and each reader of a family moves its own
        taken = [delivery for delivery in deliveries if delivery.kind != "peek"]
        for index, earlier in enumerate(taken):
            for later in deliveries:
                if later.served_us > earlier.served_us or later in taken[index + 1 :]:
                    if later.kind == "peek" and later.sent_us < earlier.served_us:
                        continue
                    self._check_repeat(reader, earlier, later)

    def _check_repeat(self, reader: str, earlier: Delivery, later: Delivery) -> None:
        if later.was_given_back and later.sent_us <= earlier.served_us:
            return
        if later.kind == "lease" and later.sent_us + later.lease_ms * 1000 - A_TICK_US <= earlier.served_us:
            return  # maybe it was the first, and over before its answer was sent
        if earlier.kind == "lease":
            self._check_leased_twice(reader, earlier, later)
        if earlier.confirmed_us() >= 0:
            if later.kind == "peek" and later.sent_us < earlier.confirmed_us():
                return
            if earlier.kind == "lease" and later.sent_us < earlier.confirmed_us():
                return  # somebody may have had it in between, as the lease was over
            may_return = self._was_read_anew(earlier, later) and self._may_return(earlier, earlier.confirmed_us())
            if not may_return and not self._may_come_by_undo(reader, earlier, earlier.confirmed_us()):
                self._violation(
                    f"item {earlier.put.number}, confirmed at {earlier.confirmed_us()},"
                    f" was delivered again by {reader} at {later.served_us}"
                )
            return
        if earlier.kind == "lease":
            return
        given_back = earlier.ending == "abort" and earlier.ending_sent_us <= later.served_us
        if given_back or earlier.connection.was_over(later.served_us):
            return
        # A close that was answered with an error may have been carried out, and may have been in memory only.
        is_unsure = earlier.ending == "close" and self._was_read_anew(earlier, later)
        if is_unsure and self._may_return(earlier, earlier.ending_sent_us):
            return
        # The one that was heard of later may have been the first, before the delete.
        is_other_way = later.sent_us < earlier.served_us and self._may_come_by_undo(reader, later, earlier.served_us)
        if not is_other_way and not self._may_come_by_undo(reader, earlier, later.served_us):
            self._violation(
                f"item {earlier.put.number}, open on connection {earlier.connection.number} since {earlier.served_us},"
                f" was delivered by {reader} to connection {later.connection.number} at {later.served_us}"
            )

    def _check_wiped(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        """What was flushed or deleted does not come back, unless it was out with a client."""
        if put.answered_us < 0 or reader in self._history.undone:
            return
        for wipe in self._wipes[reader]:
            if wipe.answered_us < 0 or put.answered_us > wipe.sent_us:
                continue
            if self._may_be_undone(put.family, wipe.connection.life, wipe.answered_us):
                continue
            if self._rules.has_times and put.family in self._history.repaired:
                continue  # what it is unsure of, done or held back, a repair holds back
            since = wipe.connection.life.faulty_since.get(put.family, self._end_us)
            if since <= wipe.answered_us:
                continue
            was_out = any(one.kind in ("open", "lease") and one.sent_us < wipe.answered_us for one in deliveries)
            was_out = was_out or self._may_be_held(reader, wipe.connection.life, wipe.sent_us, wipe.answered_us)
            if any(one.sent_us > wipe.answered_us for one in deliveries) and not (was_out and not wipe.deletes):
                self._violation(f"item {put.number} was delivered by {reader} after it was wiped at {wipe.answered_us}")

    # Retries

    def _check_retries(self, reader: str, put: Put, deliveries: list[Delivery]) -> None:
        """What has come back too often does not come once more, whatever was rolled or started in between."""
        family = put.family
        limit = self._rules.max_retries.get(family)
        if limit is None or put.name not in (reader, reader.partition("+")[0]):
            return
        failures: list[tuple[Life, int]] = []  # that were written down, and when that was known
        handed_out = [one for one in deliveries if one.kind != "peek" and not one.came_too_late]
        for one, following in pairwise(handed_out):
            life, is_same_life = one.connection.life, one.connection.life is following.connection.life
            if one.kind == "open" and one.ending != "close" and is_same_life:
                failures.append((life, following.served_us))
            elif one.kind == "open" and one.ending == "abort" and one.ending_answered_us >= 0:
                failures.append((life, one.ending_answered_us))
            elif one.kind == "lease" and is_same_life and self._has_surely_failed(one, following):
                failures.append((life, following.served_us))
            known = [1 for since, at_us in failures if since is life or not self._may_be_undone(family, since, at_us)]
            if is_same_life and len(known) > limit and not self._move_may_be_refused(put, following.served_us):
                self._violation(
                    f"item {put.number} was delivered by {reader} at {following.served_us}, after it had come back"
                    f" {len(known)} times, and {limit} are allowed"
                )

    def _check_reasons(self) -> None:
        """Why an item has failed is known once that was answered, here or where it was moved; and never of another."""
        for reader, put, failure in self._history.reasons:
            if failure not in ("", reason_of(put)):
                self._violation(f"item {put.number} of {reader} is said to have failed, as it {failure}")
            if not failure and put not in self._history.sent_back and self._has_said_why(reader, put):
                self._violation(f"item {put.number} of {reader} does not say why it failed")

    def _has_said_why(self, reader: str, put: Put) -> bool:
        """Whether a failure with a reason was surely counted, and is surely written down.

        Of a dead letter that children had, too, there may be several copies, each with a reason of its own or none.
        """
        sources = self._moved_from(reader, put)
        if reader != put.name and reader == self._moved_to(put) and not sources:
            return False
        for one in self._history.leases:
            if one.put is not put or not one.changes or one.reader not in (reader, *sources):
                continue
            family = one.reader.partition("+")[0]
            if family not in self._rules.max_retries and family not in self._rules.retry_delays_ms:
                continue
            if self._may_be_cut_up(family):
                continue  # the CHECKPOINT that had it was not on disk, and the item was
            first, life = one.changes[0], one.connection.life
            has_moved = reader != put.name and put.connection is not None and put.connection.life is not life
            if has_moved and self._may_have_expired(put.name, put):
                continue  # a crash on its way has left it in both places, and so twice in one, and one has failed
            is_counted = first.kind == "fail" and first.says_why and first.outcome == "done"
            is_counted &= first.connection is not None and first.connection.life is life
            is_counted &= 0 <= first.answered_us < one.sent_us + one.lease_ms * 1000 - A_TICK_US
            is_counted &= first.answered_us < self._absent_us(one, life)
            is_sure = not any(family in later.faulty_since for later in self._history.lives[life.number - 1 :])
            if is_counted and is_sure and not self._may_be_undone(family, life, first.answered_us):
                return True
        return False

    def _moved_from(self, reader: str, put: Put) -> list[str]:
        """Where a dead letter was before, if it cannot be one of a child, which has failures of its own."""
        known = [*self._by_reader, *self._rules.max_age_ms]  # the latter without a delivery
        is_of_child = any(name.startswith(f"{put.name}+") for name in known)
        return [put.name] if reader == self._moved_to(put) and not is_of_child else []

    def _check_moved(self, reader: str, put: Put) -> None:
        """What has not come back too often, and is not expired, stays where it is."""
        family = put.family
        limit = self._rules.max_retries.get(family)
        if limit is None or reader != self._moved_to(put) or put.name == reader:
            return
        # A child of which nobody has got anything may have let all of it expire.
        known = [family, *self._by_reader, *self._rules.max_age_ms]
        readers = [name for name in known if name.partition("+")[0] == family]
        if not any(self._may_have_expired(name, put) or self._may_have_failed(name, put) for name in readers):
            self._violation(f"item {put.number} was moved to {reader}, and had not come back more than {limit} times")

    def _has_surely_failed(self, lease: Delivery, following: Delivery) -> bool:
        """Whether a lease has ended in a way that counts before somebody else had the item."""
        changes = [one for one in lease.changes if one.outcome != "not found" and one.kind != "extend"]
        if not changes:
            return following.sent_us >= lease.served_us
        return all(one.kind == "fail" and one.outcome == "done" for one in changes)

    # Losses

    def _check_nothing_lost(self) -> None:
        missing: dict[str, list[Put]] = defaultdict(list)
        for put in self._history.puts.values():
            is_unsure = put.outcome == "" or (put.outcome == "known" and not self._is_only_one_of_its_key(put))
            if put.outcome == "refused":
                continue
            if is_unsure and not any(self._was_handed_out(reader, put) for reader in self._readers_of(put)):
                continue  # refused, or never heard of
            for reader in self._readers_of(put):
                if not self._is_accounted_for(reader, put):
                    missing[reader].append(put)
        destinations = dict.fromkeys(self._rules.moves_to.values())
        for reader in [*(name for name in missing if name not in destinations), *destinations]:
            allowed = sum(request.may_lose for request in self._unanswered[reader])
            lost = sorted(missing[reader], key=lambda put: self._moved_to(put) not in (None, reader))[allowed:]
            for put in list(lost):
                moved_to = self._moved_to(put)
                if moved_to not in (None, reader):
                    lost.remove(put)  # it may have been lost there
                    missing[moved_to].append(put)
            if lost:
                numbers = ", ".join(str(put.number) for put in lost)
                self._violation(
                    f"lost from {reader}: items {numbers}, beside {allowed} that gets were not answered with"
                )

    def _is_only_one_of_its_key(self, put: Put) -> bool:
        """Whether an item that was said to be there, it or another with its key, is not another.

        Once its readers' names are lost, a repair cannot know whose key it was.
        """
        is_mixed_up = self._may_be_cut_up(put.family)
        return not any(
            other.key == put.key
            and (other.name == put.name or (is_mixed_up and other.family == put.family))
            and other is not put
            and other.outcome != "refused"
            and other.sent_us <= put.answered_us
            for other in self._history.puts.values()
        )

    def _was_handed_out(self, reader: str, put: Put) -> bool:
        """Whether somebody got it; a peek shows what may yet come to nothing."""
        return any(delivery.kind != "peek" for delivery in self._by_reader[reader].get(put, ()))

    def _readers_of(self, put: Put) -> Iterator[str]:
        """The readers that must have got the item: those known to be there when it was put."""
        if put.connection is None or "+" in put.name:
            yield put.name
            return
        for reader in self._history.touched:
            if reader in self._rules.fanout_only:
                continue
            if reader.partition("+")[0] == put.name and self._was_there(reader, put):
                yield reader

    def _was_there(self, reader: str, put: Put) -> bool:
        """Whether somebody had heard of the reader before the item was sent, and nobody may have deleted it since."""
        assert put.connection is not None
        for life, asked_us, answered_us in self._history.touched[reader]:
            if life is put.connection.life and answered_us <= put.sent_us:
                deletes = [wipe for wipe in self._wipes[reader] if wipe.deletes]
                if all(self._wiped_until(one) < asked_us or one.sent_us > self._known_us(put) for one in deletes):
                    return True
        return False

    def _is_accounted_for(self, reader: str, put: Put) -> bool:
        for delivery in self._by_reader[reader].get(put, ()):
            if delivery.confirmed_us() >= 0 or delivery.ending == "close":
                return True
        if put in self._history.destroyed or self._put_may_be_undone(put) or self._may_be_cancelled(reader, put):
            return True
        if self._return_may_be_undone(put):
            return True
        if reader in self._rules.discards or any(self._may_be_wiped(wipe, put) for wipe in self._wipes[reader]):
            return True
        moved_to = self._moved_to(put)
        if moved_to is not None and put in self._by_reader[moved_to]:
            return True
        if moved_to is not None and self._may_have_failed(reader, put) and self._move_may_have_failed(put, moved_to):
            return True
        if not self._may_have_expired(reader, put):
            return False
        drops = moved_to is None or put.family in self._rules.drops_expired
        return drops or self._move_may_have_failed(put, moved_to or "")

    def _check_sent_back(self) -> None:
        """What was sent back from the dead letters is somewhere."""
        history = self._history
        for put, (since_us, *_) in history.sent_back.items():
            deliveries = [one for puts in self._by_reader.values() for one in puts.get(put, ())]
            families = {put.family, self._moved_to(put) or ""}
            if any(one.served_us >= since_us for one in deliveries) or put in history.destroyed:
                continue
            if families & (history.damaged | history.repaired | history.stopped | history.unmarked | self._misread):
                continue
            readers = [
                name
                for name in {*self._by_reader, *self._wipes, *self._unanswered}
                if name.partition("+")[0] in families
            ]
            if any(self._may_be_wiped_since(name, since_us) for name in readers):
                continue
            if any(name in self._rules.discards or name in self._rules.max_age_ms for name in readers):
                continue
            if any(one.takes and one.may_lose for name in readers for one in self._unanswered[name]):
                continue
            if any(family in life.faulty_since for life in history.lives for family in families):
                continue
            if any(self._may_be_undone(family, life, since_us) for life in history.lives for family in families):
                continue
            self._violation(f"item {put.number}, sent back at {since_us}, is nowhere")

    def _may_be_wiped_since(self, reader: str, since_us: int) -> bool:
        return any(self._wiped_until(wipe) >= since_us for wipe in self._wipes[reader])

    # Order

    def _check_order(self, reader: str, puts: dict[Put, list[Delivery]]) -> None:
        """An older item that was surely waiting is not passed over for a younger one."""
        own = {put: deliveries for put, deliveries in puts.items() if put.name in (reader, reader.partition("+")[0])}
        own = {put: deliveries for put, deliveries in own.items() if put not in self._history.sent_back}
        if self._rules.has_times:
            own = {put: found for put, found in own.items() if not self._has_own_time(reader, put, found)}
        may_be_elsewhere = reader in self._rules.discards or bool(self._wipes[reader])
        for life in self._history.lives:
            waits: list[_Wait] = []
            fresh: list[tuple[Delivery, Put]] = []
            for put, deliveries in own.items():
                here = _handed_out(deliveries, life)
                if here and not (self._rules.has_times and self._may_have_been_held_back(reader, here[0].served_us)):
                    fresh.append((here[0], put))
                # Discarded, wiped, expired or taken unseen, and back after a crash: it did not wait in between.
                was_gone = may_be_elsewhere or self._may_have_expired(reader, put) or self._may_be_lost(reader, life)
                was_gone = was_gone or put in self._history.destroyed  # and is whole again where a power cut undid that
                if put.answered_us >= 0 and (here or not was_gone):
                    waits.extend(self._waits(reader, put, deliveries, here, life))
            self._check_passed_over(reader, life, waits, fresh)
            self._check_come_back_in_order(reader, life, own)

    def _waits(
        self, reader: str, put: Put, deliveries: list[Delivery], here: list[Delivery], life: Life
    ) -> Iterator[_Wait]:
        """From when to when the item surely waited in a life."""
        sent_us, ready_us = max(put.sent_us, life.ready_us), max(put.answered_us, life.ready_us)
        if here and self._may_have_failed(reader, put) and self._move_may_be_refused(put, here[0].served_us):
            pass  # it was on its way to another queue when the life began
        elif here:
            yield _Wait(put, sent_us, ready_us, here[0].sent_us)
        elif deliveries and deliveries[0].connection.life.number > life.number:
            begun = self._history.begun.get(reader, ())
            if any(life.number < one.number <= deliveries[0].connection.life.number for one in begun):
                return  # a stream was made anew after a power cut, and got what the one before was too late for
            yield _Wait(put, sent_us, ready_us, life.ended_us)
        limit, come_back = self._rules.max_retries.get(put.family), 0
        not_closed = [one for one in deliveries if one.kind == "open" and one.ending != "close"]
        unheard = [request.sent_us for request in self._unanswered.get(reader, ()) if request.opens]
        for one, following in pairwise(here):
            if one.kind == "get" or one.ending == "close":
                continue  # that could not be written down; when it came back, and what else before it, nobody was told
            if (reader in self._rules.discards or self._wipes[reader]) and self._was_read_anew(one, following):
                continue  # discarded or wiped in memory only, as the disk failed, and back since a repair
            come_back = not_closed.index(one) + 1 if one in not_closed else come_back
            unseen = sum(sent_us <= following.sent_us for sent_us in unheard)  # it may have been there, and come back
            if limit is not None and come_back + unseen > limit:
                continue  # it was on its way to another queue, until that failed
            over_us = one.connection.link.over_us
            if one.ending == "abort" and one.ending_answered_us >= 0:
                yield _Wait(put, one.ending_sent_us, one.ending_answered_us, following.sent_us)
            elif one.was_given_back and over_us is not None:
                yield _Wait(put, one.ending_sent_us, over_us, following.sent_us)
            elif not one.ending and over_us is not None:
                yield _Wait(put, over_us, over_us, following.sent_us)

    def _check_passed_over(
        self, reader: str, life: Life, waits: list[_Wait], fresh: list[tuple[Delivery, Put]]
    ) -> None:
        fresh.sort(key=lambda one: one[0].sent_us)
        waits.sort(key=lambda one: one.from_us)
        starts = [one.from_us for one in waits]
        for delivery, put in fresh:
            for wait in waits[: bisect_right(starts, delivery.sent_us - 1)]:
                if wait.until_us > delivery.served_us and _is_older(wait.put, put):
                    if not self._may_be_held(reader, life, wait.maybe_from_us, delivery.served_us):
                        self._violation(
                            f"item {wait.put.number} was passed over: it waited in {reader} from {wait.from_us} to"
                            f" {wait.until_us}, and {put.number}, put after it, was delivered at {delivery.served_us}"
                        )
                    break

    def _check_come_back_in_order(self, reader: str, life: Life, puts: dict[Put, list[Delivery]]) -> None:
        """What one client held when it left comes back in the order in which it was put."""
        left: dict[Connection, list[tuple[Delivery, Delivery]]] = defaultdict(list)
        for deliveries in puts.values():
            here = _handed_out(deliveries, life)
            for one, following in pairwise(here):
                was_left = one.kind == "open" and (not one.ending or one.was_given_back)
                if was_left and one.connection is not following.connection:
                    left[one.connection].append((one, following))
        for connection, pairs in left.items():
            over_us = connection.link.over_us or 0
            for (first, again), (_, other_again) in combinations(pairs, 2):
                left_us = first.ending_sent_us if first.was_given_back else over_us
                for older, younger in ((again, other_again), (other_again, again)):
                    inverted = _is_older(older.put, younger.put) and younger.served_us < older.sent_us
                    if inverted and not self._may_be_held(reader, life, left_us, younger.served_us):
                        self._violation(
                            f"items {older.put.number} and {younger.put.number} came back to {reader} out of order"
                        )

    def _violation(self, words: str) -> None:
        self.found.append(words)


def _is_older(one: Put, other: Put) -> bool:
    """Whether `one` was surely put before `other`."""
    if 0 <= one.answered_us < other.sent_us:
        return True
    return one.connection is other.connection and one.number < other.number


def _handed_out(deliveries: list[Delivery], life: Life) -> list[Delivery]:
    """To whom an item went in a life, in that order."""
    taken = [one for one in deliveries if one.kind != "peek" and not one.came_too_late]
    return [one for one in taken if one.connection.life is life]
