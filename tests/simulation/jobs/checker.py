"""Whether the server kept what it promises of jobs, as clients saw it; nothing of the engine is known here.

What is not on the side of a violation here: a power cut takes what was not synced, a command without an answer was
carried out or was not, what happens while the log is off is in memory only, and the steady clock has jumped where the
system clock was set before a start.
"""

from itertools import pairwise
from typing import Final

from kestreld.config.config import RetryFrom
from kestreld.jobs.dead_letters import DEAD_SUFFIX
from kestreld.jobs.keys import KEY_TIME_MS
from kestreld.jobs.store import JITTER_MS
from tests.simulation.history import KILLED, POWER_CUT, STOPPED, Life
from tests.simulation.jobs.books import ENDS, FAMILY, MOVES, Act, Added, Books, Handout, Probe, Seen
from tests.simulation.jobs.plan import JobPlan

SECOND_US: Final = 1_000_000
A_TICK_US: Final = 10_000
_REDRIVEN: Final = frozenset({"redrive"})
HELD_BACK_US: Final = 2 * SECOND_US  # a reply may wait so long for a sync behind what was handed out


class JobChecker:
    """Goes through the books of a run."""

    def __init__(self, books: Books, plan: JobPlan, end_us: int) -> None:
        self._books = books
        self._plan = plan
        self._lives = books.history.lives
        self._end_us = end_us  # of the last time that all there was was fetched
        self._ends = [act for act in books.acts if act.kind in ENDS and act.count != 0]
        self._moves = [act for act in books.acts if act.kind in MOVES and act.count != 0]
        self._by_id = {job_id: job for job in books.jobs.values() for job_id in job.ids}
        self.found: list[str] = []

    def violations(self) -> list[str]:
        for job in self._books.jobs.values():
            job.handouts.sort(key=lambda one: one.served_us)
            self._check_ids(job)
            for job_id in job.ids:
                handouts = [one for one in job.handouts if one.job_id == job_id]
                self._check_once(job, handouts)
                self._check_retries(job, handouts)
                self._check_times(job, job_id, handouts)
                self._check_dead_letters(job, handouts)
            self._check_kept(job)
        for act in self._ends:
            if act.count > 0 and act.answered_us >= 0 and act.kind != "empty" and not self._books.may_be_lost(act):
                self._check_gone(act)
        for probe in self._books.probes:
            for seen in probe.jobs.values():
                if seen.job_id in self._by_id:
                    self._check_seen(probe, seen, self._by_id[seen.job_id])
        for before, after in pairwise(sorted(self._books.probes, key=lambda one: one.sent_us)):
            if after.sent_us < before.heard_us:
                continue  # nobody knows which of them the server saw first
            self._check_unchanged(before, after)
            if after.life.number in self._books.controlled and before.life.number == after.life.number - 1:
                self._check_restored(before, after)
        return self.found + self._books.history.problems

    def _violation(self, words: str) -> None:
        self.found.append(words)

    # What may have happened

    def _moved(self, job: Added, from_us: int, until_us: int, kinds: frozenset[str] = MOVES) -> bool:
        """Whether somebody may have queued it, or moved its time, in between."""
        return any(
            act.kind in kinds and act.sent_us <= until_us and act.latest_us() >= from_us and act.concerns(job)
            for act in self._moves
        )

    def _cut_unsynced(self, from_us: int, until_us: int) -> bool:
        """Whether a power cut in between may have taken what had happened, or any end while the log was off."""
        return any(
            from_us <= life.ended_us <= until_us
            and ((life.how == POWER_CUT and self._cuts_unsynced(life)) or self._books.forgot_since(life) is not None)
            for life in self._lives
        )

    def _cuts_unsynced(self, life: Life) -> bool:
        """Whether the end of this life may take what has happened in it, or what a server killed before it had left."""
        if life.modes[FAMILY].sync_ms != 0:
            return True
        is_behind_killed = life.number > 1 and self._lives[life.number - 2].how == KILLED
        return is_behind_killed and not self._books.was_put_on_disk(life)

    def _was_refused(self) -> bool:
        """Whether the disk has refused something: what happened without anybody's asking may be written later."""
        return any(FAMILY in life.faulty_since for life in self._lives)

    def _was_paused(self, job: Added, until_us: int) -> bool:
        """Whether its queue may have been paused, in this life or before, so that it was not queued when it was due."""
        return any(act.kind == "pause" and act.sent_us <= until_us and act.concerns(job) for act in self._books.acts)

    def _has_crashed_behind(self, one: Handout) -> bool:
        """Whether the server died before it may have written that it had queued this."""
        life = one.request.life
        return life.how != STOPPED and self._ended_us(life) - one.served_us < SECOND_US

    def _was_flushed(self, from_us: int, until_us: int) -> bool:
        return any(act.kind == "flush" and act.sent_us <= until_us and act.latest_us() >= from_us for act in self._ends)

    def _created_us(self, job: Added, job_id: bytes) -> tuple[int, int]:
        """Its creation on the steady clock, at the earliest and at the latest: by which try it got that id?"""
        books, answered = self._books, job.ids[job_id]
        tries = [one for one in job.tries if one.count < 0 or one.ids == (job_id,)]
        earliest_us = min(books.earliest_us(one.life, one.sent_us) for one in tries)
        if answered is not None:
            return earliest_us, books.latest_us(answered.life, answered.answered_us)
        latest = [books.latest_us(one.life, min(one.latest_us(), self._ended_us(one.life))) for one in tries]
        return earliest_us, max(latest)

    def _ended_us(self, life: Life) -> int:
        return life.ended_us if life.ended_us >= 0 else self._end_us

    # Ids

    def _check_ids(self, job: Added) -> None:
        """One job for one ADDJOB, and one for all with the same key."""
        if len(job.ids) < 2:
            return
        if not job.key:
            self._violation(f"job {job.number} has several ids: {list(job.ids)}")
            return
        acts = sorted([act for act in job.ids.values() if act is not None], key=lambda one: one.answered_us)
        for first, second in pairwise(acts):
            passed_us = self._books.latest_us(second.life, second.answered_us) - self._books.earliest_us(
                first.life, first.sent_us
            )
            if (
                passed_us < KEY_TIME_MS * 1000
                and not self._books.may_be_lost(first)
                and not self._may_have_lost_key(job, first, second)
                and not self._was_flushed(min(first.sent_us, second.sent_us), second.answered_us)
            ):
                self._violation(
                    f"job {job.number} was added twice with its key: at {first.answered_us}, {second.answered_us}"
                )

    def _may_have_lost_key(self, job: Added, first: Act, second: Act) -> bool:
        """Whether it expired, which nobody waits for, and a repair may have found that in the log, but not its key."""
        books = self._books
        has_expired = books.latest_us(second.life, second.answered_us) >= (
            books.earliest_us(first.life, first.sent_us) + job.ttl_s * SECOND_US
        )
        return has_expired and any(first.life.number < number <= second.life.number for number in books.repaired)

    # Deliveries

    def _check_once(self, job: Added, handouts: list[Handout]) -> None:
        """A job without a retry time comes once."""
        if job.retry_s:
            return
        for first, second in pairwise(handouts):
            if self._moved(job, job.tries[0].sent_us, second.served_us, frozenset({"bury", "redrive"})):
                continue
            if self._cut_unsynced(first.request.sent_us, second.served_us) and (
                self._books.has_stepped_back() or self._moved(job, job.tries[0].sent_us, first.served_us)
            ):
                continue  # it is not known any more that it was queued before its time
            self._violation(f"job {job.number} has no retry time, and came at {first.served_us} and {second.served_us}")

    def _check_retries(self, job: Added, handouts: list[Handout]) -> None:
        """It comes so often to its own queue, and from then on to the one of dead letters."""
        most = job.retries
        if most < 0 and job.queue == b"work" and self._plan.max_retries is not None:
            most = self._plan.max_retries
        own = [one for one in handouts if one.queue == job.queue]
        if most < 0:
            elsewhere = [one for one in handouts if one.queue != job.queue]
            if elsewhere and not self._moved(job, 0, elsewhere[0].served_us, frozenset({"bury"})):
                self._violation(f"job {job.number} of {job.queue!r} came to {elsewhere[0].queue!r}")
        elif sum(not self._has_crashed_behind(one) for one in own) > most + 1:
            started_us, ended_us = job.tries[0].sent_us, own[-1].served_us
            excusing = frozenset({"enqueue", "bury", "redrive"})
            if not self._moved(job, started_us, ended_us, excusing) and not self._cut_unsynced(started_us, ended_us):
                self._violation(f"job {job.number} may come {most + 1} times, and came {len(own)} times")

    def _check_times(self, job: Added, job_id: bytes, handouts: list[Handout]) -> None:
        """Not before its delay or its retry time is over, and not after its TTL."""
        if not handouts:
            return
        books = self._books
        earliest_us, latest_us = self._created_us(job, job_id)
        for place, one in enumerate(handouts):
            life = one.request.life
            if books.earliest_us(life, one.served_us) > latest_us + job.ttl_s * SECOND_US + HELD_BACK_US:
                self._violation(f"job {job.number} came at {one.served_us}, after its TTL of {job.ttl_s} s")
            due_us = earliest_us + job.delay_s * SECOND_US
            if place and job.retry_s:
                due_us += place * (job.retry_s * SECOND_US - JITTER_MS * 1000)
            since_us = job.tries[0].sent_us
            if place and (
                self._cut_unsynced(since_us, one.served_us)
                or self._was_refused()
                or any(self._has_crashed_behind(earlier) for earlier in handouts[:place])
            ):
                continue  # one may have come too early, and those that followed count from that
            if books.latest_us(life, one.served_us) + A_TICK_US < due_us and not self._moved(
                job, since_us, one.served_us
            ):
                what = f"its delay of {job.delay_s} s" if not place else f"its retry time of {job.retry_s} s"
                self._violation(f"job {job.number} came at {one.served_us}, before {what} was over ({place})")

    def _check_dead_letters(self, job: Added, handouts: list[Handout]) -> None:
        """A dead letter says where it comes from, and stays one; nothing else is one."""
        for act in self._moves:
            if act.kind != "bury" or act.count < 1 or self._books.may_be_lost(act):
                continue
            for one in handouts:
                is_later = one.job_id in act.ids and one.request.sent_us > act.answered_us
                if is_later and one.queue == job.queue and not self._moved(job, 0, one.served_us, _REDRIVEN):
                    self._violation(f"job {job.number}, a dead letter, came from {one.queue!r} at {one.served_us}")
        for one in handouts:
            if not one.origin:
                continue  # nobody has asked
            is_dead = one.queue == job.queue + DEAD_SUFFIX
            if one.origin != job.queue or bool(one.reason) != is_dead:
                self._violation(
                    f"job {job.number} of {job.queue!r} came from {one.queue!r} with"
                    f" {one.origin!r} and {one.reason!r} as its origin"
                )

    # What is gone, and what is kept

    def _check_gone(self, act: Act) -> None:
        """What was acknowledged does not come again, nor is it anywhere."""
        for job_id, job in self._by_id.items():
            added = job.ids[job_id]
            if act.ids:
                is_meant = job_id in act.ids
            else:
                is_meant = added is not None and 0 <= added.answered_us < act.sent_us
            if not is_meant:
                continue
            for one in job.handouts:
                is_later = one.request.sent_us > act.answered_us or one.request.life.number > act.life.number
                if one.job_id == job_id and is_later:
                    self._violation(
                        f"job {job.number}: {act.kind} was answered at {act.answered_us},"
                        f" and it came at {one.served_us}"
                    )
            for probe in self._books.probes:
                if job_id in probe.jobs and probe.sent_us > act.answered_us:
                    self._violation(
                        f"job {job.number}: {act.kind} was answered at {act.answered_us},"
                        f" and it is there at {probe.sent_us}"
                    )
                    break

    def _check_kept(self, job: Added) -> None:
        """What was added came until it was acknowledged, or its TTL was over."""
        last = self._lives[-1]
        for job_id, added in job.ids.items():
            if added is None or self._books.may_be_lost(added):
                continue
            since_us = job.tries[0].sent_us
            if any(act.latest_us() >= since_us and self._ends_it(act, job, job_id) for act in self._ends):
                continue
            expires_us = self._created_us(job, job_id)[0] + job.ttl_s * SECOND_US
            if self._books.latest_us(last, self._end_us) >= expires_us:
                continue
            if not job.retry_s and self._may_have_come_once(job, job_id, added):
                continue
            times = sum(one.job_id == job_id for one in job.handouts)
            self._violation(f"job {job.number}, added at {added.answered_us}, came {times} times and is nowhere")

    def _ends_it(self, act: Act, job: Added, job_id: bytes) -> bool:
        return job_id in act.ids if act.ids else act.concerns(job)

    def _may_have_come_once(self, job: Added, job_id: bytes, added: Act) -> bool:
        """Whether a job without a retry time has been handed out, or may not be any more after a start."""
        books = self._books
        if any(one.job_id == job_id for one in job.handouts):
            return True
        if any(one.count < 0 and one.latest_us() >= added.sent_us for one in books.fetches):
            return True
        if any(act.kind == "dequeue" and act.concerns(job) for act in books.acts):
            return True
        due_us = self._created_us(job, job_id)[0] + job.delay_s * SECOND_US
        if self._moved(job, added.sent_us, self._end_us):
            due_us = 0
        for life in self._lives:
            begins_us = [at_us for at_us in books.reloaded_us if life.ready_us <= at_us <= self._ended_us(life)]
            if life.number not in books.controlled:
                begins_us.append(books.loaded_us.get(life.number, self._ended_us(life)))
            if any(at_us > added.sent_us and books.latest_us(life, at_us) >= due_us for at_us in begins_us):
                return True
        return False

    # What is seen of them

    def _check_seen(self, probe: Probe, seen: Seen, job: Added) -> None:
        """TTL and DELAY go on where they were, over any number of starts."""
        books = self._books
        now_us = (books.earliest_us(probe.life, probe.sent_us), books.latest_us(probe.life, probe.heard_us))
        created_us = self._created_us(job, seen.job_id)
        expires_us = [one + job.ttl_s * SECOND_US for one in created_us]
        if not expires_us[0] - now_us[1] - A_TICK_US <= seen.ttl_s * SECOND_US <= expires_us[1] - now_us[0] + SECOND_US:
            self._violation(f"job {job.number} has a TTL of {seen.ttl_s} s left at {probe.sent_us}")
        due_us = [one + job.delay_s * SECOND_US for one in created_us]
        if (
            not job.delay_s
            or now_us[1] >= due_us[0] - A_TICK_US
            or self._moved(job, job.tries[0].sent_us, probe.heard_us)
        ):
            return
        left_us = seen.requeue_ms * 1000
        if (
            seen.state != b"active"
            or not due_us[0] - now_us[1] - A_TICK_US <= left_us <= due_us[1] - now_us[0] + A_TICK_US
        ):
            self._violation(
                f"job {job.number} has a delay of {job.delay_s} s, and at {probe.sent_us} it is {seen.state.decode()}"
                f" and queued in {seen.requeue_ms} ms"
            )

    def _check_unchanged(self, before: Probe, after: Probe) -> None:
        """Until its time has come a job is not queued, and its time stays what it was, over any number of starts."""
        books = self._books
        if self._cut_unsynced(before.sent_us, after.heard_us) or self._plan.retry_from is RetryFrom.DELIVERY:
            return
        if self._was_refused():
            return
        was_us = (books.earliest_us(before.life, before.sent_us), books.latest_us(before.life, before.heard_us))
        now_us = (books.earliest_us(after.life, after.sent_us), books.latest_us(after.life, after.heard_us))
        for job_id, seen in after.jobs.items():
            earlier, job = before.jobs.get(job_id), self._by_id.get(job_id)
            if earlier is None or job is None or earlier.requeue_ms < 0 or not job.retry_s:
                continue
            due_us = [at_us + earlier.requeue_ms * 1000 for at_us in was_us]
            if earlier.state != b"active" or now_us[1] >= due_us[0] - A_TICK_US:
                continue
            if 0 <= job.retry_s * 1000 - earlier.requeue_ms <= A_TICK_US // 1000:
                continue  # it was due already, and the next time is shown
            if self._moved(job, before.sent_us, after.heard_us) or self._was_paused(job, before.heard_us):
                continue
            if after.life is not before.life and self._may_be_unwritten(before, earlier, job):
                continue
            new_us = [at_us + seen.requeue_ms * 1000 for at_us in now_us]
            if seen.state != b"active" or new_us[0] > due_us[1] + A_TICK_US or new_us[1] < due_us[0] - A_TICK_US:
                self._violation(
                    f"job {job.number} was to be queued in {earlier.requeue_ms} ms at {before.sent_us}; at"
                    f" {after.sent_us} it is {seen.state.decode()} and to be queued in {seen.requeue_ms} ms"
                )

    def _may_be_unwritten(self, probe: Probe, seen: Seen, job: Added) -> bool:
        """Whether its time was moved without anybody's asking when the server died, which may not have written it."""
        if probe.life.how == STOPPED:
            return False
        spans_ms = [job.retry_s * 1000 - JITTER_MS, *self._plan.backoff_ms]
        due_us = probe.heard_us + seen.requeue_ms * 1000
        return any(due_us - span_ms * 1000 > self._ended_us(probe.life) - SECOND_US for span_ms in spans_ms)

    def _check_restored(self, before: Probe, after: Probe) -> None:
        """What was queued before a controlled restart is queued behind it, unless DEBUG LOADAOF came first."""
        if any(before.sent_us <= at_us <= after.sent_us for at_us in self._books.reloaded_us):
            return
        for job_id, earlier in before.jobs.items():
            seen, job = after.jobs.get(job_id), self._by_id.get(job_id)
            if earlier.state != b"queued" or seen is None or job is None or seen.state == b"queued":
                continue
            was_fetched = any(one.latest_us() >= before.sent_us for one in self._books.fetches if one.count < 0)
            came = [one for one in job.handouts if before.sent_us <= one.served_us <= after.heard_us]
            if not (was_fetched or came):
                self._violation(f"job {job.number} was queued at {before.sent_us}, and not behind a controlled restart")
