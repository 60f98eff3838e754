"""leases --by NAME: what a holder has leased, with the tokens."""

import json
from pathlib import Path

from tests.support.daemon import running_daemon
from tests.support.shell import Kestrelctl


def leased(kestrelctl: Kestrelctl, queue: str, by: str) -> int:
    """Put an item and lease it; the token."""
    kestrelctl("put", queue, "x")
    token: int = json.loads(kestrelctl("get", queue, "--lease", "1h", "--by", by, "--json").out)["token"]
    return token


def test_they_are_listed_from_all_queues_or_one_and_can_be_given_back(kestrelctl: Kestrelctl, queue: str) -> None:
    by, other = f"{queue}-me", f"{queue}-b"
    tokens = {name: leased(kestrelctl, name, by) for name in (queue, other)}
    leased(kestrelctl, queue, f"{queue}-another")
    rows = json.loads(kestrelctl("leases", "--by", by, "-o", "json").out)
    assert {row["queue"]: row["token"] for row in rows} == tokens
    assert all(row.keys() == {"queue", "id", "token", "left_ms", "length_ms"} for row in rows)
    assert all(0 < row["left_ms"] <= row["length_ms"] == 3_600_000 for row in rows)
    (line,) = kestrelctl("leases", queue, "--by", by, "-o", "tsv", "--no-headers").out.decode().splitlines()
    assert line.split("\t")[:3] == [queue, "1", str(tokens[queue])]
    assert kestrelctl("lease", "give-back", queue, str(tokens[queue])).code == 0
    run = kestrelctl("leases", queue, "--by", by, "-o", "json")
    assert (run.code, json.loads(run.out)) == (1, [])


def test_a_name_that_is_none_is_exit_2_and_an_older_server_exit_77(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    assert kestrelctl("leases", "--by", "a b").code == 2
    assert kestrelctl("leases").code == 2
    with running_daemon(tmp_path / "old", "compat=kestrel-1") as old:
        run = Kestrelctl(old.address, tmp_path)("leases", "--by", "a")
    assert run.code == 77, run
