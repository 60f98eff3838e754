"""main() of kestreld: command line, start and stop of the server, wiring of its parts, exit codes."""

import argparse
import asyncio
import contextlib
import errno
import getpass
import logging
import os
import pwd
import signal
import ssl
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kestreld import __version__, garbage
from kestreld.clock import Clock
from kestreld.config.config import Config, LogFormat
from kestreld.disk_threads import ThreadedFiles
from kestreld.errors import ConfigError, SpoolLocked, SpoolUnusable
from kestreld.files import FileLayer
from kestreld.listening import Ports, ProcessOfJobs
from kestreld.log import FromLibraries, Level, Log
from kestreld.machine import cpu_s, memory_bytes
from kestreld.net import Network
from kestreld.passwords import PASSWORD_BYTES_MAX, SALT_BYTES, hash_password
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.loop import TurnLoop
from kestreld.server.service import Service
from kestreld.spool_lock import check_spool, take_lock
from kestreld.systemd import Notifier, is_journal, passed_sockets
from kestreld.tls import server_context

if TYPE_CHECKING:
    from kestreld.server.disque.conf_file import DisqueConf

STDERR = 2
INFLIGHT_BYTES = 1024**3
JOBS_UNREADABLE = 1  # disque-server's exit code, as Disque's


class ExitCode(IntEnum):
    """Exit status of kestreld."""

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
  69   cannot listen on an address
  70   internal error: kestreld stops rather than continue in an inconsistent state
  73   the spool cannot be read or written
  75   another kestreld holds the spool
  78   invalid configuration
  130  stopped immediately by a second SIGINT or SIGTERM, without finishing replies
"""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kestreld",
        description="A durable queue server that speaks Kestrel's memcache protocol.\n\n"
        "`kestreld hash-password` reads a password and prints its hash for the configuration.",
        epilog=EXIT_HELP,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=30),
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file; see docs and packaging/kestreld.yaml")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one setting; repeatable",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="check the configuration, report every error and exit"
    )
    parser.add_argument(
        "--dump-config",
        action="store_true",
        help="print every setting in force and where it comes from, as a configuration file, and exit",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="accept connections from other machines without authentication (as --set insecure=true)",
    )
    parser.add_argument(
        "--log-format",
        metavar="text|json",
        choices=[form.value for form in LogFormat],
        help="log format (as --set log.format=json)",
    )
    build = "pure Python" if isinstance(GroupCommit.__init__, FunctionType) else "compiled"
    parser.add_argument("--version", action="version", version=f"kestreld {__version__} ({build})")
    options = parser.parse_args(arguments)
    if options.insecure:
        options.overrides.append("insecure=true")
    if options.log_format is not None:
        options.overrides.append(f"log.format={options.log_format}")
    return options


def stderr_log(form: LogFormat = LogFormat.TEXT, *, is_timed: bool = False) -> Log:
    """Return the log on stderr; `is_timed` adds the time to each line, for a server but not for a command."""
    return Log(form, is_journal=is_journal(os.environ, STDERR), is_timed=is_timed)


def print_hash() -> int:
    """Run `kestreld hash-password`: print the hash of a password from the terminal or a line of standard input."""
    complain = stderr_log().of("daemon", Level.ERROR)
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ").encode()
        if getpass.getpass("Repeat password: ").encode() != password:
            complain("passwords do not match")
            return ExitCode.USAGE
    else:
        password = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 2).rstrip(b"\r\n")
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        complain(f"password must have 1 to {PASSWORD_BYTES_MAX} bytes")
        return ExitCode.USAGE
    sys.stdout.write(f"{hash_password(password, os.urandom(SALT_BYTES))}\n")
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; returns its exit code."""
    if list(sys.argv[1:] if arguments is None else arguments) == ["hash-password"]:
        return print_hash()
    # disque-server reads no YAML.
    from kestreld.config.config_file import find_config_path, load_file

    options = parse_arguments(arguments)
    complain = stderr_log(LogFormat(options.log_format or "text")).of("daemon", Level.ERROR)
    files = FileLayer()
    os.umask(0o077)
    try:
        path = find_config_path(files, options.config, os.environ)
        config = load_file(files, path, options.overrides)
        context = server_context(config, files)
        if not (options.check_config or options.dump_config):
            become(config)
    except ConfigError as error:
        for problem in error.problems:
            complain(str(problem))
        return ExitCode.BAD_CONFIG
    if options.check_config:
        sys.stdout.write(f"{config.source}: ok\n")
        return ExitCode.OK
    if options.dump_config:
        # Not loaded by a server.
        from kestreld.config.config_dump import comment, dump_config

        sys.stdout.write(f"{comment(chosen_file(config, options.config))}\n{dump_config(config)}")
        return ExitCode.OK
    log = stderr_log(config.log_format, is_timed=True)
    return run(config, lambda: load_file(files, path, options.overrides), context, log, complain)


def run(
    config: Config,
    load_config: Callable[[], Config],
    context: ssl.SSLContext | None,
    log: Log,
    complain: Callable[[str], None],
    conf: "DisqueConf | None" = None,
) -> int:
    """Serve the spool until told to stop; returns the exit code.

    `complain` is called with the reason if the server cannot start. `conf` is a disque.conf: with one, the server has
    nothing but jobs, and exits if they cannot be read.
    """
    files = FileLayer()
    try:
        check_spool(files, config.queue_path)
        lock = take_lock(files, config.queue_path)
        try:
            return serve(config, load_config, lock, context, log, conf)
        finally:
            files.close(lock)
    except SpoolLocked as error:
        complain(str(error))
        return ExitCode.SPOOL_LOCKED
    except SpoolUnusable as error:
        complain(str(error))
        return ExitCode.SPOOL_UNUSABLE


def chosen_file(config: Config, asked: str | None) -> str:
    """Describe the configuration file in use, and the option or variable that named it."""
    if asked is not None:
        return f"{config.source}, as --config says"
    return f"{config.source}, as $KESTRELD_CONFIG says" if os.environ.get("KESTRELD_CONFIG") else config.source


def become(config: Config) -> None:
    """Switch from root to the account `user`, after making missing folders that it will own. Raises ConfigError."""
    if config.user is None:
        return
    try:
        account = pwd.getpwnam(config.user)
    except KeyError:
        raise ConfigError([config.problem("user", f"user: no such account: {config.user!r}")]) from None
    if os.geteuid() == account.pw_uid:
        return
    if os.geteuid() != 0:
        raise ConfigError([config.problem("user", f"user: only root can switch to {config.user!r}")])
    sockets = [str(Path(address.path).parent) for address in config.addresses if address.path]
    for folder in (config.queue_path, config.archive_path, *sockets):
        if folder is not None and not os.path.exists(folder):
            os.makedirs(folder, mode=0o700)
            os.chown(folder, account.pw_uid, account.pw_gid)
    os.initgroups(config.user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def serve(
    config: Config,
    load_config: Callable[[], Config],
    lock: int,
    context: ssl.SSLContext | None,
    log: Log,
    conf: "DisqueConf | None",
) -> int:
    """Recover the queues, listen, and run until told to stop."""
    clock, network = Clock(), Network()
    loop = TurnLoop(clock)
    asyncio.set_event_loop(loop)
    note, complain = log.of("daemon", Level.INFO), log.of("daemon", Level.ERROR)
    logging.getLogger().addHandler(FromLibraries(log))
    loop.set_exception_handler(partial(give_up, log))
    files = ThreadedFiles(loop.call_soon_threadsafe)
    commit = GroupCommit(clock, files)
    collection = QueueCollection(files, clock, config, commit, log.of("queues", Level.WARNING))
    recovered_ms = recover(collection, clock, note)
    notifier = Notifier(os.environ)
    service = Service(
        loop,
        network,
        clock,
        collection,
        load_config,
        log.of("server", Level.WARNING),
        os.urandom(32),
        context,
        notifier,
        log.of("server", Level.INFO),
        inflight_bytes(memory_bytes(files)),
        garbage.collect_young,
    )
    service.stats.pid, service.stats.cpu_s = os.getpid(), cpu_s
    try:
        passed = passed_sockets(os.environ)
        if conf is not None:
            passed = [replace(one, name=f"disque {one.name}") for one in passed]
        ports = Ports(service, network, config, passed, log)
        listeners: dict[str, list[str]] = {"memcache": ports.open_queues(), "admin": [], "cache": ports.open_cache()}
        system = os.uname()
        process = ProcessOfJobs(os.getpid(), f"{system.sysname} {system.release} {system.machine}", os.urandom)
        fail = ignore if conf is None else end_unread
        listeners["disque"], listeners["cluster"] = ports.open_jobs(process, conf, fail)
        admin = ports.open_admin()
        if admin is not None:
            listeners["admin"] = [admin.address]
    except ConfigError as error:
        complain(str(error.problems[0]))
        return ExitCode.BAD_CONFIG
    except OSError as error:
        advice = "; stop what listens there, or set another address" if error.errno == errno.EADDRINUSE else ""
        complain(f"cannot listen on {error.filename}: {error.strerror}{advice}")
        return ExitCode.CANNOT_LISTEN
    where = " ".join([f"{name}={','.join(found)}" for name, found in listeners.items() if found])
    service.set_aside_descriptors()
    files.replace_content(lock, f"pid {os.getpid()}, {where}\n".encode())
    garbage.resume()

    def begin() -> None:
        catch_signals(loop, service)
        collection.serve()
        if not service.is_ready:
            note(f"reading the job log; all else is served: {where}")
        service.when_ready(tell_ready)

    def tell_ready() -> None:
        notifier.tell("READY=1")
        note(
            f"ready {__version__} {where} spool={config.queue_path}"
            f" queues={len(collection.readers)} recovered_ms={recovered_ms} config={config.source!r} pid={os.getpid()}"
        )

    loop.call_soon(begin)  # not earlier: a signal that comes between its handler and the loop is never handled
    try:
        loop.run_until_complete(service.stopped)
        if admin is not None:
            loop.run_until_complete(admin.finish())
    finally:
        close(service, files, collection, lock)
        loop.close()
    note("stopped")
    # Python would free the objects of many queues one by one, for seconds. And a thread may be in a slow system call:
    # the lock is released when the last thread ends, not before.
    os._exit(ExitCode.OK)


def close(service: Service, files: ThreadedFiles, collection: QueueCollection, lock: int) -> None:
    """Stop the disk threads and close the service and its queues, within the time limit for a stop, if there is one."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os._exit(ExitCode.KILLED_AT_ONCE))  # the loop has ended
    until_us = service.stop_by_us
    left_us = None if until_us is None else max(until_us - service.clock.stopwatch_us(), 0) // 2
    files.stop(left_us)
    service.close()
    service.close_parts(until_us)
    collection.close(lock, until_us)


def recover(collection: QueueCollection, clock: Clock, note: Callable[[str], None]) -> int:
    """Read the journals; returns the time taken, in ms. Raises SpoolUnusable."""
    started_us = clock.stopwatch_us()
    garbage.suspend()
    try:
        collection.recover(
            lambda read, found: note(f"recovering: {read} of {found} journals read"),
            lambda journals: note(f"recovering: journals={journals} are being synced before they are served"),
        )
    except OSError as error:
        raise SpoolUnusable(collection.spool, f"cannot be read: {error}") from error
    return (clock.stopwatch_us() - started_us) // 1000


def ignore(problem: str) -> None:
    """Go on after jobs could not be read, which has been logged: queues are served all the same."""


def end_unread(problem: str) -> None:
    """Exit after jobs could not be read, which has been logged: disque-server has nothing else to serve."""
    os._exit(JOBS_UNREADABLE)


def inflight_bytes(memory: int | None) -> int:
    """Return the default of `max_inflight`: a quarter of the memory, at most INFLIGHT_BYTES."""
    return INFLIGHT_BYTES if memory is None else min(INFLIGHT_BYTES, memory // 4)


def give_up(log: Log, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unexpected exception of a turn or timer, and exit: memory may be inconsistent, the journals are not.

    A failed connection of the admin port is only logged.
    """
    error = context.get("exception")
    if "protocol" in context:  # only connections of the HTTP listener have a protocol of asyncio
        log.say(Level.WARNING, "server", f"admin connection failed: {error!r}")
        return
    details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    log.say(Level.CRITICAL, "daemon", f"internal error: {context.get('message')}: {error!r}", details)
    os._exit(ExitCode.INTERNAL)


def catch_signals(loop: asyncio.AbstractEventLoop, service: Service) -> None:
    """Stop gracefully on TERM or INT, at once on a second one; reload on HUP."""
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
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond a file size limit is to fail, not to kill


if __name__ == "__main__":
    sys.exit(main())
