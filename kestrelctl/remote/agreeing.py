"""Waiting until nodes form one cluster: all know and reach each other."""

from time import monotonic, sleep
from typing import Final

from kestrelctl.remote.job_cluster import ClusterView, JobCluster
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark, say
from kestreld.client import job_commands as commands

ROUND_S: Final = 0.1


def tell_once_loaded(nodes: JobCluster, order: list[str], wait_ms: int) -> None:
    """Send an order to a node that may still be reading its job log, until it accepts. Raises Failure."""
    until_s = monotonic() + wait_ms / 1000
    while True:
        try:
            nodes.tell(order)
            return
        except Failure as failure:
            if failure.code != ExitCode.TRY_AGAIN or monotonic() >= until_s:
                raise
        sleep(ROUND_S)


def until_agreed(nodes: JobCluster, addresses: list[str], new: frozenset[str], wait_ms: int) -> None:
    """Wait until all nodes, those with the ids `new` included, know and reach each other. Raises Failure.

    Nodes at `addresses` must answer themselves; of the others only those that can be asked count.
    """
    until_s, reason = monotonic() + wait_ms / 1000, ""
    while disagreement := _disagreement(view := nodes.look(addresses), addresses, new):
        problem, why = disagreement
        reason = why or reason  # the reason of a failed handshake is known only while it is tried
        if monotonic() >= until_s:
            raise Failure(ExitCode.WAIT_EXPIRED, f"{problem}{reason and f': {reason}'}", is_quiet=False)
        sleep(ROUND_S)
    save(nodes, view)
    remark(f"{len(view.nodes[0].ids)} nodes know each other: {', '.join(sorted(one.place for one in view.nodes))}")


def save(nodes: JobCluster, view: ClusterView) -> None:
    """Have the nodes that could be asked save the members they know."""
    saved = nodes.ask_each(
        [one.address for one in view.nodes], lambda client: client.ask(commands.done(["CLUSTER", "SAVECONFIG"]))
    )
    for answer in saved.values():
        if isinstance(answer, Failure):
            say(f"not saved: {answer.words}")


def _disagreement(view: ClusterView, addresses: list[str], new: frozenset[str]) -> tuple[str, str] | None:
    """The obstacle to the nodes being one cluster, and its reason, "" = unknown. None = they agree."""
    for address in addresses:
        if address in view.failures:
            return view.failures[address].words, ""
    wanted = frozenset(view.members) | new
    for one in view.nodes:
        if missing := wanted - one.ids:
            other = min(missing)
            known = view.members.get(other)
            problems = [link["problem"] for link in one.links.values() if link.get("problem")]
            words = f"{one.place} does not know {known.address if known is not None else other}"
            return words, problems[0] if problems else ""
        for node_id, member in one.members.items():
            if view.view(node_id) is not None and not member.is_myself and (member.is_down or not member.is_linked):
                return f"{one.place} has no link to {member.address}", one.links.get(node_id, {}).get("problem", "")
    return None
