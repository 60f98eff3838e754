"""The bus of simulated servers: what it sends when, what it drops, and that a peer that does not read delays nobody."""

from functools import partial
from itertools import pairwise

import pytest

from kestreld.cluster.job_messages import DeleteQueue, GotJob, JobCopy, ReplJob, YourJobs
from kestreld.cluster.nodes import Node
from kestreld.jobs.job_queue import AddedWith
from kestreld.server.bus.link import CROWDED_BYTES, PART_BYTES, QUEUED_BYTES_MAX
from tests.simulation.jobs.server import JobServer
from tests.simulation.machines import Machines
from tests.support.compiled import interpreted_only

pytestmark = interpreted_only

TERMS: AddedWith = (60_000, 10_000, 0, -1)
HERE, THERE, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def formed(**settings: object) -> Machines:
    machines = Machines(1, **settings)
    machines.form()
    machines.run(100)
    return machines


def entry(machines: Machines, host: str, of: str) -> Node:
    table = machines.servers[host].node.cluster.table
    return next(node for node in table.others() if node.address.host == of)


def add_job(server: JobServer) -> bytes:
    """A change that goes to the log at the end of the turn; the job's id."""
    jobs = server.node.jobs
    queue = jobs.queue(b"q")
    assert queue is not None
    return bytes(jobs.add(b"body", queue.terms_of(TERMS, b"")).id)


class Sender:
    """One server sends to another in turns of its own."""

    def __init__(self, machines: Machines, host: str = HERE, to: str = THERE) -> None:
        self.machines = machines
        self.server = machines.servers[host]
        self.node = entry(machines, host, to)
        bus = self.server.node.cluster.bus
        assert bus is not None
        self.bus = bus
        self.link = bus._peers[self.node].ready_link

    def turn(self, *steps: object) -> None:
        """Do these, and end the turn."""

        def do() -> None:
            for step in steps:
                step()  # type: ignore[operator]
            assert self.server.service is not None
            self.server.service.turn.finish()

        self.server.loop.run(do)

    def got(self, host: str = THERE) -> list[object]:
        return list(self.machines.told[host].messages)


def copy_of(body: bytes, number: int = 0) -> JobCopy:
    job_id = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-%04x" % number
    return JobCopy(job_id, b"q", body, 1, 60_000, 10_000, 0, 0, 2, 0, 0, ())


@pytest.mark.parametrize("sync_ms", [0, 1000, None])
def test_what_relies_on_the_log_leaves_once_that_is_where_replies_wait_for_it_and_the_rest_at_once(
    sync_ms: int | None,
) -> None:
    machines = formed(jobs_journal=True, jobs_sync_journal_ms=sync_ms)
    sender, disk = Sender(machines), machines.disks[HERE]
    machines.servers[HERE].disk_delay_us = 50_000
    added: list[bytes] = []
    sender.turn(
        lambda: added.append(add_job(sender.server)),
        lambda: sender.bus.send_once_written(sender.node, GotJob(added[0])),
        lambda: sender.bus.send(sender.node, DeleteQueue(b"at once")),
    )

    def is_on_disk() -> bool:
        files = disk.after_power_cut([], lambda file, change: None) if sync_ms == 0 else disk.copy()
        return any(added[0] in file.data for _, file in files.walk())

    assert is_on_disk() == (sync_ms != 0)
    machines.until(lambda: DeleteQueue(b"at once") in sender.got())
    assert (GotJob(added[0]) in sender.got()) == (sync_ms != 0)
    machines.until(lambda: GotJob(added[0]) in sender.got())
    assert is_on_disk()


def test_without_a_log_nothing_waits() -> None:
    machines = formed()
    sender = Sender(machines)
    sender.turn(
        lambda: sender.bus.send_once_written(sender.node, DeleteQueue(b"1")),
        lambda: sender.bus.send(sender.node, DeleteQueue(b"2")),
        lambda: sender.bus.send(sender.node, DeleteQueue(b"3")),
    )
    machines.run(10)
    assert sorted(sender.got(), key=repr) == [DeleteQueue(b"1"), DeleteQueue(b"2"), DeleteQueue(b"3")]
    assert sender.got().index(DeleteQueue(b"2")) < sender.got().index(DeleteQueue(b"3"))


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_what_relies_on_a_commit_that_fails_never_leaves_and_what_comes_after_the_repair_does(kind: str) -> None:
    machines = formed(jobs_journal=True, jobs_sync_journal_ms=0)
    sender, faults = Sender(machines), machines.faults[HERE]
    sender.turn(lambda: add_job(sender.server))
    machines.run(100)  # there is a segment
    faults.kinds, faults.probability = frozenset({kind, "create"}), 1.0
    sender.turn(
        lambda: add_job(sender.server),
        lambda: sender.bus.send_once_written(sender.node, DeleteQueue(b"never")),
        lambda: sender.bus.send(sender.node, DeleteQueue(b"at once")),
    )
    machines.run(500)
    sender.turn(lambda: sender.bus.send_once_written(sender.node, DeleteQueue(b"refused")))
    machines.run(500)
    assert sender.got() == [DeleteQueue(b"at once")]
    faults.heal()
    machines.until(lambda: not sender.server.node.persistence.failure)
    sender.turn(
        lambda: add_job(sender.server),
        lambda: sender.bus.send_once_written(sender.node, DeleteQueue(b"later")),
    )
    machines.until(lambda: DeleteQueue(b"later") in sender.got())
    assert sender.got() == [DeleteQueue(b"at once"), DeleteQueue(b"later")]
    assert sender.link is not None
    assert sender.link.figures.messages_lost == 2
    assert sender.link.queued_bytes == 0


def test_what_waits_for_the_disk_is_lost_with_its_link_and_leaves_on_no_other() -> None:
    machines = formed(jobs_journal=True, jobs_sync_journal_ms=0)
    sender = Sender(machines)
    machines.servers[HERE].disk_delay_us = 2_000_000
    sender.turn(
        lambda: add_job(sender.server),
        lambda: sender.bus.send_once_written(sender.node, DeleteQueue(b"lost")),
    )
    machines.fabric.break_links(HERE, THERE)
    machines.until(lambda: machines.told[HERE].events[-1] == ("up", THERE))
    machines.run(6000)
    assert sender.got() == []


def test_messages_of_one_turn_arrive_in_their_order_however_many_frames_they_take() -> None:
    machines = formed()
    sender = Sender(machines)
    messages = [ReplJob(copy_of(bytes(number % 5000), number)) for number in range(400)]
    sender.turn(*[partial(sender.bus.send, sender.node, message) for message in messages])
    machines.until(lambda: len(sender.got()) == len(messages))
    assert sender.got() == messages


def test_a_message_longer_than_a_frame_comes_whole_and_others_behind_it() -> None:
    machines = formed()
    sender = Sender(machines)
    large = ReplJob(copy_of(bytes(range(256)) * (5 * PART_BYTES // 256) + b"end"))
    sender.turn(
        lambda: sender.bus.send(sender.node, large),
        lambda: sender.bus.send(sender.node, DeleteQueue(b"behind")),
    )
    machines.until(lambda: len(sender.got()) == 2)
    assert sender.got() == [large, DeleteQueue(b"behind")]
    assert sender.link is not None
    assert sender.link.queued_bytes == 0


def test_many_messages_are_taken_a_few_hundred_a_turn() -> None:
    machines = formed()
    sender = Sender(machines)
    receiver = machines.servers[THERE].service
    assert receiver is not None
    counts, turns = [0], receiver.turn.senders
    turns.append(lambda: counts.append(len(sender.got())))
    messages = [GotJob(b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-%04x" % number) for number in range(2000)]
    sender.turn(*[partial(sender.bus.send, sender.node, message) for message in messages])
    machines.until(lambda: len(sender.got()) == len(messages))
    turns.pop()
    assert sender.got() == messages
    assert max(after - before for before, after in pairwise(counts)) <= 256


def test_a_peer_that_does_not_read_is_crowded_then_given_up_and_delays_nobody() -> None:
    machines = formed()
    sender, other = Sender(machines), Sender(machines, to=THIRD)
    machines.servers[THERE].loop.stop()
    large = ReplJob(copy_of(bytes(CROWDED_BYTES)))
    sender.turn(lambda: sender.bus.send(sender.node, large), lambda: sender.bus.send(sender.node, large))
    assert sender.bus.is_crowded(sender.node)
    assert not sender.bus.is_crowded(other.node)
    other.turn(lambda: other.bus.send(other.node, DeleteQueue(b"soon")))
    machines.until(lambda: other.got(THIRD) == [DeleteQueue(b"soon")], 5)
    count = QUEUED_BYTES_MAX // CROWDED_BYTES + 2
    sender.turn(*[partial(sender.bus.send, sender.node, large)] * count)
    assert ("broken", THERE) in machines.told[HERE].events
    assert any("the node has stopped reading" in line for line in machines.servers[HERE].log)
    assert not sender.bus.is_crowded(sender.node)
    assert sum(link.queued_bytes for link in sender.bus._links.values()) < CROWDED_BYTES


def test_what_is_sent_in_the_turn_that_loses_its_link_is_lost_and_the_sender_is_told() -> None:
    machines = formed()
    sender = Sender(machines)
    machines.fabric.break_links(HERE, THERE)
    sender.turn(lambda: sender.bus.send(sender.node, DeleteQueue(b"lost")))
    machines.until(lambda: machines.told[HERE].events[-2:] == [("broken", THERE), ("up", THERE)])
    machines.run(1000)
    assert sender.got() == []


def test_nothing_is_sent_to_a_node_without_a_link() -> None:
    machines = formed()
    sender = Sender(machines)
    machines.kill(THERE)
    machines.run(50)
    sender.turn(lambda: sender.bus.send(sender.node, DeleteQueue(b"lost")))
    assert sender.bus._peers[sender.node].figures.messages_lost >= 1
    machines.start(THERE)
    machines.until(machines.is_whole)
    machines.run(1000)
    assert machines.told[THERE].messages == []


def error_ms(machines: Machines, host: str, other: str) -> int:
    """How much an instant of another server is too late on this one's clock."""
    here, there = machines.servers[host], machines.servers[other]
    here.clock.read()
    there.clock.read()
    offset_ms = entry(machines, host, other).clock_offset_ms
    return there.node.jobs.read_now_ms() + offset_ms - here.node.jobs.read_now_ms()


def test_clocks_are_known_to_within_the_way_of_a_frame() -> None:
    machines = formed()
    machines.run(3000)
    assert all(
        0 <= error_ms(machines, host, other) <= 2
        for host in machines.hosts
        for other in machines.hosts
        if host != other
    )


def test_a_clock_that_jumps_as_the_log_is_read_is_known_anew() -> None:
    machines = formed(jobs_journal=True)
    sender = Sender(machines)
    sender.turn(lambda: add_job(sender.server))
    machines.run(100)
    node, told = sender.server.node, list[str]()
    # As if the system clock had been an hour behind the log when the server was started.
    sender.server.loop.run(lambda: node.jobs.go_on_from(node.jobs.read_now_ms() + 3_600_000))
    sender.server.loop.run(lambda: node.persistence.load(told.append))
    machines.until(lambda: told == [""] and machines.is_whole())
    machines.run(1000)
    assert 0 <= error_ms(machines, HERE, THERE) <= 2
    assert 0 <= error_ms(machines, THERE, HERE) <= 2
    assert machines.told[THERE].events[-2:] == [("down", HERE), ("up", HERE)], "it was loading"


def test_a_message_about_jobs_of_a_node_that_is_no_member_is_dropped() -> None:
    machines = formed()
    sender = Sender(machines)
    there = machines.servers[THERE]
    there.loop.run(lambda: there.node.cluster.forget(entry(machines, THERE, HERE)))
    sender.turn(lambda: sender.bus.send(sender.node, YourJobs(1, (copy_of(b"x"),))))
    machines.run(1000)
    assert machines.told[THERE].messages == []
