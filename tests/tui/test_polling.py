"""Looking at a server, and at one that goes away."""

import threading

from tests.support.daemon import Daemon
from tests.support.waiting import until
from tests.tui.sights import PATIENCE_S, put
from tui.polling import BACK_OFF_MS_MAX, Poller, PollThread
from tui.snapshots import Outage, Snapshot


def test_a_look_has_the_queues_and_the_counters_of_the_server(daemon: Daemon, queue: str) -> None:
    put(daemon.address, queue, b"hello")
    poller = Poller(daemon.address, 5000, 1000)
    look = poller.poll()
    poller.close()
    assert isinstance(look, Snapshot)
    assert look.queues[queue][:3] == (1, 5, 1)
    assert look.counters["version"] == "1.0.0"


def test_looks_come_slower_while_a_server_is_away_and_go_on_when_it_is_back(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"hello")
    poller = Poller(own_daemon.address, 5000, 1000)
    assert isinstance(poller.poll(), Snapshot)
    own_daemon.kill()
    outages = [poller.poll() for _ in range(8)]
    waits_ms = [outage.next_try_ms for outage in outages if isinstance(outage, Outage)]
    assert waits_ms == [2000, 4000, *[BACK_OFF_MS_MAX] * 6]
    own_daemon.start()
    back = poller.poll()
    poller.close()
    assert isinstance(back, Snapshot)
    assert back.queues["work"][0] == 1


def test_a_thread_looks_until_it_is_stopped(daemon: Daemon) -> None:
    looks: list[Snapshot | Outage] = []
    thrice = threading.Event()

    def deliver(look: Snapshot | Outage) -> None:
        looks.append(look)
        if len(looks) == 3:
            thrice.set()

    thread = PollThread(Poller(daemon.address, 5000, 10), deliver)
    thread.start()
    assert thrice.wait(PATIENCE_S)
    thread.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert all(isinstance(look, Snapshot) for look in looks)


def test_a_server_that_is_back_is_found_at_once_if_somebody_asks(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"hello")
    own_daemon.kill()
    looks: list[Snapshot | Outage] = []
    thread = PollThread(Poller(own_daemon.address, 5000, 3_600_000), looks.append)
    thread.start()
    until(lambda: looks, "a look at a server that is away")
    own_daemon.start()
    thread.poll_now()
    until(lambda: isinstance(looks[-1], Snapshot), "a look at the server, without waiting for an hour")
    thread.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
