"""Disque's protocol for listeners, and the table of its commands."""

from typing import Final

from kestreld.server.accounts import Account
from kestreld.server.disque import client_commands as clients
from kestreld.server.disque import cluster_commands as cluster
from kestreld.server.disque import id_commands as by_id
from kestreld.server.disque import job_commands as jobs
from kestreld.server.disque import queue_commands as queues
from kestreld.server.disque import server_commands as server
from kestreld.server.disque.commands import (
    ADMIN,
    DENY_OOM,
    FAST,
    LOADING,
    READ_ONLY,
    WRITE,
    Command,
    Run,
)
from kestreld.server.disque.handler import TOO_MANY_CLIENTS, DisqueHandler
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.parser import RespParser
from kestreld.server.wire_protocol import Login, WireProtocol

# Name, function that executes it, arity and flags.
COMMANDS: Final[tuple[tuple[bytes, Run, int, int], ...]] = (
    (b"addjob", jobs.addjob, -4, WRITE | DENY_OOM | FAST),
    (b"getjob", jobs.getjob, -2, WRITE | FAST),
    (b"ackjob", by_id.ackjob, -1, WRITE | FAST),
    (b"fastack", by_id.fastack, -1, WRITE | FAST),
    (b"deljob", by_id.deljob, -1, WRITE | FAST),
    (b"nack", by_id.nack, -1, WRITE | DENY_OOM | FAST),
    (b"enqueue", by_id.enqueue, -1, WRITE | DENY_OOM | FAST),
    (b"dequeue", by_id.dequeue, -1, WRITE | FAST),
    (b"working", by_id.working, 2, WRITE | FAST),
    (b"show", by_id.show, 2, READ_ONLY | FAST),
    (b"qlen", queues.qlen, 2, READ_ONLY | FAST),
    (b"qpeek", queues.qpeek, 3, READ_ONLY),
    (b"qstat", queues.qstat, 2, READ_ONLY | FAST),
    (b"qscan", queues.qscan, -1, READ_ONLY),
    (b"jscan", queues.jscan, -1, READ_ONLY),
    (b"pause", queues.pause, -3, READ_ONLY | FAST),
    (b"hello", cluster.hello, 1, READ_ONLY | FAST),
    (b"info", server.info, -1, READ_ONLY | LOADING),
    (b"ping", server.ping, -1, READ_ONLY | FAST),
    (b"auth", server.auth, -2, READ_ONLY | LOADING | FAST),
    (b"quit", server.quit_session, -1, READ_ONLY | LOADING | FAST),
    (b"time", server.time, 1, READ_ONLY | FAST),
    (b"command", server.command, 0, READ_ONLY | LOADING),
    (b"client", clients.client, -2, READ_ONLY | ADMIN),
    (b"config", server.config, -2, READ_ONLY | ADMIN | LOADING),
    (b"monitor", server.monitor, 1, READ_ONLY | ADMIN),
    (b"slowlog", server.slowlog, -2, READ_ONLY),
    (b"latency", server.latency, -2, READ_ONLY | ADMIN | LOADING),
    (b"debug", server.debug, -2, ADMIN),
    (b"shutdown", server.shutdown, -1, READ_ONLY | ADMIN | LOADING),
    (b"bgrewriteaof", server.bgrewriteaof, 1, READ_ONLY | ADMIN),
    (b"cluster", cluster.cluster, -2, READ_ONLY | ADMIN),
    (b"loadjob", server.loadjob, 2, WRITE),
    # Beyond Disque's
    (b"waitjob", by_id.waitjob, 3, READ_ONLY),
    (b"qcount", queues.qcount, 2, READ_ONLY | FAST),
    (b"qdel", queues.qdel, -2, WRITE),
    (b"deadjob", by_id.deadjob, -1, WRITE),
    (b"deadshow", by_id.deadshow, 2, READ_ONLY | FAST),
    (b"importjob", by_id.importjob, 2, WRITE | DENY_OOM | ADMIN),
    (b"redrive", queues.redrive, -2, WRITE | DENY_OOM),
)


class Disque(WireProtocol):
    """Disque's protocol. Sessions of Redis clients share one node."""

    name = "disque"
    logs_in_inside = True

    def __init__(self, node: DisqueNode) -> None:
        self._node = node
        node.know_commands([Command(*one) for one in COMMANDS])

    def open(self, account: Account | None) -> tuple[RespParser, DisqueHandler]:
        node = self._node
        parser = RespParser(is_known=account is not None or not node.password)
        handler = DisqueHandler(node, parser, account, node.new_number())
        node.add(handler)
        if len(node.clients) > node.clients_max:
            node.soon(handler.turn_away)
        return parser, handler

    def login(self) -> Login:
        return Login()  # not asked for one: AUTH is a command

    def refusal(self, reason: str) -> bytes:
        return TOO_MANY_CLIENTS
