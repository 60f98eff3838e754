"""CLUSTER, of a node that knows no other."""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from kestreld.jobs.job_id import NODE_ID_BYTES
from kestreld.queues.slices import WAITS, Work
from kestreld.server.disque import replies
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import OK, SYNTAX_ERROR, bulk
from kestreld.server.disque.server_commands import flush


def cluster(handler: DisqueHandler, words: list[bytes]) -> None:
    word, count = words[1].lower(), len(words)
    one = _OF_CLUSTER.get(word)
    if one is None or not one[0] <= count <= one[1]:
        handler.out.append(b"-ERR Wrong CLUSTER subcommand or number of arguments\r\n")
    else:
        one[2](handler, words)


def _meet(handler: DisqueHandler, words: list[bytes]) -> None:
    host, port = words[2], integer(words[3])
    if port is None:
        handler.out.append(replies.error(b"ERR Invalid TCP port specified: " + words[3]))
    elif not 0 < port <= 55_535 or not _is_ip_address(host):
        handler.out.append(replies.error(b"ERR Invalid node address specified: %b:%b" % (host, words[3])))
    else:
        handler.out.append(b"-ERR this node stands alone: it does not join clusters\r\n")


def _is_ip_address(host: bytes) -> bool:
    """Whether it is one of IPv4 or IPv6, in numbers."""
    try:
        ip_address(host.decode("ascii", "replace"))
    except ValueError:
        return False
    return True


def _nodes(handler: DisqueHandler, words: list[bytes]) -> None:
    node = handler.node
    flags = b"myself,leaving" if node.is_leaving else b"myself"
    handler.out.append(bulk(b"%b :%d %b 0 0 connected\n" % (handler.jobs.node_id, node.port, flags)))


def _my_id(handler: DisqueHandler, words: list[bytes]) -> None:
    handler.out.append(bulk(handler.jobs.node_id))


def _cluster_info(handler: DisqueHandler, words: list[bytes]) -> None:
    figures = [
        ("cluster_state", "ok"),
        ("cluster_known_nodes", 1),
        ("cluster_reachable_nodes", 0),
        ("cluster_size", 1),
        ("cluster_stats_messages_sent", 0),
        ("cluster_stats_messages_received", 0),
    ]
    handler.out.append(bulk("".join([f"{key}:{value}\r\n" for key, value in figures]).encode()))


def _forget(handler: DisqueHandler, words: list[bytes]) -> None:
    node_id = words[2]
    if len(node_id) != NODE_ID_BYTES:
        handler.out.append(b"-ERR Invalid node identifier\r\n")
    elif node_id == handler.jobs.node_id:
        handler.out.append(b"-ERR I tried hard but I can't forget myself...\r\n")
    else:
        handler.out.append(replies.error(b"ERR Unknown node " + node_id))


def _reset(handler: DisqueHandler, words: list[bytes]) -> None:
    kind = words[2].lower() if len(words) == 3 else b"soft"
    if kind not in (b"soft", b"hard"):
        handler.out.append(SYNTAX_ERROR)
        return
    refusal = handler.node.persistence.refusal
    if kind == b"soft" or refusal:
        flush(handler)
    else:
        handler.carry_out(_reset_hard(handler), is_short=False)


def _reset_hard(handler: DisqueHandler) -> Work:
    outcome: list[str] = []
    handler.node.take_new_id(outcome.append)
    while not outcome:
        yield WAITS
    if outcome[0]:
        problem = f"ERR the new node id could not be recorded, nothing is reset: {outcome[0]}"
        handler.out.append(replies.error(problem.encode("utf-8", "replace")))
    else:
        flush(handler)


def _leaving(handler: DisqueHandler, words: list[bytes]) -> None:
    node = handler.node
    word = words[2].lower() if len(words) == 3 else b""
    if len(words) == 2:
        handler.out.append(b"+yes\r\n" if node.is_leaving else b"+no\r\n")
    elif word not in (b"yes", b"no"):
        handler.out.append(b"-ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'\r\n")
    else:
        handler.out.append(OK)
        node.set_leaving(leaving=word == b"yes")


def _save(handler: DisqueHandler, words: list[bytes]) -> None:
    handler.out.append(OK)


# Subcommand -> how many words it has at least and at most, and what executes it.
_OF_CLUSTER: Final[dict[bytes, tuple[int, int, Callable[[DisqueHandler, list[bytes]], None]]]] = {
    b"meet": (4, 4, _meet),
    b"nodes": (2, 2, _nodes),
    b"myid": (2, 2, _my_id),
    b"info": (2, 2, _cluster_info),
    b"forget": (3, 3, _forget),
    b"reset": (2, 3, _reset),
    b"leaving": (2, 3, _leaving),
    b"saveconfig": (2, 2, _save),
}
