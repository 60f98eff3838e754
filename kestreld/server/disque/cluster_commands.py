"""CLUSTER, and HELLO, which lists the nodes for clients."""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.nodes import BUS_PORT_OFFSET, NODE_ID_BYTES, PORT_MAX, Flag, Node
from kestreld.queues.slices import WAITS, Work
from kestreld.server.bus.host_names import numeric
from kestreld.server.disque import replies
from kestreld.server.disque.cluster_figures import cluster_figures
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.persistence import Done
from kestreld.server.disque.replies import OK, SYNTAX_ERROR, bulk
from kestreld.server.disque.server_commands import flush


def cluster(handler: DisqueHandler, words: list[bytes]) -> None:
    word, count = words[1].lower(), len(words)
    one = _OF_CLUSTER.get(word)
    if one is None or not one[0] <= count <= one[1]:
        handler.out.append(b"-ERR Wrong CLUSTER subcommand or number of arguments\r\n")
    else:
        one[2](handler, words)


def hello(handler: DisqueHandler, words: list[bytes]) -> None:
    table = handler.node.cluster.table
    nodes = [
        replies.array(map(bulk, (node.id, _host(node), b"%d" % _port(node), b"%d" % node.priority))) for node in table
    ]
    handler.out.append(replies.array([replies.integer(1), bulk(table.myself.id), *nodes]))


def _host(node: Node) -> bytes:
    return b"" if node.flags & Flag.NO_ADDRESS else node.address.host.encode()


def _port(node: Node) -> int:
    return 0 if node.flags & Flag.NO_ADDRESS else node.address.port


# Meeting and forgetting


def _meet(handler: DisqueHandler, words: list[bytes]) -> None:
    ports = [integer(word) for word in words[3:]]
    if None in ports:
        handler.out.append(replies.error(b"ERR Invalid TCP port specified: " + words[3 + ports.index(None)]))
        return
    port = ports[0] or 0
    bus_port = (ports[1] if len(ports) == 2 else port + BUS_PORT_OFFSET) or 0
    host, cluster = words[2].decode("utf-8", "replace"), handler.node.cluster
    is_possible = 0 < port <= PORT_MAX and 0 < bus_port <= PORT_MAX and host.isascii()
    if not is_possible or (cluster.bus is None and not numeric(host)):
        handler.out.append(_invalid_address(words))
    elif cluster.bus is None:
        reason = cluster.why_alone.encode("utf-8", "replace")
        handler.out.append(replies.error(b"ERR this node stands alone: " + reason))
    else:
        handler.begin_slices()

        def found(is_found: bool) -> None:
            handler.finish_slices(OK if is_found else _invalid_address(words))
            handler.state.collection.commit.wake()  # a resolver calls outside of turns

        cluster.meet(host, port, bus_port, found)


def _invalid_address(words: list[bytes]) -> bytes:
    return replies.error(b"ERR Invalid node address specified: " + b":".join(words[2:]))


def _forget(handler: DisqueHandler, words: list[bytes]) -> None:
    node_id, known = words[2], handler.node.cluster
    node = known.table.get(node_id)
    if len(node_id) != NODE_ID_BYTES:
        handler.out.append(b"-ERR Invalid node identifier\r\n")
    elif node is None:
        handler.out.append(replies.error(b"ERR Unknown node " + node_id))
    elif node is known.table.myself:
        handler.out.append(b"-ERR I tried hard but I can't forget myself...\r\n")
    else:
        known.forget(node)
        handler.out.append(OK)


def _reset(handler: DisqueHandler, words: list[bytes]) -> None:
    kind = words[2].lower() if len(words) == 3 else b"soft"
    node = handler.node
    if kind not in (b"soft", b"hard"):
        handler.out.append(SYNTAX_ERROR)
    elif node.persistence.refusal or (kind == b"soft" and len(node.cluster.table) == 1):
        flush(handler)
    else:
        handler.carry_out(_reset_nodes(handler, is_hard=kind == b"hard"), is_short=False)


def _reset_nodes(handler: DisqueHandler, *, is_hard: bool) -> Work:
    """Forget other nodes and all jobs, for `is_hard` under a new id, once that is recorded on disk."""
    node = handler.node
    outcome: list[str] = []
    if is_hard:
        node.take_new_id(outcome.append)
    else:
        node.cluster.forget_all(outcome.append)
    while not outcome:
        yield WAITS
    if outcome[0]:
        what = "the new node id" if is_hard else "that the node knows no other"
        problem = f"ERR {what} could not be recorded, nothing is reset: {outcome[0]}"
        handler.out.append(replies.error(problem.encode("utf-8", "replace")))
        return
    flush(handler)


# Information


def _nodes(handler: DisqueHandler, words: list[bytes]) -> None:
    node = handler.node
    table, clock = node.cluster.table, node.clock
    lines = [_line(one, one is table.myself, clock.wall_ms - clock.monotonic_ms) for one in table]
    handler.out.append(bulk(b"".join(lines)))


def _line(node: Node, is_myself: bool, drift_ms: int) -> bytes:
    """Format a line of CLUSTER NODES; `drift_ms` added to a monotonic time gives ms since 1970."""
    sent_at_ms, received_at_ms = (at_ms and at_ms + drift_ms for at_ms in (node.ping_at_ms, node.pong_at_ms))
    state = b"connected" if is_myself or node.is_linked else b"disconnected"
    fields = (node.id, _host(node), _port(node), node.flag_words(), sent_at_ms, received_at_ms, state)
    return b"%b %b:%d %b %d %d %b\n" % fields


def _my_id(handler: DisqueHandler, words: list[bytes]) -> None:
    handler.out.append(bulk(handler.jobs.node_id))


def _info(handler: DisqueHandler, words: list[bytes]) -> None:
    lines = [f"{key}:{value}\r\n" for key, value in cluster_figures(handler.node)]
    handler.out.append(bulk("".join(lines).encode()))


def _leaving(handler: DisqueHandler, words: list[bytes]) -> None:
    node = handler.node
    word = words[2].lower() if len(words) > 2 else b""
    hands_over = len(words) == 4 and word == b"yes" and words[3].lower() == b"handover"
    if len(words) == 2:
        handler.out.append(b"+yes\r\n" if node.is_leaving else b"+no\r\n")
    elif word not in (b"yes", b"no") or (len(words) == 4 and not hands_over):
        handler.out.append(b"-ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'\r\n")
    else:
        handler.out.append(OK)
        node.set_leaving(leaving=word == b"yes", hands_over=hands_over)


def _save(handler: DisqueHandler, words: list[bytes]) -> None:
    def begin(done: Done) -> None:
        def saved(problem: str) -> None:
            done(problem)
            handler.state.collection.commit.wake()  # a thread of the disk calls outside of turns

        handler.node.cluster.save(saved)

    handler.until_done(begin)


# Subcommand -> least and greatest number of words, and the function that executes it.
_OF_CLUSTER: Final[dict[bytes, tuple[int, int, Callable[[DisqueHandler, list[bytes]], None]]]] = {
    b"meet": (4, 5, _meet),
    b"nodes": (2, 2, _nodes),
    b"myid": (2, 2, _my_id),
    b"info": (2, 2, _info),
    b"forget": (3, 3, _forget),
    b"reset": (2, 3, _reset),
    b"leaving": (2, 4, _leaving),
    b"saveconfig": (2, 2, _save),
}
