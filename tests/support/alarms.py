"""`python -m tests.support.alarms FOLDER SECONDS EXCEPTION SETTING=VALUE…`: a queue in a storm of raising signals.

Ends with 0 when each item is there once, but for those whose operation was cut short, and the counts agree.
"""

import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kestreld.errors import JournalFailed
from kestreld.library import PersistentQueue, QueueConfig

HANGS_S = 60


class Alarm(Exception):
    pass


RAISED: dict[str, type[BaseException]] = {"alarm": Alarm, "timeout": TimeoutError, "interrupt": KeyboardInterrupt}


@dataclass
class Storm:
    """What was done meanwhile, and what became of it."""

    queue: PersistentQueue
    raised: type[BaseException]
    alarms: int = 0
    is_armed: bool = False
    added: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)  # adding them was cut short
    taken: list[bytes] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    over: threading.Event = field(default_factory=threading.Event)

    def ring(self, *_: object) -> None:
        if self.is_armed:  # not one that another thread was given, and hands over late
            self.alarms += 1
            raise self.raised("alarm")

    def consume(self) -> None:
        """In a thread that no signal ever interrupts, and which waits for items."""
        while not self.over.is_set():
            with suppress(JournalFailed):  # of a commit that had gathered behind a sync
                item = self.queue.remove_receive(time.time_ns() // 1_000_000 + 20)
                if item is not None:
                    self.taken.append(item.data)

    def one_round(self, item: bytes) -> None:
        """Add an item and take one, by a transaction now and then, with an alarm in the middle."""
        stage, xid = "adding", 0
        try:
            try:
                self.is_armed = True
                signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(1e-5, 2e-3))
                if self.queue.add(item):
                    self.added.add(item)
                stage = "taking"
                if self.chance.random() < 0.5:
                    found = self.queue.remove(True)
                    if found is not None:
                        xid = found.xid
                        self.queue.confirm_remove(xid)
                        self.taken.append(found.data)
                elif (found := self.queue.remove()) is not None:
                    self.taken.append(found.data)
            finally:
                with suppress(self.raised):
                    self.is_armed = False
                self.is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except self.raised:
            if stage == "adding":
                self.unsure.add(item)
        self.queue.unremove(xid)


def run(folder: str, seconds: float, raised: type[BaseException], settings: dict[str, Any]) -> str:
    queue = PersistentQueue(folder, "work", QueueConfig(**settings))
    queue.setup()
    storm = Storm(queue, raised)
    consumer = threading.Thread(target=storm.consume)
    consumer.start()
    signal.signal(signal.SIGALRM, storm.ring)
    number, ends_at = 0, time.monotonic() + seconds
    while time.monotonic() < ends_at or storm.alarms <= seconds:  # none may have come on a busy machine
        number += 1
        storm.one_round(b"%d" % number)
    storm.over.set()
    consumer.join(HANGS_S)
    assert not consumer.is_alive(), "the consumer hangs"
    open_items, waiting = queue._reading.figures().open_items, len(queue)
    assert open_items == 0, f"{open_items} open reads that nobody has"
    if settings.get("journal", True):
        queue.close()
        queue = PersistentQueue(folder, "work", QueueConfig(**settings))
        queue.setup()
    left = [item.data for item in queue.remove_all(1 << 30)]
    queue.close()
    assert waiting == len(left), f"len() said {waiting}, {len(left)} were there"
    seen = [*storm.taken, *left]
    assert len(seen) == len(set(seen)), f"{len(seen) - len(set(seen))} items came twice"
    assert set(seen) <= storm.added | storm.unsure, "an item that nobody has added"
    lost = storm.added - set(seen)
    assert len(lost) <= storm.alarms, f"{len(lost)} items lost where {storm.alarms} operations were cut short"
    return f"alarms={storm.alarms} added={len(storm.added)} cut short={len(storm.unsure)} seen={len(seen)}\n"


def value(text: str) -> int | bool:
    return text == "True" if text in ("True", "False") else int(text)


if __name__ == "__main__":
    path, duration, name, *pairs = sys.argv[1:]
    watchdog = threading.Timer(float(duration) + HANGS_S, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()
    parsed = {key: value(text) for key, text in (pair.split("=") for pair in pairs)}
    sys.stdout.write(run(path, float(duration), RAISED[name], parsed))
