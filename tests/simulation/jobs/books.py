"""What clients of jobs asked and were told, and what the server's steady clock may have shown meanwhile.

Instants are on virtual time, in microseconds; those of the steady clock are so, too, with what a start has set it to.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.simulation.history import POWER_CUT, STOPPED, History, Life, Over

FAMILY: Final = "jobs"
# What may end a job; and what may queue it, or move the time at which it is to be queued.
ENDS: Final = frozenset({"ack", "delete", "flush", "empty"})
MOVES: Final = frozenset({"nack", "working", "enqueue", "bury", "redrive"})


@dataclass(slots=True, eq=False)
class Act:
    """Something that was asked for, of the jobs with these ids, of a queue, or with neither of all jobs.

    `count` is what was answered, -1 = nothing or an error: it may have been carried out or not.
    """

    kind: str
    life: Life
    link: Over
    sent_us: int
    ids: tuple[bytes, ...] = ()
    queue: bytes = b""
    answered_us: int = -1
    served_us: int = -1  # the answer had left
    count: int = -1

    def latest_us(self) -> int:
        """By when it was carried out, if ever."""
        if self.answered_us >= 0:
            return self.answered_us
        return self.link.over_us if self.link.over_us is not None else 1 << 62

    def concerns(self, job: "Added") -> bool:
        if self.ids:
            return not job.ids.keys().isdisjoint(self.ids)
        return not self.queue or self.queue in (job.queue, job.queue + b".dead")


@dataclass(slots=True, eq=False)
class Added:
    """A job as ADDJOB was told of it, once, or with a `key` several times: `tries`.

    `ids` are those that were answered, with the try that was; `delivered_ids` those it came with.
    """

    number: int
    queue: bytes
    body: bytes
    retry_s: int
    ttl_s: int
    delay_s: int
    retries: int
    key: bytes
    tries: list[Act] = field(default_factory=list)
    ids: dict[bytes, Act | None] = field(default_factory=dict)
    handouts: list["Handout"] = field(default_factory=list)

    @property
    def answered(self) -> Act | None:
        """The try that was answered first."""
        return next((one for one in self.ids.values() if one is not None), None)


@dataclass(slots=True, eq=False)
class Handout:
    """A job that came to a client. `number_in_life` counts those of all lives."""

    job: Added
    job_id: bytes
    queue: bytes
    request: Act
    served_us: int
    nacks: int = -1  # -1 = not asked for
    origin: bytes = b""
    reason: bytes = b""


@dataclass(slots=True, frozen=True)
class Seen:
    """A job as SHOW describes it. `requeue_ms` is how long until it is queued, -1 = never."""

    job_id: bytes
    queue: bytes
    state: bytes
    ttl_s: int
    requeue_ms: int
    nacks: int
    deliveries: int


@dataclass(slots=True, eq=False)
class Probe:
    """All the jobs that the server had, at one instant between these two."""

    life: Life
    sent_us: int
    heard_us: int
    jobs: dict[bytes, Seen] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class WithoutLog:
    """From when the log was to be turned off until all jobs were in a fresh one, as INFO said; -1 = never in `life`.

    What happens meanwhile is in memory only. `asked` are the CONFIG SET of it.
    """

    life: Life
    from_us: int
    until_us: int = -1
    asked: list[Act] = field(default_factory=list)

    def is_settled(self) -> bool:
        """Whether all that was asked for has been carried out, if ever."""
        return all(act.answered_us >= 0 or act.link.over_us is not None for act in self.asked)

    def has(self, act: Act) -> bool:
        return act.life is self.life and act.latest_us() >= self.from_us and not 0 <= self.until_us < act.sent_us


@dataclass(slots=True)
class Books:
    """All that the checker knows of a run."""

    history: History
    jobs: dict[int, Added] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    offsets_us: dict[int, tuple[int, int]] = field(default_factory=dict)  # by life: least and most
    fetches: list[Act] = field(default_factory=list)
    loaded_us: dict[int, int] = field(default_factory=dict)  # by life, when its jobs were there
    reloaded_us: list[int] = field(default_factory=list)  # when DEBUG LOADAOF was sent, or answered
    controlled: set[int] = field(default_factory=set)  # lives that were begun by a controlled restart
    without_log: list[WithoutLog] = field(default_factory=list)
    repaired: list[int] = field(default_factory=list)  # numbers of lives that were begun behind a repair of the log
    sound_from: int = 0  # the number of the life from which on what was answered counts: a log was repaired before

    def begin(self, life: Life) -> None:
        """A server starts: its steady clock goes on no earlier than what the log says."""
        now_us = life.ready_us
        least_us = most_us = self.history.wall_ms(now_us) * 1000 - now_us
        if len(self.history.lives) > 1:
            before = self.history.lives[-2]
            most_us = max(least_us, before.ended_us + self.offsets_us[before.number][1] - now_us)
        self.offsets_us[life.number] = (least_us, most_us)

    def earliest_us(self, life: Life, at_us: int) -> int:
        """What the steady clock showed at least."""
        return at_us + self.offsets_us[life.number][0]

    def latest_us(self, life: Life, at_us: int) -> int:
        return at_us + self.offsets_us[life.number][1]

    def has_stepped_back(self) -> bool:
        """Whether the system clock was ever set back."""
        return any(after < before for (_, before), (_, after) in pairwise(self.history.steps))

    # What a power cut may take, or any end while the log was off

    def off_in(self, life: Life) -> WithoutLog | None:
        """The time without a log that this life is in."""
        return next((one for one in self.without_log if one.life is life and one.until_us < 0), None)

    def forgot_since(self, life: Life) -> WithoutLog | None:
        """The time without a log that this life ended in, of which nothing was saved."""
        return self.off_in(life) if life.ended_us >= 0 else None

    def may_be_lost(self, act: Act) -> bool:
        """Whether what was answered may be undone by now: only a power cut does that, where not all is synced."""
        if act.life.number < self.sound_from:
            return True
        forgot = self.forgot_since(act.life)
        if forgot is not None and forgot.has(act):
            return True
        for life in self.history.lives[act.life.number - 1 :]:
            if life is not act.life and self.was_put_on_disk(life):
                return False
            if life is act.life and life.modes[FAMILY].sync_ms == 0 and act.count > 0 and not self._was_off_in(life):
                return False
            if life.how == POWER_CUT:
                return not (life is act.life and self._was_in_time(life, act))
            if life.how == STOPPED:
                return False
        return False

    def was_put_on_disk(self, life: Life) -> bool:
        """Whether all that servers before have left was put on disk in that life, before anybody was answered."""
        was_sound = all(FAMILY not in one.faulty_since for one in self.history.lives[: life.number - 1])
        return life.modes[FAMILY].sync_ms == 0 and life.number in self.loaded_us and was_sound

    def _was_in_time(self, life: Life, act: Act) -> bool:
        """Whether the sync that was due has put it on disk."""
        sync_ms = life.modes[FAMILY].sync_ms
        return (
            sync_ms is not None
            and FAMILY not in life.faulty_since
            and act.served_us >= 0
            and (life.ended_us - act.served_us > (sync_ms + 2000) * 1000)
        )

    def _was_off_in(self, life: Life) -> bool:
        """Whether it was without a log for a time."""
        return any(one.life is life for one in self.without_log)
