"""kestreld's main: the one place that wires everything together, and the meaning of its exit codes."""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import uvloop

from kestreld import __version__
from kestreld.clock import Clock
from kestreld.config import Address, Config, find_config_path, load_file
from kestreld.errors import ConfigError, SpoolLocked, SpoolUnusable
from kestreld.files import FileLayer
from kestreld.net import ListeningSocket, Network
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.background import LoopFiles
from kestreld.server.service import Service

LOCK = ".lock"


class ExitCode(IntEnum):
    """What kestreld's exit status means."""

    OK = 0
    USAGE = 2
    CANNOT_LISTEN = 69
    SPOOL_UNUSABLE = 73
    SPOOL_LOCKED = 75
    BAD_CONFIG = 78
    INTERNAL = 70
    KILLED_AT_ONCE = 130


EXIT_HELP = """exit codes:
  0    stopped as asked (SIGTERM, SIGINT, the shutdown command)
  2    wrong arguments
  69   an address cannot be listened on
  70   a mistake in kestreld itself: it stops rather than go on with a state it cannot vouch for
  73   the spool cannot be read or written
  75   another kestreld holds the spool
  78   the configuration has mistakes
  130  told twice to stop: left at once, without finishing replies
"""


def log(message: str) -> None:
    """One line an event, on stderr; whatever would break the line is escaped."""
    clean = message if message.isprintable() else message.encode("unicode_escape").decode("ascii")
    with contextlib.suppress(OSError):  # whoever read it has gone; the server has not
        sys.stderr.write(f"kestreld: {clean}\n")
        sys.stderr.flush()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kestreld",
        description="A durable queue server that speaks Kestrel's memcache protocol.",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="configuration; see docs and packaging/kestreld.yaml")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one setting; repeatable",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="report every mistake in the configuration and exit"
    )
    parser.add_argument("--version", action="version", version=f"kestreld {__version__}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; returns its exit code."""
    options = parse_arguments(arguments)
    files = FileLayer()
    try:
        path = find_config_path(files, options.config, os.environ)
        config = load_file(files, path, options.overrides)
    except ConfigError as error:
        for problem in error.problems:
            log(str(problem))
        return ExitCode.BAD_CONFIG
    if options.check_config:
        sys.stdout.write(f"{config.source}: ok\n")
        return ExitCode.OK
    try:
        lock = take_lock(files, config.queue_path)
        try:
            return serve(config, path, options.overrides, lock)
        finally:
            files.close(lock)
    except SpoolLocked as error:
        log(str(error))
        return ExitCode.SPOOL_LOCKED
    except SpoolUnusable as error:
        log(str(error))
        return ExitCode.SPOOL_UNUSABLE


def take_lock(files: FileLayer, spool: str) -> int:
    """Hold the spool for this process. Raises SpoolLocked, naming the holder, or SpoolUnusable."""
    path = f"{spool}/{LOCK}"
    try:
        files.make_dir(spool)
        lock = files.lock(path)
        if lock is None:
            holder = files.read_file(path).decode("utf-8", "replace").split("\n")[0] or "another process"
            raise SpoolLocked(spool, holder)
        files.replace_content(lock, f"pid {os.getpid()}\n".encode())
        files.list_dir(spool)
    except OSError as error:
        raise SpoolUnusable(spool, f"cannot be used as spool: {error.strerror}") from error
    return lock


def serve(config: Config, path: str | None, overrides: Sequence[str], lock: int) -> int:
    """Recover the queues, listen, and run until told to stop."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(give_up)
    clock, network = Clock(), Network()
    files = LoopFiles(loop)
    commit = GroupCommit(clock, files)
    collection = QueueCollection(files, clock, config, commit, log)
    started_us = clock.stopwatch_us()
    try:
        collection.recover()
    except OSError as error:
        raise SpoolUnusable(config.queue_path, f"cannot be read: {error}") from error
    recovered_ms = (clock.stopwatch_us() - started_us) // 1000
    service = Service(loop, network, clock, collection, lambda: load_file(files, path, overrides), log)
    try:
        addresses = [str(service.listen(bind(network, address)).address) for address in config.memcache]
    except OSError as error:
        log(f"cannot listen: {error.strerror or error}: {error.filename or ', '.join(map(str, config.memcache))}")
        return ExitCode.CANNOT_LISTEN
    files.replace_content(lock, f"pid {os.getpid()}, memcache={','.join(addresses)}\n".encode())
    # What has been loaded so far stays: leave it out of every later collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    def begin() -> None:
        catch_signals(loop, service)
        log(
            f"ready {__version__} memcache={','.join(addresses)} spool={config.queue_path}"
            f" queues={len(collection.readers)} recovered_ms={recovered_ms} config={config.source!r} pid={os.getpid()}"
        )

    loop.call_soon(begin)  # not earlier: a signal that comes between its handler and the loop is never handled
    try:
        loop.run_until_complete(service.stopped)
    finally:
        service.close()
        files.stop()
        collection.close()
        loop.close()
    log("stopped")
    return ExitCode.OK


def give_up(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A turn or timer failed in a way nobody planned for: what is in memory may be wrong, the journals are not."""
    log(f"internal error: {context.get('message')}: {context.get('exception')!r}")
    error = context.get("exception")
    if isinstance(error, BaseException):
        traceback.print_exception(error)
    os._exit(ExitCode.INTERNAL)


def bind(network: Network, address: Address) -> ListeningSocket:
    if address.path:
        Path(address.path).parent.mkdir(parents=True, exist_ok=True)
        return network.listen_unix(address.path)
    return network.listen_tcp(address.host, address.port)


def catch_signals(loop: asyncio.AbstractEventLoop, service: Service) -> None:
    """TERM and INT stop gracefully, a second one at once; HUP reloads."""
    told = [0]

    def stop() -> None:
        told[0] += 1
        if told[0] > 1:
            os._exit(ExitCode.KILLED_AT_ONCE)
        service.shutdown()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, service.reload_on_signal)
    with contextlib.suppress(AttributeError):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file size limit is an error to answer, not a death


if __name__ == "__main__":
    sys.exit(main())
