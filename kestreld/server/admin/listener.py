"""The HTTP listener of the admin port: connections, logins, routes, /healthz and /readyz (docs/admin.md).

Only modules of this package use aiohttp, and a server without the listener loads none of them. Connections are
accepted in a turn, as those of the data ports, and then belong to asyncio.
"""

import asyncio
import base64
import binascii
import ipaddress
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kestreld import __version__, net
from kestreld.config.config import Config
from kestreld.errors import BadQueueName, JournalCorrupt, JournalFailed, QueueNotMade
from kestreld.machine import OwnProcess
from kestreld.net import ListeningSocket
from kestreld.queues.figures import server_figures
from kestreld.server.accounts import Account
from kestreld.server.admin.answers import Refused, Share, as_text, in_slices, number_in, refusal, sees_jobs, stream
from kestreld.server.admin.metrics import CONTENT_TYPE, process_part, render
from kestreld.server.admin.ranges import WAIT_MS_MAX, Ranges
from kestreld.server.admin.readers import Readers
from kestreld.server.admin.rows import COLUMNS, Row, RowBook
from kestreld.server.cpu_worker import origin_of
from kestreld.server.listener import BoundListener
from kestreld.tls import names_in

if TYPE_CHECKING:
    from kestreld.server.disque.figures import JobFigures
    from kestreld.server.service import Service

CONNECTIONS_MAX: Final = 80
REQUESTS_SHARE: Final = 80  # percent of the connections: requests at a time, besides those for everybody
LINE_BYTES_MAX: Final = 8190
WRONG_PASSWORD_DELAY_S: Final = 1.0
ROWS_A_PIECE: Final = 100
JOB_QUEUES_MAX: Final = 1000  # in /stats.json: those with the most jobs; /jobs/queues has them all
GOODBYE_S: Final = 1.0
# Health checks need not log in; their answer is yes or no.
_FOR_EVERYBODY: Final = frozenset({"/healthz", "/readyz"})
_LOCAL_NAMES: Final = frozenset({"localhost", ""})


class _Complaints(logging.Handler):
    """Logs errors of aiohttp among the server's own lines."""

    def __init__(self, listener: "AdminListener") -> None:
        super().__init__(logging.ERROR)
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            return  # not HTTP: answered, and no fault of the server
        self._listener.complain(f"{record.getMessage()}" + (f": {error!r}" if error is not None else ""))


class AdminListener(BoundListener):
    """The admin port and its connections."""

    def __init__(
        self,
        service: "Service",
        bound: ListeningSocket,
        *,
        is_tls: bool,
        is_trusted: bool,
        job_figures: "JobFigures | None" = None,
    ) -> None:
        super().__init__(bound, service.turn, is_tls=is_tls)
        self.service = service
        self._job_figures = job_figures  # None = the server has no jobs
        self.collection = service.collection
        self.clock = service.clock
        self.is_tls = is_tls
        self.is_trusted = is_trusted
        self.share = Share(service.slices, service.clock)
        self.book = RowBook(service.collection)
        self._boot = service.clock.wall_ms
        self._process = OwnProcess(service.collection.files)
        self._looking = asyncio.Lock()
        self.ranges = Ranges(service, self.share, self.complain)
        self.readers = Readers(service, self.share, self.ranges)
        self._connecting: dict[asyncio.Task[None], tuple[int, Any]] = {}  # start in ms, and the connection
        self._active_at_ms: dict[asyncio.BaseTransport, int] = {}  # time of the connection or the last answer
        self._known: set[asyncio.BaseTransport] = set()  # those that have been answered
        self._busy: set[asyncio.BaseTransport] = set()
        logger = logging.Logger("kestreld.admin")
        logger.addHandler(_Complaints(self))
        self._http = web.Server(
            self.answer,
            loop=service.loop,
            handler_cancellation=True,
            access_log=None,
            logger=logger,
            keepalive_timeout=75.0,
            lingering_time=2.0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        service.listeners.append(self)
        service.stats.admin_address = self.address

    # Connections

    def receive(self, connection: Any) -> None:
        if self.connections() >= self._connections_max():
            self._forget_those_gone()
        if self.connections() >= self._connections_max():
            self._make_room()
        task = self.service.loop.create_task(self._connect(connection))
        self._connecting[task] = self.clock.monotonic_ms, connection
        task.add_done_callback(lambda task: self._connecting.pop(task, None))

    def connections(self) -> int:
        return len(self._active_at_ms) + len(self._connecting)

    def _connections_max(self) -> int:
        return min(CONNECTIONS_MAX, self.service.descriptors.admin_max)

    def _make_room(self) -> None:
        """Close a connection that has no request in progress: there are more than there may be requests.

        Of connections without a request so far the oldest goes first, so that a client that sends one at once is
        served; those with unread input, which may be a request, go last.
        """
        room = self._connections_max()
        self.complain(f"connection limit of {room} reached: closing the connection idle longest")
        idle: list[tuple[bool, int, int, asyncio.BaseTransport | asyncio.Task[None]]] = [
            (one in self._known, at_ms, one.get_extra_info("socket").fileno(), one)
            for one, at_ms in self._active_at_ms.items()
            if one not in self._busy
        ]
        idle += [(False, at_ms, connection.fileno(), task) for task, (at_ms, connection) in self._connecting.items()]
        unread = net.with_input([fd for _, _, fd, _ in idle])
        oldest = min(idle, key=lambda one: (one[2] in unread, one[0], one[1]), default=(False, 0, 0, None))[3]
        if isinstance(oldest, asyncio.Task):
            del self._connecting[oldest]
            oldest.cancel()
        elif oldest is not None:
            self._let_go(oldest)

    def _let_go(self, transport: asyncio.BaseTransport) -> None:
        self._forget(transport)
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def _forget_those_gone(self) -> None:
        """Forget connections that are closed: counted, they would displace those that have just come."""
        for transport in [one for one in self._active_at_ms if one.is_closing()]:
            self._forget(transport)

    def _forget(self, transport: asyncio.BaseTransport) -> None:
        del self._active_at_ms[transport]
        self._known.discard(transport)

    async def _connect(self, connection: Any) -> None:
        context = self.service.admission.context if self.is_tls else None
        timeout_s = self._patience_s() if context is not None else None
        try:
            transport, _ = await self.service.loop.connect_accepted_socket(
                self._http, connection, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # it has gone already, or cannot agree on TLS
            connection.close()
            return
        # In the same step: a connection that is counted twice would displace others.
        if (task := asyncio.current_task()) is not None:
            self._connecting.pop(task, None)
        self._active_at_ms[transport] = self.clock.monotonic_ms

    def resume(self) -> None:
        """Listen again, and close connections that are gone or idle; called once a second."""
        super().resume()
        self._forget_those_gone()
        patience_ms = self.collection.config.request_timeout_ms
        for transport, active_at_ms in list(self._active_at_ms.items()):
            if transport not in self._busy and self.clock.monotonic_ms - active_at_ms >= patience_ms:
                self._let_go(transport)

    def close(self) -> None:
        """Accept no more connections, and end all waits."""
        super().close()
        self.ranges.end_waits()

    async def finish(self) -> None:
        """Finish the answers in progress, within GOODBYE_S."""
        for task in list(self._connecting):
            task.cancel()
        await self._http.shutdown(GOODBYE_S)

    def _log(self, reason: str) -> None:
        self.service.report(f"{self.address}: {reason}")

    def complain(self, reason: str) -> None:
        self.service.admission.complain(self._log, reason)

    def _patience_s(self) -> float:
        return self.collection.config.request_timeout_ms / 1000

    # Requests

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request; an error becomes its response."""
        self.clock.read()
        transport = request.transport
        if transport is None or transport.is_closing():  # it would take the place of a request that gets an answer
            return Refused(503, "connection closed").answer()
        self._busy.add(transport)
        try:
            return await self._answer(request)
        except Refused as problem:
            return problem.answer()
        except (JournalFailed, JournalCorrupt) as problem:
            return refusal(problem).answer()
        except BadQueueName as problem:
            return Refused(400, str(problem)).answer()
        except QueueNotMade as problem:
            return Refused(409, str(problem)).answer()
        except TimeoutError:
            transport.abort()  # part of the answer may have left
            return Refused(503, "request timed out").answer()
        finally:
            self._busy.discard(transport)
            if transport in self._active_at_ms:
                self._active_at_ms[transport] = self.clock.monotonic_ms
                self._known.add(transport)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._check_where_from(request)
        if request.content_length or request.headers.get("Transfer-Encoding"):
            raise Refused(413, "requests must not have a body")
        path = request.rel_url.raw_path
        if path in _FOR_EVERYBODY:
            _only(request, "GET", "HEAD")
            return as_text("ok") if path == "/healthz" else self._readiness()
        if len(self._busy) * 100 > self._connections_max() * REQUESTS_SHARE:
            raise Refused(503, "too many requests")
        account = await self._login(request)
        if self.collection.stopping:
            raise Refused(503, "shutting down")
        wait_ms = number_in(request, "wait_ms", 0, WAIT_MS_MAX, 0)
        async with asyncio.timeout(self._patience_s() + wait_ms / 1000):
            if path == "/metrics":
                _only(request, "GET", "HEAD")
                return await self._metrics(request, account)
            if path == "/stats.json":
                _only(request, "GET", "HEAD")
                return await self._stats(request, account)
            parts = [unquote_to_bytes(part).decode("latin-1") for part in path.split("/")[1:]]
            if parts[0] == "queues":
                return await self.readers.answer(request, parts[1:], account)
            if parts[0] == "jobs":
                return await self._jobs(request, parts[1:], account)
        raise Refused(404, "not found: use /healthz, /readyz, /metrics, /stats.json, /queues or /jobs")

    def _check_where_from(self, request: web.BaseRequest) -> None:
        """Refuse requests of web pages in a browser: of other origins, or to host names that are not the server's."""
        host = request.headers.get("Host", "")
        if not self._is_trusted_name(host):
            raise Refused(403, "Host header is not a name of this server; see listen.admin_hosts")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"{'https' if self.is_tls else 'http'}://{host.lower()}":
            raise Refused(403, "requests from pages of other origins are refused")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused(403, "requests from pages of other origins are refused")

    def _is_trusted_name(self, host: str) -> bool:
        config: Config = self.collection.config
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        own = config.admin.host.lower() if config.admin is not None else ""
        if name in _LOCAL_NAMES or name == own or name in config.admin_hosts:
            return True
        try:
            ipaddress.ip_address(name)  # not a name that others can make resolve to this machine
        except ValueError:
            return False
        return True

    async def _login(self, request: web.BaseRequest) -> Account | None:
        """Return the account of a request; None = it may do everything. Raises Refused."""
        admission, stats = self.service.admission, self.service.stats
        if self.is_trusted or not admission.accounts:
            return None
        if self.is_tls and request.transport is not None:
            account = admission.accounts.of_certificate(names_in(request.transport.get_extra_info("peercert")))
            if account is not None:
                return account
        name, password = _basic(request.headers.get("Authorization", ""))
        stats.logins += 1
        account = admission.accounts.recognise(name, password)
        if account is not None:
            return account
        compare, conclude = admission.accounts.compare(name, password)
        compared: asyncio.Future[bool] = self.service.loop.create_future()

        def tell(fits: bool) -> None:
            if not compared.done():
                compared.set_result(fits)

        if not self.service.cpu_worker.run(origin_of(request.remote or ""), compare, tell):
            raise Refused(503, "too many logins")
        account = conclude(await compared)
        if account is None:
            stats.failed_logins += 1
            self.complain(f"wrong password from {request.remote or 'an unknown address'} for {name!r}")
            await asyncio.sleep(WRONG_PASSWORD_DELAY_S)
            raise Refused(401, "wrong user or password")
        return account

    # Health

    def _readiness(self) -> web.Response:
        """Report readiness: jobs, the disk and a shutdown are checked; queues are recovered before this listens."""
        if self.collection.stopping:
            return as_text("shutting down", 503)
        if self._job_figures is not None and self._job_figures.is_loading:
            return as_text("reading jobs", 503)
        families = self.collection.families.values()
        failed = sum(queue.journal is not None and queue.journal.failed is not None for queue in families)
        if failed:
            return as_text(f"journal writes are failing for {failed} queue{'' if failed == 1 else 's'}", 503)
        return as_text("ready")

    # Figures

    async def _metrics(self, request: web.BaseRequest, account: Account | None) -> web.StreamResponse:
        per_queue = self.collection.config.metrics_per_queue
        async with self._looking:
            await self._look()
        sees = None if account is None else account.sees
        pieces = render(self.book, self.collection, self.service.stats, per_queue, sees)
        if self._job_figures is not None:
            from kestreld.server.admin.job_metrics import render_jobs

            pieces = chain(pieces, render_jobs(self._job_figures, per_queue, sees_jobs(account)))
        network = self.service.network
        own = process_part(self._process.use(), network.open_descriptors(), network.descriptor_limit())
        return await stream(request, chain([own], pieces), CONTENT_TYPE, self.share)

    async def _look(self) -> None:
        await in_slices(self.book.look(), self.share)
        if self._job_figures is not None:
            await in_slices(self._job_figures.adding_up(), self.share)

    async def _jobs(self, request: web.BaseRequest, parts: list[str], account: Account | None) -> web.StreamResponse:
        if self._job_figures is None:
            raise Refused(404, "there are no jobs: listen.disque is not set")
        # Not loaded by servers without jobs.
        from kestreld.server.admin.jobs import JobPages

        return await JobPages(self._job_figures, self.share).answer(request, parts, account)

    async def _stats(self, request: web.BaseRequest, account: Account | None) -> web.StreamResponse:
        # After a reload, by which an account may see more than before, everything is sent once.
        view = f"{self._boot}.{self.service.admission.accounts.revision}"
        view_before, _, number = request.rel_url.query.get("changed_since", "").partition("-")
        since = int(number) if view_before == view and number.isdecimal() and len(number) < 16 else 0
        job_rows: list[Row] = []
        async with self._looking:
            await self._look()
            if (jobs := self._job_figures) is not None:
                *_, some = await in_slices(jobs.largest(JOB_QUEUES_MAX, sees_jobs(account)), self.share)
                job_rows = some or []
            found = await in_slices(
                self.book.changed_since(since, None if account is None else account.sees), self.share
            )
            rows, gone, is_full = next(one for one in found if one is not None)
            self.clock.read()
            head = {
                "kestreld": __version__,
                "at": f"{view}-{self.book.look_number}",
                "now_ms": self.clock.wall_ms,
                "is_full": is_full,
                "server": dict(server_figures(self.collection, self.service.stats, self.book.sums)),
                "columns": COLUMNS,
                "gone": gone,
            }
        lists: dict[str, Sequence[tuple[Any, ...]]] = {"rows": rows}
        if jobs is not None:
            head |= {"job_columns": jobs.COLUMNS, "job_node_columns": jobs.NODE_COLUMNS}
            lists |= {"job_rows": job_rows, "job_nodes": jobs.nodes()}
        return await stream(request, _stats_pieces(head, lists), "application/json", self.share)


def _stats_pieces(head: dict[str, Any], lists: Mapping[str, Sequence[tuple[Any, ...]]]) -> Iterator[str]:
    yield json.dumps(head, separators=(",", ":"))[:-1]
    for name, rows in lists.items():
        yield f',"{name}":['
        for start in range(0, len(rows), ROWS_A_PIECE):
            piece = json.dumps(rows[start : start + ROWS_A_PIECE], separators=(",", ":"))[1:-1]
            yield piece if start == 0 else f",{piece}"
        yield "]"
    yield "}\n"


def _only(request: web.BaseRequest, *methods: str) -> None:
    if request.method not in methods:
        raise Refused(405, f"method {request.method} not allowed: use {' or '.join(methods)}")


def _basic(header: str) -> tuple[bytes, bytes]:
    """Return user and password. Raises Refused."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
            if colon:
                return name, password
    raise Refused(401, "authentication required: use HTTP Basic")
