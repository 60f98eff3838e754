"""What the admin port makes of very many queues or clients: in steps, none of which holds up a turn."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kestreld.config.config import Config, PerQueue, QueueConfig
from kestreld.files import FileLayer
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.admin.consumers import ConsumersReport
from kestreld.server.admin.metrics import render
from kestreld.server.admin.rows import RowBook
from kestreld.stats import ServerStats
from tests.support.clock import FakeClock
from tests.support.server_here import ServerHere
from tests.support.step_times import timed_steps

QUEUES = 10_000
CLIENTS = 1500
STEP_MS_MAX = 5


@pytest.fixture(scope="module")
def collection() -> QueueCollection:
    clock, files = FakeClock(), FileLayer()
    config = Config(queue_path="/nowhere", defaults=QueueConfig(journal=False))
    made = QueueCollection(files, clock, config, GroupCommit(clock, files), print)
    for number in range(QUEUES):
        made.reader(f"queue-{number:05d}").queue.put(b"x" * (number % 7))
    made.commit.run()
    return made


@pytest.mark.exhaustive("per_queue1", "per_queue2")
@pytest.mark.parametrize("per_queue", [PerQueue(), PerQueue(most=500), PerQueue(pattern=".*7")])
def test_no_step_of_a_page_of_metrics_takes_long(collection: QueueCollection, per_queue: PerQueue) -> None:
    _, look_ms = timed_steps(lambda: RowBook(collection).look())
    book = RowBook(collection)
    list(book.look())
    pieces, longest_ms = timed_steps(lambda: render(book, collection, ServerStats(), per_queue))
    print(f"{per_queue}: {len(pieces)} steps, the longest {longest_ms:.1f} ms, {look_ms:.1f} ms of a look")
    assert max(longest_ms, look_ms) < STEP_MS_MAX
    page = "".join([piece for piece in pieces if isinstance(piece, str)])
    found = {family.name: family for family in text_string_to_metric_families(page)}
    shown = found["kestrel_queues_shown"].samples[0].value
    assert len(found["kestrel_queue_items"].samples) == shown
    assert found["kestrel_queues"].samples[0].value == QUEUES
    assert shown == {None: QUEUES, 500: 500}[per_queue.most] if per_queue.pattern is None else shown == QUEUES / 10


def test_a_look_at_queues_where_nothing_happens_makes_no_row_anew(collection: QueueCollection) -> None:
    book = RowBook(collection)
    list(book.look())
    before = dict(book.rows)
    reader = collection.reader("queue-00042")
    reader.queue.put(b"more")
    collection.commit.run()
    list(book.look())
    assert [name for name, row in book.rows.items() if row is not before[name]] == ["queue-00042"]
    *_, changed = book.changed_since(1)
    assert changed is not None
    assert [row[0] for row in changed[0]] == ["queue-00042"]


def test_no_step_of_naming_very_many_consumers_takes_long(tmp_path: Path) -> None:
    server = ServerHere(tmp_path, "listen: {admin: null}\n")
    host, port = server.address.split(":")
    reader = server.collection.reader("q")
    for _ in range(CLIENTS // 2):
        reader.queue.put(b"x")
    with ExitStack() as clients:
        for number in range(CLIENTS):
            client = clients.enter_context(socket.create_connection((host, int(port))))
            client.sendall(b"get q/t=600000/open\r\n")
            if number % 100 == 99:
                server.run_until(lambda number=number: server.connections() == number + 1)  # type: ignore[misc]
        server.run_until(lambda: len(reader.open) + reader.wait_queue.waiting == CLIENTS)
        pieces, longest_ms = timed_steps(
            lambda: ConsumersReport(server.service, 1000, with_clients=True).pieces("q", reader.queue, iter(()))
        )
    server.close()
    print(f"{len(pieces)} steps, the longest {longest_ms:.1f} ms")
    assert longest_ms < STEP_MS_MAX
    assert pieces.count(None) > CLIENTS // 64, "it gives way every few clients"
    found = json.loads("".join([piece for piece in pieces if isinstance(piece, str)]))
    assert (len(found["holding"]), len(found["waiting"])) == (CLIENTS // 2, CLIENTS // 2)
