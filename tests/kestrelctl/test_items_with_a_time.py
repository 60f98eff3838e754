"""Leases, delays, keys and dead letters from a shell."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.shell import Kestrelctl

CONFIG = """
queues:
  fragile: {max_retries: 1, move_failed_to: dead}
  patient: {retry_delays: [1h]}
  full: {max_items: 1}
"""


def objects(kestrelctl: Kestrelctl, *line: str) -> list[dict[str, object]]:
    return [json.loads(one) for one in kestrelctl(*line, "-o", "ndjson").out.splitlines()]


# put


def test_a_delayed_item_is_not_delivered_before_it_is_due(kestrelctl: Kestrelctl, queue: str) -> None:
    begin = time.monotonic()
    assert kestrelctl("put", queue, "later", "--delay", "300ms").code == 0
    assert kestrelctl("get", queue).code == 1
    assert kestrelctl("get", queue, "--wait", "60s").out == b"later"
    assert time.monotonic() - begin > 0.3


def test_an_item_that_is_put_again_with_its_key_is_there_once(kestrelctl: Kestrelctl, queue: str) -> None:
    for _ in range(2):
        assert kestrelctl("put", queue, "x", "--key", "order-17").code == 0
    assert kestrelctl("get", queue, "--all").out == b"x\n"
    assert kestrelctl("put", queue, "--lines", "--key", "order-17", stdin=b"x\n").code == 2
    refused = kestrelctl("put", queue, "x", "--key", "two words")
    assert (refused.code, "key" in refused.err) == (2, True)


def test_a_server_that_knows_no_leases_is_not_given_an_item(tmp_path: Path) -> None:
    answers = [WHO_IS_THERE, Exchange(b"touch work/0 0\r\n", b"ERROR\r\n")]
    for line in (
        ["put", "work", "x", "--delay", "1s"],
        ["put", "work", "x", "--key", "k"],
        ["get", "work", "--lease", "1s", "--json"],
        ["cancel", "work", "k"],
        ["lease", "confirm", "work", "17"],
        ["lease", "extend", "work", "17"],
        ["lease", "give-back", "work", "17"],
    ):
        with scripted_peer(answers) as peer:
            refused = Kestrelctl(peer.address, tmp_path)(*line)
            assert (refused.code, "leases, delays and keys are not supported" in refused.err) == (77, True), refused


# get --lease


def test_a_leased_item_is_confirmed_when_its_command_succeeds(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "job")
    assert kestrelctl("get", queue, "--lease", "30s", "--exec", "cat").out == b"job"
    assert kestrelctl("get", queue).code == 1
    assert objects(kestrelctl, "items", queue) == []


def test_a_lease_is_extended_while_its_command_runs(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    """After a third of it: a busy machine may be late with that, but not by the rest."""
    kestrelctl("put", queue, "job")
    os.mkfifo(tmp_path / "extended")
    worker = kestrelctl.start("get", queue, "--lease", "3s", "--exec", f"cat <{tmp_path}/extended; cat")
    while not (leased := objects(kestrelctl, "items", queue, "--state", "leased")):
        assert worker.poll() is None
    least_ms = left_ms = int(str(leased[0]["left_ms"]))
    while left_ms <= least_ms:
        least_ms = left_ms
        time.sleep(0.05)
        leased = objects(kestrelctl, "items", queue, "--state", "leased")
        assert leased, "the lease has expired"
        left_ms = int(str(leased[0]["left_ms"]))
    (tmp_path / "extended").write_bytes(b"the ")
    assert worker.communicate() == (b"the job", b"")
    assert worker.returncode == 0
    (figures,) = objects(kestrelctl, "stats", queue)
    assert (figures["leases_expired"], figures["leased"]) == (0, 0)
    assert kestrelctl("get", queue).code == 1


def test_a_leased_item_fails_with_its_command(own: Kestrelctl) -> None:
    own("put", "patient", "job")
    failed = own("get", "patient", "--lease", "30s", "--all", "--exec", "exit 3")
    assert (failed.code, failed.err) == (85, "kestrelctl: the command exited with 3; its item has failed\n")
    (item,) = objects(own, "items", "patient", "--state", "retrying")
    assert (item["attempts"], item["data"]) == (1, "job")
    assert own("cancel", "patient", str(item["id"])).code == 0


def test_a_lease_without_a_command_prints_its_token(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "job")
    assert kestrelctl("get", queue, "--lease", "30s").code == 2
    found = json.loads(kestrelctl("get", queue, "--lease", "30s", "--json").out)
    assert found["data"] == "job"
    assert 0 < found["token"] < 1 << 63
    (item,) = objects(kestrelctl, "items", queue, "--state", "leased")
    assert (item["state"], item["data"]) == ("leased", "job")
    assert 0 < item["left_ms"] <= 30_000
    assert str(item["client"]).startswith("127.0.0.1:")


def test_an_interrupted_command_gives_its_item_back_at_once(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    kestrelctl("put", queue, "job")
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    worker = kestrelctl.start("get", queue, "--lease", "1h", "--exec", f"echo >{begun}; sleep 60")
    begun.read_bytes()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 143
    assert kestrelctl("get", queue).out == b"job"


def test_a_lease_is_shown_with_the_name_of_its_holder(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"1\n2\n3\n")
    kestrelctl("get", queue, "--lease", "30s", "--json", "--by", "worker-7")
    kestrelctl("get", queue, "--lease", "30s", "--json")
    named, other = objects(kestrelctl, "items", queue, "--state", "leased")
    assert (named["holder"], named["extended"], named["seen"]) == ("worker-7", 0, True)
    assert named["client"] != named["holder"]
    assert other["client"] == other["holder"]
    who = [row for row in objects(kestrelctl, "consumers", queue) if row["kind"] == "leasing"]
    assert {row["consumer"] for row in who} == {"worker-7", other["holder"]}
    (row,) = [row for row in who if row["consumer"] == "worker-7"]
    assert (row["client"], row["extended"], row["seen"], row["open"]) == (named["client"], 0, True, 1)
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    worker = kestrelctl.start("get", queue, "--lease", "30s", "--by", "worker-8", "--exec", f"echo >{begun}; sleep 60")
    begun.read_bytes()
    assert objects(kestrelctl, "items", queue, "--state", "leased")[-1]["holder"] == "worker-8"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 143


@pytest.mark.parametrize("words", [["--by", "worker-7"], ["--by", "a/b", "--lease", "9s", "--json"]])
def test_a_name_without_a_lease_or_that_is_none_takes_nothing(
    kestrelctl: Kestrelctl, queue: str, words: list[str]
) -> None:
    kestrelctl("put", queue, "job")
    run = kestrelctl("get", queue, *words)
    assert run.code == 2
    assert run.err.startswith("kestrelctl: --by ")
    assert kestrelctl("get", queue).out == b"job"


def test_leases_that_outlived_a_kill_say_so_until_their_holder_is_seen_or_they_are_ended(
    tmp_path: Path, kestrelctl: Kestrelctl
) -> None:
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        at = ("-s", daemon.address)

        def table(*words: str) -> list[str]:
            return kestrelctl(*at, *words, "-o", "table", "--no-headers").out.decode().splitlines()

        kestrelctl(*at, "put", "work", "--lines", stdin=b"1\n2\n")
        tokens = [
            str(json.loads(kestrelctl(*at, "get", "work", "--lease", "1h", "--json", "--by", name).out)["token"])
            for name in ("worker-7", "worker-8")
        ]
        daemon.kill()
        daemon.start()
        not_seen = "not seen since the restart"
        assert [line.count(f"leased, {not_seen}") for line in table("items", "work")] == [1, 1]
        assert [line.count(not_seen) for line in table("items", "work", "--state", "leased")] == [1, 1]
        assert [line.count(not_seen) for line in table("consumers", "work")] == [1, 1, 0]
        (first, _) = objects(kestrelctl, *at, "items", "work")
        assert (first["state"], first["seen"], first["holder"]) == ("leased", False, "worker-7")
        rows = kestrelctl(*at, "items", "work", "-o", "tsv", "--fields", "state,seen").out.splitlines()
        assert rows[-2:] == 2 * [f"leased\t{not_seen}".encode()], "a state is one word for scripts"

        assert kestrelctl(*at, "lease", "extend", "work", tokens[0], "--lease", "2h").code == 0
        assert kestrelctl(*at, "lease", "extend", "work", "2", "--id", "--lease", "2h").code == 0
        assert [line.count(not_seen) for line in table("items", "work")] == [0, 1]
        assert [one["extended"] for one in objects(kestrelctl, *at, "items", "work")] == [1, 1]

        assert kestrelctl(*at, "lease", "give-back", "work", "2", "--id").code == 0
        assert kestrelctl(*at, "lease", "extend", "work", tokens[1]).code == 1
        assert kestrelctl(*at, "lease", "confirm", "work", tokens[1]).code == 1
        assert kestrelctl(*at, "get", "work").out == b"2"
        assert kestrelctl(*at, "lease", "give-back", "work", "2", "--id").code == 1
        assert kestrelctl(*at, "lease", "give-back", "work", "1", "--id", "--failed").code == 2
        assert kestrelctl(*at, "lease", "give-back", "work", "1", "--id", "--delay", "1h").code == 0
        assert kestrelctl(*at, "lease", "give-back", "work", "1", "--id").code == 77
        assert kestrelctl(*at, "lease", "confirm", "work", tokens[0]).code == 1


# lease


def leased_token(kestrelctl: Kestrelctl, queue: str, data: str = "job") -> str:
    kestrelctl("put", queue, data)
    return str(json.loads(kestrelctl("get", queue, "--lease", "1h", "--json").out)["token"])


def test_a_lease_is_confirmed_extended_and_given_back_by_its_token(own: Kestrelctl) -> None:
    token = leased_token(own, "work")
    assert own("lease", "extend", "work", token, "--lease", "2h").code == 0
    (item,) = objects(own, "items", "work", "--state", "leased")
    assert int(str(item["left_ms"])) > 3_600_000
    assert own("lease", "give-back", "work", token).code == 0
    again = own("get", "work", "--lease", "1h", "--json")
    token = str(json.loads(again.out)["token"])
    assert own("lease", "give-back", "work", token, "--delay", "1h").code == 0
    (item,) = objects(own, "items", "work", "--state", "delayed")
    assert item["data"] == "job"
    token = leased_token(own, "work", "other")
    assert own("lease", "confirm", "work", token).code == 0
    assert own("lease", "confirm", "work", token).code == 1


def test_a_leased_item_that_is_given_back_as_failed_waits_for_its_retry(own: Kestrelctl) -> None:
    token = leased_token(own, "patient")
    assert own("lease", "give-back", "patient", token, "--failed", "--delay", "1m").code == 2
    assert own("lease", "give-back", "patient", token, "--reason", "no room").code == 2
    assert own("lease", "give-back", "patient", token, "--failed", "--reason", 201 * "x").code == 2
    assert own("lease", "give-back", "patient", token, "--failed", "--reason", "no room / 100 % größe").code == 0
    (item,) = objects(own, "items", "patient", "--state", "retrying")
    assert (item["attempts"], item["data"]) == (1, "job")
    assert item["failure_reason"] == "no room / 100 % größe"
    header, row = own("items", "patient", "--state", "retrying").out.decode().splitlines()
    assert (header.split("\t")[-1], row.split("\t")[-1]) == ("failure_reason", "no room / 100 % größe")


@pytest.mark.parametrize("token", ["0", "-1", "x", "9223372036854775808", ""])
def test_a_token_that_cannot_be_is_a_usage_error(kestrelctl: Kestrelctl, token: str) -> None:
    assert kestrelctl("lease", "confirm", "work", token).code == 2


def test_a_token_is_looked_for_at_the_servers_of_a_context(
    kestrelctl: Kestrelctl, own: Kestrelctl, queue: str, tmp_path: Path
) -> None:
    token = leased_token(own, queue)
    both = Kestrelctl(own.address, tmp_path)
    both.environment["XDG_CONFIG_HOME"] = str(tmp_path / "settings")
    both("context", "add", "both", kestrelctl.address, own.address)
    assert both("-c", "both", "lease", "confirm", queue, token).code == 0
    assert both("-c", "both", "lease", "confirm", queue, token).code == 1
    assert objects(own, "items", queue) == []


# items, cancel, run-now


def test_items_of_a_state_in_every_form(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "b", "--delay", "2h")
    kestrelctl("put", queue, "a", "--delay", "1h")
    kestrelctl("put", queue, "c")
    first, second = objects(kestrelctl, "items", queue, "--state", "delayed")
    assert (first["data"], second["data"], first["state"]) == ("a", "b", "delayed")
    assert 0 < first["left_ms"] <= 3_600_000
    lines = kestrelctl("items", queue, "--state", "delayed").out.splitlines()
    assert lines[0].split(b"\t") == b"id add_ms due_at_ms left_ms bytes flags text".split()
    assert [line.split(b"\t")[0] for line in lines[1:]] == [b"2", b"1"]
    shown = kestrelctl("items", queue, "--state", "delayed", "--fields", "id,state", "-o", "csv", "--limit", "1").out
    assert shown == b"id,state\n2,delayed\n"
    assert kestrelctl("items", queue, "--state", "delayed", "--offset", "1", "-o", "name").out == b"1\n"
    assert [item["data"] for item in objects(kestrelctl, "items", queue, "--state", "waiting")] == ["c"]
    assert kestrelctl("items", queue, "--state", "leased").code == 1
    assert [item["id"] for item in objects(kestrelctl, "items", queue)] == [1, 2, 3]
    assert [item["id"] for item in objects(kestrelctl, "items", queue, "--state", "delayed", "--grep", "b")] == [1]


def test_items_are_cancelled_by_key_and_by_id(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "a", "--delay", "1h", "--key", "order-17")
    kestrelctl("put", queue, "b", "--delay", "1h")
    kestrelctl("put", queue, "c", "--delay", "1h", "--key", "3")
    assert kestrelctl("cancel", queue, "order-17").code == 0
    assert kestrelctl("cancel", queue, "order-17").code == 1
    assert kestrelctl("cancel", queue, "2").code == 0
    assert kestrelctl("cancel", queue, "2").code == 1
    assert kestrelctl("cancel", queue, "3", "--key").code == 0
    assert kestrelctl("items", queue, "--state", "delayed").code == 1
    assert kestrelctl("cancel", queue, "three", "--id").code == 2


def test_an_item_is_run_now(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "later", "--delay", "1h")
    assert kestrelctl("run-now", queue, "1").code == 0
    assert kestrelctl("get", queue).out == b"later"
    assert kestrelctl("run-now", queue, "1").code == 1
    assert kestrelctl("run-now", queue, "one").code == 2


# redrive


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Kestrelctl]:
    """Of a server of its own."""
    with running_daemon(tmp_path, config=CONFIG, admin="127.0.0.1:0") as daemon:
        yield Kestrelctl(daemon.address, tmp_path)


def test_dead_letters_go_back_where_they_came_from(own: Kestrelctl) -> None:
    own("put", "fragile", "--lines", stdin=b"a\nb\n")
    for _ in range(4):
        own("get", "fragile", "--lease", "1s", "--exec", "false")
    own("put", "dead", "own")
    first, _, third = objects(own, "items", "dead", "--state", "waiting")
    assert (first["origin"], first["reason"], first["origin_attempts"]) == ("fragile", "failed", 2)
    assert "origin" not in third
    head = json.loads(own("peek", "dead", "--json", "--origin").out)
    assert (head["id"], head["data"], head["origin"], head["origin_attempts"]) == (1, "a", "fragile", 2)
    assert own("peek", "nobody", "--json", "--origin").code == 1
    assert own("peek", "dead", "--origin").code == 2
    assert own("redrive", "dead", "--dry-run").out == b"queue\titems\nfragile\t2\n"
    assert json.loads(own("redrive", "dead", "-o", "json").out) == [{"queue": "fragile", "items": 2}]
    assert own("get", "fragile", "--all").out == b"a\nb\n"
    assert own("redrive", "dead").code == 1
    assert own("redrive", "dead", "--to", "fragile").code == 0
    assert own("get", "fragile").out == b"own"


def test_dead_letters_are_listed_with_where_they_come_from_why_and_since_when(own: Kestrelctl) -> None:
    own("put", "dead", "put here")
    assert own("dead", "dead").code == 1
    own("put", "fragile", "--lines", stdin=b"a\nb\nc\n")
    (put, *_) = objects(own, "items", "fragile")
    for _ in range(5):
        own("get", "fragile", "--lease", "1s", "--exec", "false")
    token = str(json.loads(own("get", "fragile", "--lease", "1h", "--json").out)["token"])
    own("lease", "give-back", "fragile", token, "--failed", "--reason", "no room")
    header, first, *rest = own("dead", "dead").out.decode().splitlines()
    columns = ["id", "origin", "reason", "origin_attempts", "failure_reason", "put_at_ms", "add_ms", "bytes", "text"]
    assert header.split("\t") == columns
    cells = dict(zip(columns, first.split("\t"), strict=True))
    assert cells == cells | {"id": "2", "origin": "fragile", "reason": "failed", "origin_attempts": "2", "text": "a"}
    assert int(cells["put_at_ms"]) == put["add_ms"]
    assert int(cells["add_ms"]) > int(cells["put_at_ms"])
    assert [row.split("\t")[-1] for row in rest] == ["b", "c"]
    assert [row.split("\t")[4] for row in (first, *rest)] == ["", "", "no room"]
    assert [one["data"] for one in objects(own, "dead", "dead", "--limit", "2")] == ["a", "b"]
    assert [one["data"] for one in objects(own, "dead", "dead", "--grep", "c")] == ["c"]
    assert own("dead", "dead", "--grep", "put").code == 1
    own("redrive", "dead")
    assert own("dead", "dead").code == 1


def test_a_redrive_goes_on_in_slices_until_all_are_back(own: Kestrelctl) -> None:
    own("put", "dead", "--lines", stdin=b"".join(b"%d\n" % number for number in range(2500)))
    assert own("redrive", "dead", "--to", "work").out == b"queue\titems\nwork\t2500\n"
    assert own("get", "work", "--all").out.splitlines()[2499] == b"2499"


def test_a_redrive_says_what_a_queue_refused(own: Kestrelctl) -> None:
    own("put", "dead", "--lines", stdin=b"a\nb\n")
    part = own("redrive", "dead", "--to", "full")
    assert (part.code, part.out) == (81, b"queue\titems\nfull\t1\n")
    assert "full: the queue is full" in part.err
    assert own("redrive", "dead", "--to", "full").code == 80
    assert own("redrive", "dead", "--to", "dead").code == 2
    assert own("redrive", "nobody").code == 1


def test_consumers_names_who_holds_leases(kestrelctl: Kestrelctl, daemon: Daemon, queue: str) -> None:
    kestrelctl("put", queue, "a")
    kestrelctl("get", queue, "--lease", "1h", "--json")
    (row,) = [row for row in objects(kestrelctl, "consumers", queue) if row["kind"] == "leasing"]
    assert (row["open"], row["id"]) == (1, 1)
    assert 3_000_000 < row["left_ms"] <= 3_600_000


# Out and in again


def due_times(kestrelctl: Kestrelctl, queue: str) -> dict[object, int]:
    """By the data of what is delayed or retrying."""
    rows = [row for state in ("delayed", "retrying") for row in objects(kestrelctl, "items", queue, "--state", state)]
    return {row["data"]: int(str(row["due_at_ms"])) for row in rows}


def same_times(found: dict[object, int], expected: dict[object, int]) -> bool:
    """The same items, due within a minute of one another: of an hour or a day, on a busy machine."""
    return found.keys() == expected.keys() and all(abs(found[data] - expected[data]) < 60_000 for data in expected)


def test_an_export_an_import_and_a_copy_keep_due_times(own: Kestrelctl, tmp_path: Path) -> None:
    own("put", "patient", "has failed")
    own("get", "patient", "--lease", "1s", "--exec", "false")
    own("put", "patient", "in a day", "--delay", "1d")
    own("put", "patient", "now")
    due = due_times(own, "patient")
    assert set(due) == {"has failed", "in a day"}
    path = str(tmp_path / "out")
    assert own("export", "patient", path).code == 0
    failed, later, now = [json.loads(line) for line in Path(path).read_bytes().splitlines()[1:]]
    assert same_times({"has failed": failed["due_at_ms"], "in a day": later["due_at_ms"]}, due)
    assert failed["attempts"] == 1
    assert "due_at_ms" not in now
    assert own("import", "imported", path).code == 0
    assert own("copy", "patient", "copied").code == 0
    for queue in ("imported", "copied"):
        assert own("get", queue, "--all").out == b"now\n"
        assert same_times(due_times(own, queue), due)
    assert own("move", "patient", "moved").code == 0
    assert same_times(due_times(own, "patient"), due)  # they stay
    assert own("get", "moved", "--all").out == b"now\n"


def test_an_export_says_where_a_dead_letter_comes_from(own: Kestrelctl) -> None:
    own("put", "fragile", "bad")
    for _ in range(2):
        own("get", "fragile", "--lease", "1s", "--exec", "false")
    line = json.loads(own("export", "dead").out.splitlines()[1])
    assert [line[name] for name in ("origin", "reason", "origin_attempts")] == ["fragile", "failed", 2]
    assert line["put_at_ms"] <= line["add_ms"]


def test_what_was_delayed_and_is_due_by_the_time_of_the_import_is_there_at_once(
    kestrelctl: Kestrelctl, queue: str
) -> None:
    line = b'{"id": 1, "data": "x", "due_at_ms": 1700000000000}\n'
    assert kestrelctl("import", queue, stdin=line).code == 0
    assert kestrelctl("get", queue).out == b"x"
