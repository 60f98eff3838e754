"""Checks of figures that the server reports: version, queues, clock, settings, cache, jobs, cluster, admin port."""

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kestrelctl.doctor.results import CheckResult, critical, fine, graded, unknown, warning
from kestrelctl.journals.spools import on_disk
from kestrelctl.journals.times import written_span
from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.remote.admin import AdminConnection
from kestrelctl.remote.checking import cluster_findings
from kestrelctl.remote.stopped import JOBS_REMEDY, repair_command
from kestrelctl.shell.exit_codes import Failure
from kestrelctl.shell.output import counted
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock, parse_blocks
from kestreld.config.config import Address, Config
from kestreld.config.settings import queue_setting_lines

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient

SKEW_S: Final = (2, 60)
JOBS_PERCENT: Final = (75, 95)
SHOWN_MAX: Final = 3
ADMIN_TIMEOUT_S: Final = 5


def ask(client: "KestrelClient", config: Config | None) -> Iterator[CheckResult]:
    """All checks that share one connection. Raises Failure if the server does not answer."""
    figures = client.server_stats()
    now_s = time.time()
    version, uptime_s = figures.get("version", "of no known version"), figures.get("uptime", 0)
    yield fine("server", f"kestreld {version} answers, up for {written_span(int(uptime_s) * 1000)}")
    yield from _queues(client.all_queue_stats())
    yield _clock(figures.get("time"), now_s)
    yield from _cache(figures, config)
    yield from _jobs(figures, config)
    yield from cluster(figures)
    if config is not None:
        yield drift(config, parse_blocks(client.dump_config(origins=True)))


def _queues(blocks: Sequence[QueueBlock]) -> Iterator[CheckResult]:
    stopped = [str(block["queue"]) for block in blocks if block.get("stopped") == 1]
    failed = [str(block["queue"]) for block in blocks if block.get("journal_failed") == 1]
    if stopped:
        words = f"stopped because of a corrupt journal: {_some(stopped)}"
        yield critical("queues", words, repair_command(stopped[0]))
    if failed:
        words = f"journal writes are failing for: {_some(failed)}"
        yield critical("queues", words, "free disk space, then run kestrelctl reload; the server's log has details")
    if not stopped and not failed:
        yield fine("queues", f"{counted(len(blocks), 'queue')}, none is stopped")


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _clock(server_s: object, now_s: float) -> CheckResult:
    if not isinstance(server_s, int):
        return unknown("clock", "the server does not report its time")
    skew_s = max(abs(now_s - server_s - 0.5) - 0.5, 0)
    words = f"the server's clock is {skew_s:.0f} s from the one here"
    return graded("clock", skew_s, SKEW_S, words, "synchronise both machines' clocks (chrony, systemd-timesyncd)")


def _cache(figures: Mapping[str, int | str], config: Config | None) -> Iterator[CheckResult]:
    """Check the cache; no result if there is none and none is configured."""
    limit_bytes, held_bytes = figures.get("cache_limit_bytes"), figures.get("cache_bytes")
    if limit_bytes is None:
        if config is not None and config.cache is not None:
            yield warning("cache", "listen.cache is set, but the server has no cache", "restart the server")
        return
    words = f"{figures.get('cache_items')} values use {held_bytes} of {limit_bytes} bytes"
    if config is not None and config.cache_memory_bytes != limit_bytes:
        words = f"cache_memory is {limit_bytes}, the file says {config.cache_memory_bytes}"
        yield warning("cache", words, f"run kestrelctl reload to apply {config.source}")
    else:
        yield fine("cache", words)


def _jobs(figures: Mapping[str, int | str], config: Config | None) -> Iterator[CheckResult]:
    """Check the jobs; no result if the server has none and none are configured."""
    limit_bytes, level = figures.get("jobs_memory_limit_bytes"), int(figures.get("jobs_memory_level", 0))
    if limit_bytes is None:
        if config is not None and config.disque is not None:
            yield warning("jobs", "listen.disque is set, but the server has no jobs", "restart the server")
        return
    words = f"{figures['jobs_registered']} jobs use {figures['jobs_memory_bytes']} of {limit_bytes} bytes"
    if figures.get("jobs_stopped"):
        yield critical("jobs", "stopped because of a corrupt log", JOBS_REMEDY)
    elif figures["jobs_log_failed"]:
        yield critical("jobs", "their log cannot be written", "free disk space; the server's log has details")
    elif level:
        advice = "start more workers, delete jobs, or raise maxmemory: above 75 % ADDJOB is refused"
        yield graded("jobs", level, JOBS_PERCENT, f"{words}: more than {level} %", advice)
    else:
        yield fine("jobs", words)


def cluster(figures: Mapping[str, int | str]) -> Iterator[CheckResult]:
    """Check the cluster; no result for a node on its own."""
    size = int(figures.get("jobs_cluster_size", 1))
    found = cluster_findings(figures)
    advice = "run kestrelctl cluster status to check all nodes and list the failing ones"
    for state, words in found:
        yield CheckResult("cluster", state, words, advice)
    if size > 1 and not found:
        leaving = "; this one is leaving" if figures.get("jobs_cluster_leaving") else ""
        yield fine("cluster", f"{size} nodes, all of which answer{leaving}")


def drift(config: Config, blocks: Sequence[QueueBlock]) -> CheckResult:
    """Check that the queue settings in the file are in force."""
    differing = []
    for block in blocks:
        name = str(block["queue"])
        for setting, value in queue_setting_lines(config.for_queue(on_disk(name))):
            is_declared = str(block.get(f"{setting}_from", "")).startswith("declared by ")
            if setting in block and str(block[setting]) != value and not is_declared:
                differing.append(f"{name} {setting} is {block[setting]}, the file says {value}")
    if differing:
        return warning("config", _some(differing), f"run kestrelctl reload to apply {config.source}")
    return fine("config", f"the queue settings of {config.source} are in force")


def admin(configured: Address | None, address: str | None, login: Login) -> CheckResult:
    """Check that the admin port answers /readyz. `address`: from the server's lock file, None = not known."""
    if configured is None and address is None:
        return fine("admin port", "off")
    if configured is None:
        advice = "restart the server if that is intended"
        return warning("admin port", f"{address} is open, but the configuration has none", advice)
    if address is None and configured.port == 0 and not configured.path:
        return unknown("admin port", "the server chose the port, and it cannot be determined")
    address = address or str(configured)
    try:
        status, text = _get(address, "/readyz", login)
    except (OSError, http.client.HTTPException, Failure) as error:
        advice = "is the port used by another program? see the server's log; choose another in listen.admin"
        return critical("admin port", f"{address} does not answer: {error}", advice)
    if status == http.client.OK:
        return fine("admin port", f"{address} answers: {text}")
    advice = "see the server's log or kestrelctl check for the journal"
    return critical("admin port", f"{address} answers {status}: {text}", advice)


def _get(address: str, path: str, login: Login) -> tuple[int, str]:
    """Status and text of a page of the admin port. Raises OSError, HTTPException, Failure."""
    at = parse_address(address)
    context = tls_context(login) if at.tls else None
    connection = AdminConnection(at.host or "localhost", at.port, at.path, ADMIN_TIMEOUT_S, context, Login())
    try:
        answer, content = connection.ask("GET", path)
        return answer.status, content[:1000].decode("utf-8", "replace").strip()
    finally:
        connection.close()
