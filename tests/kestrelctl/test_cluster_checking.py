"""What `cluster status` makes of what the nodes say: a table of what may be wrong."""

from typing import Any, Final

import pytest

from kestrelctl.remote.checking import State, cluster_findings
from kestrelctl.remote.cluster_checking import as_json, as_nagios, as_prometheus, as_text, judge, unanswered
from kestrelctl.remote.job_cluster import ClusterView, Member, NodeView
from kestrelctl.shell.exit_codes import ExitCode, Failure

IDS: Final = {name: name * 40 for name in "abc"}
WELL: Final = {"registered_jobs": "5", "acked_jobs": "1", "maxmemory_level_percent": "0", "default_copies": "3"}
LINK: Final = {"lag_usec": "800", "queued_bytes": "0"}


def place(name: str) -> str:
    return f"10.0.0.{'abc'.index(name) + 1}:7711"


def cluster(**changes: Any) -> ClusterView:
    """Three nodes that are well, but for these: `a` = INFO of a; `a_b` = what a says of b; False = it cannot be asked,
    is not known; words = it refuses.
    """
    view = ClusterView({})
    for name in IDS:
        own = changes.get(name, {})
        if own is False:
            view.add(place(name), Failure(ExitCode.UNREACHABLE, f"cannot reach {place(name)}: timed out; what to do"))
            continue
        if isinstance(own, str):
            view.add(place(name), Failure(ExitCode.IO, f"{place(name)} refused: {own}"))
            continue
        members, links = {}, {}
        for other, node_id in IDS.items():
            seen = changes.get(f"{name}_{other}", {})
            if seen is not False:
                flags = ("myself", *seen.get("flags", ())) if other == name else seen.get("flags", ("noflags",))
                members[node_id] = Member(node_id, place(other), flags, seen.get("is_linked", True))
                if other != name:
                    links[node_id] = LINK | {
                        key: value for key, value in seen.items() if key not in ("flags", "is_linked")
                    }
        view.add(place(name), NodeView(place(name), IDS[name], members, WELL | own, links))
    return view


def found(view: ClusterView) -> tuple[State, list[str]]:
    report = judge(place("a"), view)
    of_nodes = [f"{node.address[7]}: {words}" for node in report.nodes for words in node.findings]
    return report.state, report.findings + of_nodes


DOWN: Final = {"flags": ("fail",), "is_linked": False, "problem": "Connection refused"}
COPIED: Final = "two nodes have the id bbb, one at 10.0.0.2:7711, the other at 10.0.0.9:7711: ..."
MAYBE: Final = {"flags": ("fail?",), "is_linked": False}


@pytest.mark.parametrize(
    ("changes", "state", "findings"),
    [
        ({}, State.OK, []),
        ({"b": False}, State.WARNING, [f"2: cannot be asked from here: cannot reach {place('b')}: timed out"]),
        (
            {"b": False, "a_b": DOWN, "c_b": DOWN},
            State.WARNING,
            [f"2: does not answer {place('a')}, {place('c')}: Connection refused"],
        ),
        (
            {"b": False, "a_b": DOWN, "c": False, "a_c": DOWN},
            State.CRITICAL,
            [f"{number}: does not answer {place('a')}: Connection refused" for number in (2, 3)],
        ),
        ({"b": False, "a_b": MAYBE}, State.WARNING, [f"2: does not answer {place('a')}"]),
        ({"a_b": MAYBE}, State.WARNING, [f"2: answers here, but not {place('a')}"]),
        ({"c_b": False}, State.WARNING, [f"2: is not known to {place('c')}"]),
        (
            {"c_b": False, "b_c": False},
            State.WARNING,
            [f"2: does not know {place('c')}", f"3: does not know {place('b')}"],
        ),
        (
            {"a_b": {"is_linked": False, "problem": "no route"}},
            State.WARNING,
            [f"2: {place('a')} has no link to it: no route"],
        ),
        ({"a_b": {"lag_usec": "700000"}}, State.WARNING, [f"2: lags: its answer to {place('a')} took 700 ms"]),
        (
            {"a_b": {"queued_bytes": "2000000"}},
            State.WARNING,
            [f"2: does not read: 2000000 bytes wait at {place('a')} to be sent to it"],
        ),
        ({"b": {"default_copies": "2"}}, State.WARNING, ["a job without REPLICATE gets 2 copies, not 3"]),
        ({"c": {"default_copies": "1"}}, State.WARNING, ["a job without REPLICATE gets 1 copy, not 3"]),
        ({"b": {"maxmemory_level_percent": "75"}}, State.WARNING, ["2: uses more than 75 % of its maxmemory"]),
        ({"b": {"maxmemory_level_percent": "95"}}, State.CRITICAL, ["2: uses more than 95 % of its maxmemory"]),
        ({"b": {"aof_last_write_status": "err"}}, State.CRITICAL, ["2: cannot write its job log"]),
        ({"b": "LOADING Disque is loading"}, State.WARNING, ["2: is reading its job log"]),
        (
            {"b": "MISCONF The job log cannot be read: byte 7: ...; run: repair"},
            State.CRITICAL,
            ["2: serves no jobs: The job log cannot be read: byte 7: ..."],
        ),
        ({"b": {"loading": "1"}}, State.WARNING, ["2: is reading its job log"]),
        ({"b_b": {"flags": ("leaving",)}}, State.OK, []),
        (
            {f"{name}_{name}": {"flags": ("leaving",)} for name in IDS},
            State.CRITICAL,
            ["all nodes are leaving, and take no jobs"],
        ),
        (
            {"a": {"cluster_copied_spool0": COPIED}, "b": {"cluster_copied_spool0": COPIED}},
            State.CRITICAL,
            [COPIED],
        ),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_is_found(changes: dict[str, Any], state: State, findings: list[str]) -> None:
    assert found(cluster(**changes)) == (state, findings)


def test_what_is_critical_is_said_first() -> None:
    report = judge(
        place("a"), cluster(a={"default_copies": "2"}, b={"loading": "1"}, c={"aof_last_write_status": "err"})
    )
    assert report.words.startswith(f"{place('c')}: cannot write its job log; a job without REPLICATE gets 2 copies, ")
    assert as_nagios(report).startswith(f"CLUSTER CRITICAL - {place('c')}: cannot write its job log; ")
    assert as_text(report).splitlines()[1] == f"  {place('c')}: cannot write its job log"


@pytest.mark.parametrize("down", [1, 2])
def test_check_calls_nodes_that_are_down_as_bad_as_cluster_status_does(down: int) -> None:
    changes: dict[str, Any] = {}
    for name in ("b", "c")[:down]:
        changes |= {name: False, f"a_{name}": DOWN}
    state, _ = found(cluster(**changes))
    seen = cluster_findings({"jobs_cluster_size": 3, "jobs_cluster_down": down})
    assert [one.state for one in seen] == [state]


def test_nodes_of_a_disque_have_no_figures_of_links() -> None:
    member = Member("d" * 40, "10.0.0.4:7711", ("myself",), True)
    view = ClusterView(
        {member.address: NodeView(member.address, member.id, {member.id: member}, {"registered_jobs": "2"}, {})}
    )
    (node,) = judge(member.address, view).nodes
    assert (node.state, node.jobs, node.acked, node.lag_us, node.queued_bytes) == (State.OK, 2, None, None, None)


@pytest.mark.parametrize(
    ("code", "words", "state"),
    [
        (ExitCode.UNREACHABLE, "cannot reach a: timed out", State.CRITICAL),
        (ExitCode.TRY_AGAIN, "a refused: LOADING Disque is loading the dataset in memory", State.WARNING),
        (ExitCode.NO_RIGHTS, "a refused: NOPERM", State.UNKNOWN),
    ],
)
def test_where_the_first_node_does_not_answer_the_state_says_whether_that_is_known(
    code: ExitCode, words: str, state: State
) -> None:
    assert unanswered("a", Failure(code, words)).state == state


def test_words_end_no_line_and_no_label() -> None:
    report = judge("a|b\n", cluster(a_b={"is_linked": False, "problem": "a|b\nc"}))
    assert as_nagios(report).count("\n") == 1
    assert as_nagios(report).count("|") == 1
    assert 'server="a|b\\n"' in as_prometheus(report)
    assert as_text(report).startswith("CLUSTER WARNING\n  10.0.0.2:7711: ")
    assert '"state": "warning"' in as_json(report)
