"""A program that uses the library as its users do: `users_program.py SPOOL`. It must pass `mypy --strict`."""

import asyncio
import queue as standard
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from kestreld.client import ClusterQueue, KestrelCluster
from kestreld.errors import InvalidArgument, KestrelError, QueueClosed
from kestreld.library import (
    Answer,
    BlockingQueue,
    ConcurrentBlockingQueue,
    FullPolicy,
    JournaledQueue,
    JournalReader,
    PersistentQueue,
    QItem,
    QueueConfig,
    ReaderFigures,
    SimpleBlockingQueue,
    Transaction,
)


@dataclass
class Order:
    number: int
    text: str

    def encode(self) -> bytes:
        return f"{self.number} {self.text}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Order":
        number, text = data.decode().split(" ", 1)
        return cls(int(number), text)


def produce(queue: BlockingQueue[Order], orders: list[Order]) -> int:
    return sum(queue.put(order) for order in orders)


def work(queue: ConcurrentBlockingQueue[Order], texts: list[str]) -> None:
    for order in queue:
        texts.append(order.text)
        queue.task_done()


def in_memory() -> list[str]:
    texts: list[str] = []
    with ConcurrentBlockingQueue[Order](max_items=10, full_policy=FullPolicy.REFUSE_PUTS) as queue:
        worker = threading.Thread(target=work, args=(queue, texts))
        worker.start()
        produce(queue, [Order(number, f"order {number}") for number in range(3)])
        queue.join(timeout=60)
    worker.join()
    plain: SimpleBlockingQueue[Order] = SimpleBlockingQueue()
    plain.put_head(Order(4, "first"))
    found: Order = plain.get_nowait()
    answer: Answer[Order | None] = plain.get(timeout=0)
    assert answer.result() is None
    return [*texts, found.text]


def durable(spool: Path) -> list[bytes]:
    seen: list[bytes] = []
    with PersistentQueue(str(spool), "work", QueueConfig(max_items=100)) as queue:
        queue.put_nowait(b"one")
        queue.add_all([b"two", b"three"])
        with queue.read(timeout=1.5) as item:
            seen.append(b"" if item is None else item.data)
        for one in queue:
            seen.append(one.data)
            if queue.empty():
                queue.close()
    try:
        queue.put_nowait(b"late")
    except (standard.Full, QueueClosed) as refused:
        seen.append(type(refused).__name__.encode())
    return seen


def give_up(reader: JournalReader, item: QItem) -> bool:
    return item.error_count > len(reader)


async def consume(reader: JournalReader) -> list[bytes]:
    found: list[bytes] = []
    async for item in reader:
        found.append(item.data)
        if reader.empty():
            break
    return found


def with_readers(spool: Path) -> tuple[list[bytes], int, str]:
    with JournaledQueue(str(spool), "orders") as queue:
        audit = queue.reader("audit", QueueConfig(max_age_ms=86_400_000), error_handler=give_up)
        queue.put_all([b"1", b"2"])
        found = asyncio.run(consume(audit))
        figures: ReaderFigures = audit.figures
    with JournaledQueue(str(spool), "mails") as mails:
        typed = mails.to_transactional_blocking_queue(Order.encode, Order.decode)
        typed.put(Order(1, "hello"))
        transaction: Transaction[Order] | None = typed.poll()
        assert transaction is not None
        with transaction as order:
            text: str = order.text
    return found, figures.hits, text


def remote(cluster: KestrelCluster) -> ClusterQueue:
    return cluster.queue("jobs")


def main(spool: Path) -> None:
    print(in_memory())
    print(durable(spool))
    print(with_readers(spool))
    try:
        QueueConfig(max_items=0)
    except InvalidArgument as problem:
        print(problem.argument, isinstance(problem, (KestrelError, ValueError)))
    with KestrelCluster(["127.0.0.1:1"], patience_ms=0) as cluster:
        print(remote(cluster).name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
