"""readers: listing, making, moving and dropping places on a queue's journal."""

import json

from tests.support.shell import Kestrelctl


def rows_of(ctl: Kestrelctl, queue: str) -> dict[str, dict[str, object]]:
    return {row["reader"]: row for row in json.loads(ctl("readers", "ls", queue, "-o", "json").out)}


def test_a_reader_is_made_moved_forward_and_dropped(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\nc\n")
    kestrelctl("get", f"{queue}+child")
    kestrelctl("get", queue)
    assert kestrelctl("readers", "create", queue, "report").code == 0
    rows = rows_of(kestrelctl, queue)
    assert (rows[""]["head"], rows[""]["items"], rows["child"]["kind"]) == (2, 2, "queue")
    assert rows["report"] == {"reader": "report", "kind": "stream", "head": 1, "behind": 3}
    assert kestrelctl("readers", "move", queue, "report", "3").code == 0
    assert rows_of(kestrelctl, queue)["report"]["head"] == 3
    for back in ("2", "1"):
        run = kestrelctl("readers", "move", queue, "report", back)
        assert (run.code, "cannot move backwards" in run.err) == (77, True)
    assert kestrelctl("readers", "move", queue, "report", "9").code == 77
    assert kestrelctl("readers", "move", queue, "report", "latest").code == 0
    assert rows_of(kestrelctl, queue)["report"] == {"reader": "report", "kind": "stream", "head": 4, "behind": 0}
    assert kestrelctl("readers", "drop", queue, "report").code == 0
    assert set(rows_of(kestrelctl, queue)) == {"", "child"}
    assert kestrelctl("get", queue, "--all").out == b"b\nc\n"


def test_a_reader_begins_where_it_is_told_and_one_that_is_there_stays(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\nc\n")
    for name, at, head in (("e", "earliest", 1), ("l", "latest", 4), ("n", "2", 2)):
        assert kestrelctl("readers", "create", queue, name, "--from", at).code == 0
        assert rows_of(kestrelctl, queue)[name]["head"] == head
    run = kestrelctl("readers", "create", queue, "n", "--from", "3")
    assert (run.code, "at item 2" in run.err) == (73, True)
    assert kestrelctl("readers", "create", queue, "far", "--from", "9").code == 1


def test_what_is_not_there_is_exit_1_and_what_cannot_be_exit_2(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    for line in (["ls", "missing"], ["drop", queue, "r"], ["move", queue, "r", "latest"], ["drop", "missing", "r"]):
        assert kestrelctl("readers", *line).code == 1, line
    for line in (["create", queue, "a b"], ["create", queue, "a+b"], ["create", queue, "r", "--from", "soon"]):
        assert kestrelctl("readers", *line).code == 2, line
    assert kestrelctl("readers", "move", queue, "r", "soon").code == 2
