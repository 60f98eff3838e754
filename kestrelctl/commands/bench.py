"""`kestrelctl bench`: the load tests, each a command of its own.

Options are named as in Kestrel's and libkestrel's tools where kestrelctl leaves the letter free: -s is the server and
-h the help in all its commands.
"""

import os
from typing import Annotated, Final

from kestrelctl.commands import bench_options as shared
from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import ServerOption, duration_ms, span_ms

KILOBYTE: Final = 1024


def flood(
    conditions: shared.BenchOptions,
    items: shared.FloodItemsOption = None,
    run_ms: shared.FloodTimeOption = None,
    kilobytes: shared.KilobytesOption = 1,
    size: shared.BytesOption = None,
    queue: shared.QueueOption = "spam",
    prefill: Annotated[
        int, option("--prefill", "-P", min=0, metavar="ITEMS", help="Keep this many items waiting in the queue.")
    ] = 0,
    producers: Annotated[
        int, option("--producers", "-R", "--writers", "-w", min=1, metavar="CLIENTS", help="Number of producers.")
    ] = 1,
    consumers: Annotated[
        int, option("--consumers", "-C", "--readers", min=1, metavar="CLIENTS", help="Number of consumers.")
    ] = 1,
    rollup: shared.RollupOption = 1,
    blocking: Annotated[bool, option("--blocking", "-B", help="Gets wait for an item: --poll 0.")] = False,
    poll: Annotated[int, option(min=0, max=100, metavar="PERCENT", help="Share of gets that do not wait.")] = 100,
    target: shared.TargetOption = None,
    transactions: shared.TransactionsOption = False,
    monitor: shared.MonitorOption = False,
    rate: shared.RateOption = 0,
    validate: Annotated[
        bool, option("--validate", "-V", help="Always on; accepted for compatibility.", hidden=True)
    ] = True,
    server: ServerOption = "",
) -> None:
    """Benchmark puts and gets on one queue at full speed."""
    from kestrelctl.bench.load_tests import Flood

    if items is not None and run_ms is not None:
        raise BadValue("-n and -t are mutually exclusive")
    test = Flood(
        queue=os.fsencode(queue),
        items=(shared.FLOOD_ITEMS_DEFAULT if items is None else items) if run_ms is None else None,
        run_ms=run_ms,
        item_bytes=kilobytes * KILOBYTE if size is None else size,
        prefill=prefill,
        producers=producers,
        consumers=consumers,
        rollup=rollup,
        poll_percent=0 if blocking else poll,
        target=shared.TARGET_DEFAULT if target is None and run_ms is not None else target,
        transactions=transactions,
        monitor=monitor,
        rate=rate,
    )
    conditions.conduct(test, server)


def _server_or_sleep(values: list[str]) -> tuple[str, int | None]:
    """Split the values of -s: Kestrel's many-clients uses -s for the pause, and a span cannot be a server."""
    server, sleep_ms = "", None
    for word in values:
        try:
            sleep_ms = duration_ms(word)
        except BadValue:
            server = word
    return server, sleep_ms


def many_clients(
    conditions: shared.BenchOptions,
    server_or_sleep: Annotated[
        list[str] | None,
        option(
            "--server",
            "-s",
            metavar="HOST:PORT|unix:PATH|SPAN",
            help="The server; a span such as 100ms means --sleep, as in Kestrel.",
            show_default=False,
        ),
    ] = None,
    sleep: Annotated[int, option(metavar="SPAN", parser=duration_ms, help="Pause between two puts.")] = "100ms",  # type: ignore[assignment]
    items: Annotated[int, option("--items", "-n", min=0, metavar="ITEMS", help="In all.")] = 100,
    size: Annotated[int, option("--bytes", "-b", min=0, metavar="BYTES", help="Size of an item.")] = 1024,
    queue: shared.QueueOption = "spam",
    clients: Annotated[
        int,
        option("--clients", "-c", min=1, metavar="CLIENTS", help="Number of clients that wait for each item."),
    ] = 100,
    kill: Annotated[
        int,
        option(
            "--kill", "-k", min=0, max=99, metavar="PERCENT", help="Share of clients that disconnect before the reply."
        ),
    ] = 0,
    transactions: shared.TransactionsOption = False,
    monitor: shared.MonitorOption = False,
) -> None:
    """Benchmark many waiting clients on a slowly filled queue.

    Without -x or -M an item sent to a killed client is lost, and does not count against the server.
    """
    from kestrelctl.bench.load_tests import ManyClients

    server, pause_ms = _server_or_sleep(server_or_sleep or [])
    test = ManyClients(
        queue=os.fsencode(queue),
        items=items,
        item_bytes=size,
        sleep_ms=sleep if pause_ms is None else pause_ms,
        clients=clients,
        kill_percent=kill,
        transactions=transactions,
        monitor=monitor,
    )
    conditions.conduct(test, server)


def put_many(
    conditions: shared.BenchOptions,
    clients: Annotated[
        int, option("--clients", "-c", "--threads", "-t", min=1, metavar="CLIENTS", help="Number of producers.")
    ] = 100,
    items: Annotated[int, option("--items", "-n", min=0, metavar="ITEMS", help="In all.")] = 10_000,
    size: Annotated[int, option("--bytes", "-b", min=0, metavar="BYTES", help="Size of an item.")] = 1024,
    rollup: shared.RollupOption = 1,
    queue: Annotated[
        str, option("--queue", "-q", metavar="PREFIX", help="The queue, or the prefix of the queues' names.")
    ] = "spam",
    queues: Annotated[int, option("--queues", "-Q", min=1, metavar="QUEUES", help="Number of queues.")] = 1,
    cycles: Annotated[int, option("--cycles", "-C", min=1, metavar="N", help="Number of cycles.")] = 1,
    get: Annotated[bool, option("--get", "-g", help="Measure the gets afterwards, too.")] = False,
    limit: shared.LimitOption = None,
    rate: shared.RateOption = 0,
    server: ServerOption = "",
) -> None:
    """Benchmark many concurrent producers. The items are taken and checked afterwards."""
    from kestrelctl.bench.load_tests import PutMany

    test = PutMany(
        prefix=os.fsencode(queue),
        queue_count=queues,
        clients=clients,
        items=items,
        item_bytes=size,
        rollup=rollup,
        cycles=cycles,
        get=get,
        limit=limit,
        rate=rate,
    )
    conditions.conduct(test, server)


def packing(
    conditions: shared.BenchOptions,
    queue: shared.QueueOption = "spam",
    items: Annotated[int, option("--items", "-n", min=0, metavar="ITEMS", help="Items per cycle.")] = 25_000,
    kilobytes: shared.KilobytesOption = 1,
    size: shared.BytesOption = None,
    pause: Annotated[
        int, option("--pause", "-t", metavar="SPAN", parser=duration_ms, help="Pause between two cycles.")
    ] = "1s",  # type: ignore[assignment]
    cycles: Annotated[int, option("--cycles", "-c", min=1, metavar="N", help="Number of cycles.")] = 100,
    transactions: shared.TransactionsOption = False,
    monitor: shared.MonitorOption = False,
    server: ServerOption = "",
) -> None:
    """Benchmark a queue with a permanent backlog: journal rotation and packing."""
    from kestrelctl.bench.load_tests import Packing

    test = Packing(
        queue=os.fsencode(queue),
        items=items,
        item_bytes=kilobytes * KILOBYTE if size is None else size,
        pause_ms=pause,
        cycles=cycles,
        transactions=transactions,
        monitor=monitor,
    )
    conditions.conduct(test, server)


def timeout_test(
    conditions: shared.BenchOptions,
    writers: Annotated[int, option("--writers", "-w", min=1, metavar="CLIENTS", help="Number of producers.")] = 1,
    readers: Annotated[int, option("--readers", "-r", min=1, metavar="CLIENTS", help="Number of consumers.")] = 100,
    delay: Annotated[
        int,
        option("--delay", "-d", metavar="SPAN", parser=span_ms, help="Pause between two puts of one producer."),
    ] = "10ms",  # type: ignore[assignment]
    low: Annotated[int, option("--low", "-L", metavar="SPAN", parser=span_ms, help="Shortest wait of a get.")] = "5ms",  # type: ignore[assignment]
    high: Annotated[
        int, option("--high", "-H", metavar="SPAN", parser=span_ms, help="Longest wait of a get.")
    ] = "15ms",  # type: ignore[assignment]
    run_ms: Annotated[int, option("--time", "-t", metavar="SPAN", parser=span_ms, help="How long to put.")] = "10s",  # type: ignore[assignment]
    size: Annotated[int, option("--bytes", "-b", min=0, metavar="BYTES", help="Size of an item.")] = 0,
    queue: shared.QueueOption = "spam",
    server: ServerOption = "",
) -> None:
    """Benchmark time-outs: many readers wait a short, random time for items that come slowly."""
    from kestrelctl.bench.load_tests import Timeout

    if low > high:
        raise BadValue(f"--low {low}ms is more than --high {high}ms")
    test = Timeout(
        queue=os.fsencode(queue),
        run_ms=run_ms,
        item_bytes=size,
        writers=writers,
        readers=readers,
        delay_ms=delay,
        low_ms=low,
        high_ms=high,
    )
    conditions.conduct(test, server)


def fanout(
    conditions: shared.BenchOptions,
    children: Annotated[int, option("--children", "-c", min=1, metavar="QUEUES", help="Number of child queues.")] = 4,
    items: Annotated[int, option("--items", "-n", min=0, metavar="ITEMS", help="In all.")] = 10_000,
    kilobytes: shared.KilobytesOption = 1,
    size: shared.BytesOption = None,
    queue: shared.QueueOption = "spam",
    producers: Annotated[int, option("--producers", "-R", min=1, metavar="CLIENTS", help="Number of producers.")] = 1,
    consumers: Annotated[
        int, option("--consumers", "-C", min=1, metavar="CLIENTS", help="Number of consumers of each queue.")
    ] = 1,
    rollup: shared.RollupOption = 1,
    transactions: shared.TransactionsOption = False,
    rate: shared.RateOption = 0,
    server: ServerOption = "",
) -> None:
    """Benchmark fan-out: put into a queue and take every item from it and from each of its children."""
    from kestrelctl.bench.load_tests import Fanout

    test = Fanout(
        queue=os.fsencode(queue),
        children=children,
        items=items,
        item_bytes=kilobytes * KILOBYTE if size is None else size,
        producers=producers,
        consumers=consumers,
        rollup=rollup,
        transactions=transactions,
        rate=rate,
    )
    conditions.conduct(test, server)
