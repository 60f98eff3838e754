"""ADDJOB ID in a cluster: asks all reachable nodes for a client's own id before a job with it is added.

Two nodes that add the same id at once find each other: the one with the lesser job id goes on, the other one waits for
the outcome. Nodes that cannot be reached are not waited for, so each side of a partition may add one.
"""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.job_messages import FindKey, FoundKey
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.jobs.job import COPY, WAIT_REPL
from kestreld.queues.agenda import Scheduled

ANSWER_MS: Final = 500  # a node that takes longer is passed over
AGAIN_MS: Final = 50  # while another node is adding the job
NEVER_MS: Final = 1 << 62

Found = Callable[[bytes], None]  # called with the id of the job found, b"" = none: it may be added


class KeySearch(Scheduled):
    """Search for one key. `job_id` is the id of the job that is added if no other has the key."""

    def __init__(self, key: bytes, job_id: bytes, found: Found, late: Callable[["KeySearch"], None]) -> None:
        super().__init__(NEVER_MS)
        self.key = key
        self.job_id = job_id
        self.found = found
        self.awaited: set[bytes] = set()  # nodes that have yet to answer
        self.known_id = b""  # the job that one of them knows
        self.is_refused = False  # another node is adding it
        self._late = late

    def begin(self, nodes: set[bytes], due_at_ms: int) -> None:
        """Start waiting for answers of these nodes."""
        self.awaited, self.is_refused, self.known_id, self.due_at_ms = nodes, False, b"", due_at_ms

    def give_up_on(self, node_ids: set[bytes]) -> None:
        """Stop waiting for these nodes."""
        self.awaited -= node_ids

    def answered(self, node_id: bytes, known_id: bytes, *, is_pending: bool) -> None:
        """Note an answer: a known job, b"" = none; `is_pending`: the node is adding one, and others may know a copy."""
        self.awaited.discard(node_id)
        self.is_refused = self.is_refused or is_pending
        self.known_id = known_id or self.known_id

    def wait_until(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms

    def end(self) -> None:
        self.due_at_ms = NEVER_MS

    def fall_due(self, now_ms: int) -> None:
        self._late(self)


class KeySearches:
    """Searches of this node for keys. `is_adding` tells whether a job is still being added here."""

    def __init__(self, peers: Peers, is_adding: Callable[[bytes], bool]) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._is_adding = is_adding
        self._by_id: dict[bytes, KeySearch] = {}
        self._by_key: dict[bytes, KeySearch] = {}
        self._vouched: set[bytes] = set()  # ids of jobs here whose existence was reported to somebody

    def known_here(self, key: bytes) -> bytes | None:
        """Return the id of the job with this key, if that is certain, else None.

        It is not while the job is or may be still being added, nor if it was deleted here: that may have been a copy.
        """
        jobs = self._jobs
        known = jobs.keys.find(key, jobs.now_ms)
        job = jobs.find(known) if known is not None else None
        if job is None or job.state in (WAIT_REPL, COPY):
            return None
        if job.terms.owners:  # a copy that was queued here may still be given up elsewhere
            self._vouched.add(job.id)
        return known

    def find(self, key: bytes, job_id: bytes, found: Found) -> KeySearch:
        """Ask all other nodes for a key; `found` is called once, maybe at once."""
        search = KeySearch(key, job_id, found, self._late)
        self._by_id[job_id] = search
        self._by_key.setdefault(key, search)
        self._ask(search)
        return search

    def cancel(self, search: KeySearch) -> None:
        """End a search: its client has gone."""
        self._drop(search)

    def _drop(self, search: KeySearch) -> None:
        search.end()
        self._by_id.pop(search.job_id, None)
        if self._by_key.get(search.key) is search:
            del self._by_key[search.key]

    def _ask(self, search: KeySearch) -> None:
        jobs = self._jobs
        known = jobs.keys.find(search.key, jobs.now_ms)
        if self.known_here(search.key) is not None:
            self._drop(search)
            search.found(known or b"")
            return
        nodes = self._peers.up()
        search.begin({node.id for node in nodes}, jobs.clock.monotonic_ms + ANSWER_MS)
        first = self._by_key.setdefault(search.key, search)
        if known is not None and not self._is_adding(known):
            search.answered(b"", known, is_pending=False)
        elif known is not None or first is not search:
            search.answered(b"", b"", is_pending=True)  # another client of this node is adding it
        self._peers.tell_each(nodes, FindKey(search.key, search.job_id))
        self._look(search)

    def _look(self, search: KeySearch) -> None:
        """Finish the search, or plan its repetition, once all nodes have answered."""
        agenda, now_ms = self._jobs.agenda, self._jobs.clock.monotonic_ms
        if search.awaited:
            agenda.add(search)
        elif search.is_refused:
            search.wait_until(now_ms + AGAIN_MS)
            agenda.add(search)
        else:
            self._drop(search)
            self.vouch_for(search.known_id)
            search.found(search.known_id)

    def _late(self, search: KeySearch) -> None:
        if self._by_id.get(search.job_id) is not search:
            return
        if search.awaited:
            search.give_up_on(set(search.awaited))
            self._look(search)
        else:
            self._ask(search)

    def find_key(self, sender: Node, message: FindKey) -> None:
        """Answer another node's search."""
        jobs = self._jobs
        known = jobs.keys.find(message.key, jobs.now_ms)
        is_pending = known is not None and self._is_adding(known)
        if known is None:
            search = self._by_key.get(message.key)
            if search is not None and search.job_id < message.job_id:
                known, is_pending = search.job_id, True
            elif search is not None:  # the sender may have answered before it began to look itself
                search.answered(b"", b"", is_pending=True)
        elif not is_pending:
            self.vouch_for(known)
        self._peers.bus.send(sender, FoundKey(message.job_id, known or b"", is_pending))

    def found_key(self, sender: Node, message: FoundKey) -> None:
        """Note the answer of another node."""
        search = self._by_id.get(message.job_id)
        if search is None or sender.id not in search.awaited:
            return
        known_id = b"" if message.is_pending else message.known_id
        search.answered(sender.id, known_id, is_pending=message.is_pending)
        if not search.awaited:
            self._look(search)

    def went_down(self, node: Node) -> None:
        """Stop waiting for answers of a node."""
        for search in list(self._by_id.values()):
            if node.id in search.awaited:
                search.give_up_on({node.id})
                if not search.awaited:
                    self._look(search)

    # Copies of jobs that are being added elsewhere

    def vouch_for(self, job_id: bytes) -> None:
        """Keep a job of which somebody was told, even if the node that adds it gives up."""
        if self._jobs.find(job_id) is not None:
            self._vouched.add(job_id)

    def is_vouched_for(self, job_id: bytes) -> bool:
        return job_id in self._vouched

    def gone(self, job_id: bytes) -> None:
        """Forget a job with a key that has ended."""
        self._vouched.discard(job_id)

    def clear(self) -> None:
        """Reset after all jobs were deleted."""
        self._vouched = set()
