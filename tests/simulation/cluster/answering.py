"""Whether clients were answered as they had to be, and in time."""

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kestreld.jobs.keys import KEY_TIME_MS
from tests.simulation.cluster.books import CAUSES, CLEARS, Act, Sent
from tests.simulation.cluster.clients import PATIENCE_US

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

SECOND_US: Final = 1_000_000
START_US: Final = 600_000
LATE_US: Final = 500_000  # behind its time an answer may come
DISK_US: Final = 2_500_000  # and where the disk is slow or fails


class Answers:
    """Goes through what clients were told."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._books = world.books
        self._watch = world.watch
        self._troubles = world.troubles
        self.found: list[str] = []

    def violations(self) -> list[str]:
        self._check_in_time()
        self._check_added()
        for job in self._books.jobs.values():
            self._check_keys(job)
            self._check_counters(job)
        for act in self._books.acts:
            if act.kind == "wait":
                self._check_waited(act)
        return self.found

    def _violation(self, words: str) -> None:
        self.found.append(words)

    def _check_in_time(self) -> None:
        """Every command is answered, and those that wait not much later than they wanted to."""
        before: dict[int, int] = {}  # by connection, the end of the last one on it
        for act in self._books.acts:
            # A node that starts keeps its clients waiting until it has pinged the others, for half a second at most.
            began_us = max(act.sent_us, before.get(id(act.link), 0), act.life.ready_us + START_US)
            end_us = act.latest_us()
            before[id(act.link)] = end_us
            if end_us >= 1 << 60:
                self._violation(f"{act.kind} at {act.host}, sent at {act.sent_us}, was never answered")
                continue
            if act.answered_us < 0 and self._has_ended(act, end_us):
                continue
            machine = self._world.by_host[act.host]
            allowed_us = max(act.wait_ms, 0) * 1000 + LATE_US + machine.stopped_us(act.sent_us, end_us)
            if machine.was_disk_bad:
                allowed_us += DISK_US
            if end_us - began_us > allowed_us and not self._may_wait_for_a_pause(act, end_us):
                took = f"took from {began_us} to {end_us}, with {act.wait_ms} ms to wait"
                self._violation(f"{act.kind} {act.ids} at {act.host} {took}")

    def _may_wait_for_a_pause(self, act: Act, end_us: int) -> bool:
        """Without a timeout ADDJOB waits while a node does not take a copy, as the queue is paused there."""
        return (
            act.kind == "add"
            and act.wait_ms == PATIENCE_US // 1000
            and any(
                one.word in (b"in", b"all") and one.queue == act.queue and one.sent_us < end_us
                for one in self._books.acts
                if one.kind in ("pause", "pause all")
            )
        )

    def _has_ended(self, act: Act, end_us: int) -> bool:
        """Whether there is no answer as the process has ended, or as the client has broken off."""
        return 0 <= act.life.ended_us <= end_us + LATE_US or act.is_broken_off

    def _check_added(self) -> None:
        """A node that is up adds jobs by itself: neither leaving nor short of memory, it has no need of others."""
        for job in self._books.jobs.values():
            for one in job.tries:
                if one.replicate != 1 or not one.act.error.startswith(b"NOREPL") or job.key:
                    continue
                if not any(act.kind in ("leave", "set") and act.host == one.act.host for act in self._books.acts):
                    self._violation(f"job {job.number} was to be at one node, and was refused: {one.act.error!r}")

    # Keys and counters

    def _check_keys(self, job: Sent) -> None:
        """All ADDJOBs with one key made one job, unless trouble kept nodes from asking each other."""
        acts = sorted([one.act for one in job.ids.values() if one is not None], key=lambda act: act.answered_us)
        for first, second in pairwise(acts):
            if second.answered_us - first.answered_us > KEY_TIME_MS * 1000:
                continue
            if not self._troubles.was_trouble(min(act.sent_us for act in acts), second.answered_us):
                self._violation(f"job {job.number} was added twice with its key: {first.ids} and {second.ids}")
        if len(job.ids) > 1 and not job.key:
            self._violation(f"job {job.number} has several ids: {list(job.ids)}")

    def _check_counters(self, job: Sent) -> None:
        """NACKs are counted, wherever they are given and wherever it is delivered."""
        for handout in self._books.handouts:
            if handout.job is not job or handout.nacks < 0:
                continue
            created_us = self._watch.copies[handout.job_id][0].since_us
            if self._troubles.was_trouble(created_us, handout.served_us):
                continue
            acts = [act for act in self._books.acts if act.kind in CAUSES and handout.job_id in act.ids]
            moves = [act for act in self._books.acts if act.kind in ("redrive", "bury") and act.concerns(job)]
            nacks = sorted(act.sent_us for act in acts if act.kind == "nack" and act.count == 1)
            if moves or any(later - earlier < LATE_US for earlier, later in pairwise(nacks)):
                continue  # counted from 0 again; or two nodes have counted at once
            told = [act for act in acts if act.kind == "nack" and act.count == 1]
            least = sum(
                act.answered_us + 50_000 < handout.served_us and act.sent_us < handout.served_us for act in told
            )
            most = sum(act.kind == "nack" and act.count != 0 and act.sent_us <= handout.served_us for act in acts)
            taken = [one.at_us for one in self._watch.takes[handout.job_id] if one.at_us <= handout.served_us]
            least = min(least, sum(act.answered_us < taken[-1] - 50_000 for act in told))
            if not least <= handout.nacks <= most:
                self._violation(
                    f"job {job.number} came at {handout.served_us} with {handout.nacks} nacks of {least} to {most}"
                )

    # WAITJOB

    def _check_waited(self, act: Act) -> None:
        """What it says has happened, and without trouble it is said."""
        job = self._books.by_id.get(act.ids[0])
        if job is None or act.answered_us < 0:
            return
        acts = [one for one in self._books.acts if one.sent_us <= act.answered_us]
        if act.word == b"acked":
            is_true = any(one.kind in ("ack", "fastack") and act.ids[0] in one.ids for one in acts)
        elif act.word == b"deleted":
            kinds = ("delete", "empty", "fastack", "ack", *CLEARS)
            # That the ADDJOB was given up is the end of a job, too.
            is_true = any(one.outcome != "ok" for one in job.tries) or any(
                one.kind in kinds and (not one.ids or act.ids[0] in one.ids) for one in acts
            )
        elif act.word == b"expired":
            created_us = self._watch.copies[act.ids[0]][0].since_us
            is_true = act.answered_us >= created_us + (job.ttl_s - 1) * SECOND_US or bool(self._troubles.stepped)
        else:
            return
        if not is_true:
            self._violation(f"WAITJOB for job {job.number} was answered {act.word!r} at {act.answered_us}")
