"""`kestrelctl cluster start`: run a trial cluster on this machine."""

import os
import shutil
import tempfile
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Final

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.shell.endings import at_end
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import say, show, write_data
from kestrelctl.shell.signals import signals_held

if TYPE_CHECKING:
    from kestrelctl.remote.started_nodes import StartedNode

NODES_MAX: Final = 32
ANSWER_MS: Final = 5_000
AGREE_MS: Final = 30_000


def cluster_start(
    number: Annotated[int, argument(metavar="N", min=1, max=NODES_MAX, help="How many nodes.", show_default=False)] = 3,
    folder: Annotated[
        str,
        option(
            "--dir",
            metavar="DIR",
            help="Keep their data in folders of DIR (default: a temporary one, deleted at the end).",
        ),
    ] = "",
    port: Annotated[
        int | None,
        option(
            "--port",
            metavar="PORT",
            min=1,
            help="Port of the first node, the others have the next (default: free ones).",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option("--set", metavar="KEY=VALUE", help="A setting of kestreld for all nodes; may be repeated."),
    ] = None,
) -> None:
    """Start nodes on this machine for a trial, have them meet, print their addresses, and run until Ctrl-C.

    N is 3 unless it is given. They listen on 127.0.0.1 only, keep their jobs on disk, and notice within 2 seconds that
    another does not answer. Their logs go to standard error. A node that ends is not started again: how to do that is
    printed. With the same DIR a later start goes on with the same nodes and jobs.
    """
    from kestrelctl.remote.started_nodes import BUS_PORT_OFFSET, PORT_MAX, StartedNode, stop_all

    if port is not None and port + number - 1 + BUS_PORT_OFFSET > PORT_MAX:
        raise BadValue(f"--port {port}: the ports of the bus, {BUS_PORT_OFFSET} above, would be beyond {PORT_MAX}")
    place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kestrel-cluster-"))
    if not folder:
        at_end.callback(shutil.rmtree, place, ignore_errors=True)
    defaults = ["jobs.journal=true", "cluster.node_timeout=2s", *(settings or ())]
    nodes = [
        StartedNode(f"node{one}", place / f"node{one}", port + one - 1 if port else None, defaults, show)
        for one in range(1, number + 1)
    ]
    ended = SimpleQueue[StartedNode]()
    at_end.callback(stop_all, nodes)
    for node in nodes:
        try:
            node.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Failure(ExitCode.CANNOT_CREATE, f"{node.folder}: {(error.strerror or str(error)).lower()}") from error
        with signals_held():
            node.start(ended)
    for node in nodes:
        node.wait_until_ready()
    _meet(nodes)
    write_data(_introduction(nodes, place, is_kept=bool(folder)).encode("utf-8", "surrogateescape"))
    left = len(nodes)
    while left:
        node = ended.get()
        left -= 1
        say(f"{node.name} {node.how_it_ended}; start it again with:\n  {node.shell_line}")
    raise Failure(ExitCode.UNREACHABLE, "all nodes have ended")


def _meet(nodes: "list[StartedNode]") -> None:
    from kestrelctl.remote.access import login_of
    from kestrelctl.remote.agreeing import tell_once_loaded, until_agreed
    from kestrelctl.remote.job_cluster import JobCluster

    first, *others = nodes
    cluster = JobCluster(first.places["disque"], ANSWER_MS, login_of())
    for node in others:
        host, _, port = node.places["disque"].rpartition(":")
        order = ["CLUSTER", "MEET", host, port, node.places["cluster"].rpartition(":")[2]]
        tell_once_loaded(cluster, order, AGREE_MS)
    until_agreed(cluster, [node.places["disque"] for node in others], frozenset(), AGREE_MS)


def _introduction(nodes: "list[StartedNode]", folder: Path, *, is_kept: bool) -> str:
    first = nodes[0].places
    lines = [
        f"{node.name}: jobs at {node.places['disque']}, queues at {node.places['memcache']}, "
        f"http://{node.places['admin']}, pid {node.pid}"
        for node in nodes
    ]
    host, _, port = first["disque"].rpartition(":")
    servers = " ".join(node.places["memcache"] for node in nodes)
    lines += [
        "",
        f"export KESTRELCTL_JOBS={first['disque']}",
        "kestrelctl cluster status",
        "kestrelctl jobs add mail hello",
        f"redis-cli -h {host} -p {port} CLUSTER NODES",
        f"kestrelctl context add trial {servers} --jobs {first['disque']}; kestrelctl -c trial top",
        "",
        f"data in {os.path.abspath(folder)}" + ("" if is_kept else ", which is deleted at the end"),
        "Ctrl-C stops all nodes",
    ]
    return "\n".join(lines) + "\n"
