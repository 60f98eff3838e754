"""`kestrelctl cluster meet, forget, leaving`: add nodes to a cluster and remove them."""

from collections.abc import Callable
from enum import StrEnum
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Final

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import Answer, RemoteJobs, YesOption, duration_ms
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, counted, remark, say
from kestrelctl.shell.progress import progress
from kestreld.client import job_commands as commands
from kestreld.client.blocks import text
from kestreld.client.job_commands import JobCommand
from kestreld.client.resp import RespValue

if TYPE_CHECKING:
    from kestrelctl.remote.job_cluster import JobCluster, Member, NodeView
    from kestrelctl.remote.jobs import JobsClient

ROUND_S: Final = 0.1


class Leaving(StrEnum):
    YES = "yes"
    NO = "no"
    STATE = "state"


# Meeting


def cluster_meet(
    addresses: Annotated[
        list[str],
        argument(metavar="HOST:PORT...", help="Nodes to be added: where their clients connect.", show_default=False),
    ],
    remote: RemoteJobs,
    wait: Annotated[
        str, option("--wait", metavar="SPAN", help="Wait up to this long for all nodes to agree; 0: do not wait.")
    ] = "30s",
) -> None:
    """Add nodes to the cluster of a node, and wait until all nodes know and reach each other.

    The node connects to them by the host names and addresses given, at the bus ports that they tell, else 10000 above
    the ports of clients. Nodes that are of one cluster already stay together: the two clusters become one.

    Exit 124 when --wait is over, and not all nodes know each other; it says why. 69 when a node that is to be added
    cannot be reached from here, and nothing was done.
    """
    from kestrelctl.remote.agreeing import until_agreed

    nodes, wait_ms = remote.cluster(), duration_ms(wait)
    known = nodes.look()
    first = known.nodes[0]
    found = [_to_be_met(nodes, first, address) for address in addresses]
    for view, words in found:
        nodes.tell(["CLUSTER", "MEET", *words])
        remark(f"{first.place} meets {view.place}")
    # The first tells the others, except nodes that have forgotten the node within the last minute.
    new = frozenset([view.id for view, _ in found])
    nodes.ask_each([one.address for one in known.nodes[1:] if one.id not in new], lambda client: _meet(client, found))
    if wait_ms:
        until_agreed(nodes, [view.address for view, _ in found], new, wait_ms)


def _meet(client: "JobsClient", found: "list[tuple[NodeView, list[str | int]]]") -> None:
    for _, words in found:
        client.ask(commands.done(["CLUSTER", "MEET", *words]))


def _to_be_met(nodes: "JobCluster", first: "NodeView", address: str) -> tuple["NodeView", list[str | int]]:
    """The view of the node at `address`, and the arguments of CLUSTER MEET for it: host, port, bus port."""
    from kestrelctl.remote.access import parse_address
    from kestrelctl.remote.job_cluster import BUS_PORT_OFFSET, view_of
    from kestreld.client.job_connection import JOBS_PORT_DEFAULT

    place = parse_address(address, JOBS_PORT_DEFAULT)
    if place.path:
        raise BadValue(f"{address}: other nodes cannot connect to a unix socket: give HOST:PORT")
    view = nodes.ask(view_of, nodes.way(address))
    if view.id == first.id:
        raise Failure(ExitCode.USAGE, f"{address} is the node itself, at {first.place}: name another one with -s")
    for one in (first, view):
        if one.info.get("cluster_enabled") == "0":
            raise Failure(ExitCode.REFUSED, f"{one.place} cannot be in a cluster: its cluster.port is null")
    return view, [place.host, place.port, view.number("cluster_bus_port") or place.port + BUS_PORT_OFFSET]


# Forgetting


def cluster_forget(
    words: Annotated[
        str,
        argument(
            metavar="ID|HOST:PORT", help="The node: its id, a prefix of the id, or its address.", show_default=False
        ),
    ],
    remote: RemoteJobs,
    yes: YesOption = False,
) -> None:
    """Remove a node from the cluster: every node that can be reached is told to forget it.

    Jobs that only this node holds are lost to the others: have it leave first, see kestrelctl cluster leaving. A node
    that could not be told brings it back when it returns: run this again then. All have to be told within a minute.

    Exit 66 when no node knows it, 69 when some could not be told.
    """
    from kestrelctl.remote.agreeing import save

    nodes = remote.cluster()
    view = nodes.look()
    member = view.find(words)
    shown = f"{member.address or 'unknown address'} ({member.id})"
    left = _jobs_left(view.view(member.id))
    confirm(f"remove node {shown}{left} from all others?", yes=yes)
    told, failures = 0, dict(view.failures)
    addresses = [one.address for one in view.nodes if one.id != member.id and member.id in one.members]
    for address, answer in nodes.ask_each(addresses, _forgetting(member)).items():
        if isinstance(answer, Failure):
            failures[address] = answer
        else:
            told += 1
    save(nodes, view)
    failures.pop(nodes.way_to(member), None)
    for failure in failures.values():
        say(f"not removed from: {failure.words}")
    remark(f"{counted(told, 'node')} {'has' if told == 1 else 'have'} forgotten {shown}")
    if view.view(member.id) is not None:
        remark(f"it still runs: stop it, or have it forget the others with CLUSTER RESET at {member.address}")
    if failures:
        raise Failure(ExitCode.UNREACHABLE, "")


def _forgetting(member: "Member") -> "Callable[[JobsClient], None]":
    return lambda client: client.ask(commands.done(["CLUSTER", "FORGET", member.id]))


def _jobs_left(view: "NodeView | None") -> str:
    jobs = view.number("registered_jobs") if view is not None else None
    return f", which holds {counted(jobs, 'job')}," if jobs else ""


# Leaving


def cluster_leaving(
    answer: Answer,
    remote: RemoteJobs,
    what: Annotated[
        Leaving,
        argument(
            metavar="[yes|no|state]",
            help="yes: take no more jobs; no: stay; state: only print the state.",
            show_default=False,
        ),
    ] = Leaving.STATE,
    hand_over: Annotated[
        bool, option("--hand-over", help="Move its jobs to the other nodes instead of waiting for workers.")
    ] = False,
    wait: Annotated[
        int | None,
        option("--wait", metavar="SPAN", parser=duration_ms, help="Wait up to this long until it has no jobs left."),
    ] = None,
) -> None:
    """Have a node leave the cluster, or stay, and print its state.

    A node that is leaving takes no copies, and sends clients elsewhere. The others fetch its jobs for their workers;
    when it has no jobs left it can be stopped, and forgotten. With --hand-over it moves its jobs, whether or not there
    are workers. It is leaving after a restart, too.

    The state is yes or no.

    Exit 124 when --wait is over, and it still has jobs.
    """
    if what is not Leaving.YES and (hand_over or wait is not None):
        raise Failure(ExitCode.USAGE, "--hand-over and --wait require yes")
    client = remote.client()
    if what is not Leaving.STATE:
        client.ask(commands.done(["CLUSTER", "LEAVING", what.value, *(["HANDOVER"] if hand_over else [])]))
    if wait is not None:
        _until_empty(remote, wait, hand_over=hand_over)
    state = client.ask_on_any(JobCommand([b"CLUSTER", b"LEAVING"], _words))
    answer.write({"state": state, "node": client.address})


def _words(value: RespValue) -> str:
    if not isinstance(value, bytes):
        raise ValueError
    return text(value)


def _until_empty(remote: RemoteJobs, wait_ms: int, *, hand_over: bool) -> None:
    from kestrelctl.remote.job_cluster import view_of

    nodes = remote.cluster()
    until_s = monotonic() + wait_ms / 1000
    before = left = nodes.ask(view_of).number("registered_jobs") or 0
    with progress("handing over" if hand_over else "leaving", lambda: before) as advance:
        while left:
            if monotonic() >= until_s:
                raise Failure(
                    ExitCode.WAIT_EXPIRED, f"{nodes.address} still has {counted(left, 'job')}", is_quiet=False
                )
            sleep(ROUND_S)
            now = nodes.ask(view_of).number("registered_jobs") or 0
            advance(left - now)
            left = now
    remark(f"{nodes.address} has no jobs left: stop it, and run kestrelctl cluster forget on another node")
