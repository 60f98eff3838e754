"""What a client cannot know, and what a mode does not promise: why something that looks broken may be right."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kestreld.config.config import LEASE_GRACE_MS_MIN
from tests.simulation.client import INSIDE_OTHERS
from tests.simulation.history import STOPPED, Delivery, History, Life, Put, Request, Wipe

SYNC_SLACK_MS: Final = 1500  # a sync every so many ms is this late at most
FOR_EVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration allows a reader to do with items, by its name."""

    max_age_ms: Mapping[str, int] = field(default_factory=dict)
    moves_to: Mapping[str, str] = field(default_factory=dict)  # where expired and failed ones go
    discards: tuple[str, ...] = ()
    max_retries: Mapping[str, int] = field(default_factory=dict)  # by family: so often an item may come back
    drops_expired: frozenset[str] = frozenset()  # families that move none but the failed
    has_times: bool = False  # items may be leased, delayed, and put with keys
    retry_delays_ms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by family
    key_time_ms: Mapping[str, int] = field(default_factory=dict)  # by family
    forgets_leases: frozenset[str] = frozenset()  # families whose leases are written down at a stop only
    limited: frozenset[str] = frozenset()  # families that may refuse a put for want of room
    lease_grace_ms: Mapping[str, int] = field(default_factory=dict)  # by family, where it is more than the least
    fanout_only: frozenset[str] = frozenset()  # parents that keep nothing

    def grace_ms(self, reader: str) -> int:
        """What a lease lasts at least after a start."""
        return self.lease_grace_ms.get(reader.partition("+")[0], LEASE_GRACE_MS_MIN)


class Excuses:
    """A history by reader, and what may have happened in it that nobody was told of."""

    def __init__(self, history: History, rules: Rules) -> None:
        self._history = history
        self._rules = rules
        self._end_us = max((life.ended_us for life in history.lives), default=0) + 1
        self._by_reader: dict[str, dict[Put, list[Delivery]]] = defaultdict(lambda: defaultdict(list))
        for delivery in sorted(history.deliveries, key=lambda one: one.served_us):
            self._by_reader[delivery.reader][delivery.put].append(delivery)
        self._wipes: dict[str, list[Wipe]] = defaultdict(list)
        for wipe in history.wipes:
            self._wipes[wipe.reader].append(wipe)
        self._unanswered: dict[str, list[Request]] = defaultdict(list)
        for request in history.unanswered:
            self._unanswered[request.reader].append(request)
        self.found: list[str] = list(history.problems)
        self._misread: set[str] = set()
        self._misread = {put.family for put in history.puts.values() if self._may_be_misread(put)}

    def _may_be_misread(self, put: Put) -> bool:
        """Whether a power cut may have taken the head of an item and left records in its data.

        A repair takes those for the journal's own; what they say is done is done.
        """
        family = put.family
        if family not in self._history.stopped or put.connection is None or INSIDE_OTHERS not in put.data:
            return False
        if put.outcome == "":
            return any(later.lost(family) for later in self._history.lives[put.connection.life.number - 1 :])
        return put.outcome == "stored" and self._put_may_be_undone(put)

    def _may_be_undone(self, family: str, life: Life | None, at_us: int) -> bool:
        """Whether what was answered then may have been forgotten by one of the starts since."""
        if family in self._history.damaged or family in self._misread:
            return True
        if life is None:
            return False
        mode = life.modes[family]
        # What a failed sync covered may be gone although later ones succeed, and what later processes write behind it.
        has_failed = family in self._history.unmarked
        if mode.journal and mode.sync_ms == 0 and not has_failed:
            return False
        for later in self._history.lives[life.number - 1 :]:
            if later.ended_us < 0:
                continue
            if not mode.journal:
                return True
            has_failed = has_failed or family in later.faulty_since
            if not has_failed and (later.how == STOPPED or self._was_on_disk(family, later, at_us)):
                return False
            if later.lost(family) or (later.was_last and has_failed):
                return True
        return False

    def _was_on_disk(self, family: str, life: Life, at_us: int) -> bool:
        """Whether a life that syncs every so many ms had the time to put on disk what was answered then."""
        sync_ms = life.modes[family].sync_ms
        since_us = max(at_us, life.ready_us)
        return bool(sync_ms) and life.ended_us - since_us >= (sync_ms + SYNC_SLACK_MS) * 1000

    def _put_may_be_undone(self, put: Put) -> bool:
        if put.answered_us >= 0:
            return self._may_be_undone(put.family, put.connection.life if put.connection else None, put.answered_us)
        assert put.connection is not None
        life = put.connection.life
        # Delivered although nobody was told that it is there: it may be gone like any that was not answered yet.
        if put.family in life.faulty_since and any(
            one.lost(put.family) for one in self._history.lives[life.number - 1 :]
        ):
            return (
                True  # its own sync may have failed: what that covered the kernel shows to the next process, and loses
            )
        if self._may_be_undone(put.family, life, life.ended_us):
            return True
        # Nor has it got to the disk by being found by a later life, where that one does not sync.
        taken = [
            delivery
            for reader, puts in self._by_reader.items()
            if reader.partition("+")[0] == put.family
            for delivery in puts.get(put, ())
            if delivery.kind != "peek"
        ]
        first = min(taken, key=lambda one: one.served_us, default=None)
        return first is not None and self._may_be_undone(put.family, first.connection.life, first.served_us)

    def _return_may_be_undone(self, put: Put) -> bool:
        """Whether it was sent back to a queue that may have forgotten it since."""
        return any(
            self._may_be_undone(put.family, life, at_us)
            for at_us in self._history.sent_back.get(put, ())
            for life in self._history.lives
            if life.ready_us <= at_us and not 0 <= life.ended_us < at_us
        )

    def _may_return(self, delivery: Delivery, at_us: int) -> bool:
        """Whether an item that was confirmed then may come back once the journal is read anew."""
        family = delivery.reader.partition("+")[0]
        life = delivery.confirming_life()
        # While the journal takes nothing, gets go on and are remembered in memory only.
        if life.faulty_since.get(family, self._end_us) <= at_us:
            return True
        # What it is unsure of, done or held back, a repair holds back.
        if self._rules.has_times and family in self._history.repaired:
            return True
        return self._may_be_undone(family, life, at_us)

    def _was_read_anew(self, earlier: Delivery, later: Delivery) -> bool:
        """Whether the journal was between them: by a start, or by a repair that opened the queue again."""
        family, life = later.reader.partition("+")[0], earlier.connection.life
        if life is not later.connection.life:
            return True
        return any(
            one.life is life and one.family == family and one.asked_us < later.served_us
            for one in self._history.repairs
        )

    def _may_come_by_undo(self, reader: str, delivery: Delivery, until_us: int) -> bool:
        """Whether an undo puts back what was out until then: to close it after the delete has changed nothing.

        Or it is there twice, where a power cut took what was not synced of the flush, and left what was of the undo.
        """
        family, undone = reader.partition("+")[0], self._history.undone
        # What was put back for one reader alone others of its family get too, once a repair no longer knows that one.
        if family in self._history.repaired and any(one.partition("+")[0] == family for one in undone):
            return True
        return reader in undone and any(
            wipe.deletes and delivery.sent_us <= self._wiped_until(wipe) and wipe.sent_us <= until_us
            for wipe in self._wipes[reader]
        )

    def _moved_to(self, put: Put) -> str | None:
        return self._rules.moves_to.get(put.family)

    def _move_may_have_failed(self, put: Put, moved_to: str) -> bool:
        """Expired, and refused by the queue it was to move to; or forgotten there."""
        family = moved_to.partition("+")[0]
        for life in self._history.lives:
            if family in life.faulty_since or put.family in life.faulty_since:
                return True
            if self._may_be_undone(family, life, life.ended_us):
                return True
        return bool(self._wipes[moved_to])

    def _may_have_failed(self, reader: str, put: Put) -> bool:
        """Whether an item may have been given back there more often than it may be."""
        limit = self._rules.max_retries.get(put.family)
        if limit is None:
            return False
        deliveries = self._by_reader.get(reader, {}).get(put, ())
        opened = sum(one.kind in ("open", "lease") for one in deliveries)  # each may have failed once
        return opened + sum(request.opens for request in self._unanswered.get(reader, ())) > limit

    def _move_may_be_refused(self, put: Put, until_us: int) -> bool:
        """Whether a queue may have been unable to take what has failed too often, or its own to count that, by then."""
        history = self._history
        for family in {put.family, self._moved_to(put) or ""}:
            if family in history.damaged | history.repaired | history.stopped | self._misread:
                return True
            if any(life.faulty_since.get(family, self._end_us) <= until_us for life in history.lives):
                return True
        return False

    def _expires_ms(self, reader: str, put: Put, *, latest: bool) -> int:
        """When it is past use: the earliest that may be, or the latest."""
        if latest and put.answered_us < 0:
            return FOR_EVER_MS
        wall_ms = self._history.latest_wall_ms if latest else self._history.earliest_wall_ms
        added_ms = wall_ms(put.sent_us, self._known_us(put))
        ends = [added_ms + put.expiry_s * 1000] if put.expiry_s else []
        counts_from_due = latest and self._rules.has_times  # by what it was held back last, maybe unseen
        if reader in self._rules.max_age_ms and not counts_from_due:
            ends.append(added_ms + self._rules.max_age_ms[reader])
        return min(ends, default=FOR_EVER_MS)

    def _may_have_expired(self, reader: str, put: Put) -> bool:
        max_age_ms = self._rules.max_age_ms.get(reader)
        if self._rules.has_times and max_age_ms is not None and self._end_us - put.sent_us > max_age_ms * 1000:
            return True  # that counts from when it was due, whatever the wall clock was set to
        highest_ms = self._history.latest_wall_ms(put.sent_us, self._end_us)
        return self._expires_ms(reader, put, latest=False) < highest_ms

    def _known_us(self, put: Put) -> int:
        """When it was surely there, if ever."""
        if put.answered_us >= 0:
            return put.answered_us
        over_us = put.connection.link.over_us if put.connection is not None else 0
        return over_us if over_us is not None else self._end_us

    def _wiped_until(self, wipe: Wipe) -> int:
        """When it was over with a wipe, at the latest."""
        if wipe.answered_us >= 0:
            return wipe.answered_us
        over_us = wipe.connection.link.over_us
        return self._end_us if over_us is None else over_us

    def _may_be_wiped(self, wipe: Wipe, put: Put) -> bool:
        return put.sent_us <= self._wiped_until(wipe) and (wipe.deletes or not self._was_held_through(wipe, put))

    def _was_held_through(self, wipe: Wipe, put: Put) -> bool:
        """Whether somebody surely had the item open from before a flush until after it: that leaves it alone."""
        life, until_us = wipe.connection.life, self._wiped_until(wipe)
        for delivery in self._by_reader.get(wipe.reader, {}).get(put, ()):
            over_us = delivery.connection.link.over_us
            is_killed = over_us == life.ended_us and life.how != STOPPED  # and had it open until then
            if delivery.kind == "lease" and self._surely_leased(wipe.reader, delivery, life, wipe.sent_us, until_us):
                return True
            if (
                delivery.kind == "open"
                and delivery.connection.life is life
                and delivery.served_us <= wipe.sent_us
                and not (delivery.ending and delivery.ending_sent_us <= until_us)
                and (over_us is None or over_us > until_us or is_killed)
            ):
                return True
        return False

    def _may_be_lost(self, reader: str, life: Life) -> bool:
        """Whether an unanswered get may have taken an item by then, and a power cut brought it back."""
        if not any(later.lost(reader.partition("+")[0]) for later in self._history.lives[life.number - 1 :]):
            return False
        lost = [request.connection for request in self._unanswered[reader] if request.may_lose]
        return any(one is not None and one.life.number <= life.number for one in lost)

    def _may_be_held(self, reader: str, life: Life, from_us: int, until_us: int) -> bool:
        """Whether somebody whose answer was lost may have had an item in that time."""
        if self._rules.has_times and self._may_be_held_for_long(reader, life, from_us, until_us):
            return True
        for request in self._unanswered[reader]:
            connection = request.connection
            if connection is None or connection.life is not life or not request.takes:
                continue
            was_before = connection.was_over(from_us - 1)  # at the same instant it may have been after
            if request.sent_us < until_us and not was_before:
                return True
        return False

    def _may_be_held_for_long(self, reader: str, life: Life, from_us: int, until_us: int) -> bool:
        """The same with a lease, which goes on without its client, or with the back-off after it."""
        longest_ms = max(self._rules.retry_delays_ms.get(reader.partition("+")[0], (0,)))
        for request in self._unanswered[reader]:
            connection = request.connection
            if connection is None or not request.takes or connection.life.number > life.number:
                continue
            over_us = connection.link.over_us
            over_us = self._end_us if over_us is None else over_us
            lease_ms = request.lease_ms and max(request.lease_ms, self._rules.grace_ms(reader))
            held_us = (lease_ms + longest_ms) * 1000
            is_over = max(over_us, life.ready_us) + held_us < from_us
            if held_us and request.sent_us < until_us and not is_over:
                return True
        return False

    def _surely_leased(self, reader: str, lease: Delivery, life: Life, from_us: int, until_us: int) -> bool:
        """Whether the one who has leased an item had it all that time."""
        raise NotImplementedError
