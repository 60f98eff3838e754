"""The admin port: health, metrics and figures over HTTP, and who is let in."""

import json
import select
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.http import ask, basic
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S, until

HASH = quick_hash("pw")
USERS = f"""
users:
  shop: {{password: "{HASH}", rights: {{orders: [put]}}}}
  peeper: {{password: "{HASH}", rights: {{orders: [peek]}}}}
  worker: {{password: "{HASH}", rights: {{orders: [get]}}}}
  all: {{password: "{HASH}", rights: {{"*": all}}}}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), admin="127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with users."""
    with running_daemon(tmp_path_factory.mktemp("guarded"), config=USERS, admin="127.0.0.1:0") as running:
        yield running


def metrics(daemon: Daemon) -> dict[tuple[str, str], float]:
    """(sample, queue) -> value, as Prometheus reads it."""
    families = text_string_to_metric_families(ask(daemon, "/metrics").body.decode())
    return {
        (sample.name, sample.labels.get("queue", "")): sample.value for family in families for sample in family.samples
    }


# Health


def test_health_and_readiness_are_told_to_everybody(daemon, guarded):
    for server in (daemon, guarded):
        assert (ask(server, "/healthz").status, ask(server, "/healthz").body) == (200, b"ok\n")
        assert (ask(server, "/readyz").status, ask(server, "/readyz").body) == (200, b"ready\n")
        assert ask(server, "/readyz", "HEAD").status == 200


def test_it_is_not_ready_while_the_disk_refuses_a_journal(tmp_path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"x")
        (segment,) = daemon.spool.glob("work.journal/*.seg")
        segment.unlink()
        daemon.logged("work: ")
        answer = ask(daemon, "/readyz")
        assert (answer.status, answer.body) == (503, b"journal writes are failing for 1 queue\n")
        assert ask(daemon, "/healthz").status == 200


def test_a_server_without_the_port_never_loads_what_serves_it():
    code = "import sys, kestreld.daemon; print([name for name in sys.modules if name.startswith('aiohttp')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_the_default_port_being_taken_keeps_nobody_from_serving(tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asked = Daemon(tmp_path / "asked", admin=f"127.0.0.1:{taken.getsockname()[1]}")
        refused = asked.run()
        assert refused.returncode == 69
        assert "Address already in use" in refused.stderr
        assert f"cannot listen on 127.0.0.1:{taken.getsockname()[1]}: " in refused.stderr


def test_of_several_addresses_the_one_that_is_in_use_is_named_alone(short_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy, path = f"127.0.0.1:{taken.getsockname()[1]}", short_path / "socket"
        refused = Daemon(short_path, listen=f"[127.0.0.1:0, '{busy}', 'unix:{path}']").run()
    assert refused.returncode == 69
    assert f"cannot listen on {busy}: Address already in use; stop what listens there" in refused.stderr
    assert refused.stderr.count("127.0.0.1:") == 1


def test_the_first_run_without_a_configuration_has_the_admin_port(tmp_path):
    command = [sys.executable, "-m", "kestreld", "--set", "listen.memcache=127.0.0.1:0"]
    environment = {"HOME": str(tmp_path), "KESTRELD_CONFIG": ""}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [next(process.stderr)]
        while " ready " not in said[-1]:
            said.append(next(process.stderr))
        process.terminate()
    words = "".join(said)
    taken = "admin port disabled: cannot listen on 127.0.0.1:2223, the default of listen.admin" in words
    assert " admin=127.0.0.1:2223 " in words or taken, words


# Figures


def test_metrics_are_what_prometheus_reads(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, b"one", b"three")
    client.get(queue)
    client.get(f"{queue}+audit")
    found = metrics(daemon)
    assert found["kestrel_queue_items", queue] == 1
    assert found["kestrel_queue_bytes", queue] == 5
    assert found["kestrel_queue_puts_total", queue] == 2
    assert found["kestrel_queue_gets_total", queue] == 1
    assert found["kestrel_queue_items", f"{queue}+audit"] == 0
    assert found["kestrel_connections", ""] >= 1
    assert found["kestrel_queues", ""] == found["kestrel_queues_shown", ""]


def test_the_process_has_the_metrics_that_prometheus_clients_give_every_process(daemon):
    found = {name: value for (name, _), value in metrics(daemon).items() if name.startswith("process_")}
    assert set(found) == {
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
    theirs = {
        sample.name: sample.value
        for family in ProcessCollector(pid=lambda: daemon.pid, registry=None).collect()
        for sample in family.samples
    }
    assert set(theirs) == set(found)
    assert found["process_start_time_seconds"] == theirs["process_start_time_seconds"]
    assert found["process_max_fds"] == theirs["process_max_fds"]
    assert 0 <= found["process_open_fds"] - theirs["process_open_fds"] < 5, "one more is that of the request"
    assert -0.001 < theirs["process_cpu_seconds_total"] - found["process_cpu_seconds_total"] < 5
    for name in ("process_virtual_memory_bytes", "process_resident_memory_bytes"):
        assert found[name] == pytest.approx(theirs[name], rel=0.2), name


def test_any_name_of_a_queue_is_a_label(daemon, connect: Connect):
    client = connect()
    for name in (b'a"b\\c', "käse".encode(), b"\xff"):
        client.ask(b"set %b 0 0 1\r\nx\r\n" % name, b"STORED\r\n")
    shown = {queue for sample, queue in metrics(daemon) if sample == "kestrel_queue_items"}
    assert {'a"b\\c', "käse", "\\xff"} <= shown


@pytest.mark.parametrize(
    ("per_queue", "shown"),
    [
        ("all", {"big", "mid", "small", "big+child"}),
        ("off", set()),
        ("'top:2'", {"big", "mid"}),
        ("'regex:big.*|small'", {"big", "small", "big+child"}),
    ],
)
def test_how_many_queues_have_metrics_is_bounded(tmp_path, per_queue, shown):
    config = f"metrics: {{per_queue: {per_queue}}}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("big", b"x", b"x", b"x")
        client.put("mid", b"x", b"x")
        client.put("small", b"x")
        client.get("big+child")
        found = metrics(daemon)
        assert {queue for sample, queue in found if sample == "kestrel_queue_items"} == shown
        assert found["kestrel_queues_shown", ""] == len(shown)
        assert (found["kestrel_queues", ""], found["kestrel_items", ""]) == (4, 6)


def test_queues_in_trouble_have_metrics_whatever_their_number_of_items(tmp_path):
    limits = "full: {max_items: 1}, ring: {max_items: 1, discard_old_when_full: true}"
    config = f"metrics: {{per_queue: 'top:1'}}\nqueues: {{{limits}}}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("damaged", b"x")
        client.put("big", b"x", b"x", b"x")
        for small in ("full", "ring", "small", "unwritable"):
            client.put(small, b"x")
        daemon.stop()
        (segment,) = daemon.spool.glob("damaged.journal/*.seg")
        segment.write_bytes(b"damaged" + segment.read_bytes()[7:])
        daemon.start()
        with QueueClient(daemon.port) as again:
            again.put("unwritable", b"x")
            next(iter(daemon.spool.glob("unwritable.journal/*.seg"))).unlink()
            until(lambda: metrics(daemon)["kestrel_journals_failed", ""] == 1, "a journal that has failed")
        found = metrics(daemon)
    shown = {queue for sample, queue in found if sample == "kestrel_queue_items"}
    assert shown == {"big", "damaged", "full", "unwritable"}
    assert found["kestrel_queues_shown", ""] == len(shown)


def test_syncs_are_a_histogram(tmp_path):
    with (
        running_daemon(tmp_path, "sync_journal=true", admin="127.0.0.1:0") as daemon,
        QueueClient(daemon.port) as client,
    ):
        client.put("work", b"x")
        client.put("work", b"y")
        found = metrics(daemon)
    assert found["kestrel_journal_fsync_seconds_count", ""] == 2


def test_stats_are_rows_and_only_those_that_changed(daemon, connect: Connect, queue):
    client, other = connect(), f"{queue}-other"
    client.put(queue, b"one")
    client.put(other, b"one")
    first = ask(daemon, "/stats.json").json
    assert first["is_full"]
    rows = {row[0]: dict(zip(first["columns"], row, strict=True)) for row in first["rows"]}
    assert (rows[queue]["items"], rows[queue]["total_items"], rows[queue]["bytes"]) == (1, 1, 3)
    assert abs(rows[queue]["oldest_at_ms"] - first["now_ms"]) < 60_000
    assert first["server"]["curr_items"] >= 2
    assert {name for name, value in first["server"].items() if not isinstance(value, int)} == {"version", "admin"}
    assert first["server"]["admin"] == daemon.admin
    # As `stats` says it.
    said = client.queue_stats(queue)
    assert {column: int(said[column]) for column in first["columns"] if column in said and column != "age"} == {
        column: value for column, value in rows[queue].items() if column in said and column != "age"
    }

    since = f"/stats.json?changed_since={first['at']}"
    assert ask(daemon, since).json["rows"] == []
    client.put(queue, b"two")
    client.get(f"{other}/open")
    second = ask(daemon, since).json
    assert not second["is_full"]
    changed = {row[0]: dict(zip(second["columns"], row, strict=True)) for row in second["rows"]}
    assert set(changed) == {queue, other}
    assert (changed[queue]["items"], changed[other]["open_transactions"]) == (2, 1)
    client.ask(b"delete " + other.encode() + b"\r\n", b"DELETED\r\n")
    assert ask(daemon, f"/stats.json?changed_since={second['at']}").json["gone"] == [other]


def test_who_asks_with_the_token_of_another_run_gets_everything(daemon, connect: Connect, queue):
    connect().put(queue, b"x")
    for token in ("", "1-1", "x", "-", "1-99999999999999999999", "%00"):
        answer = ask(daemon, f"/stats.json?changed_since={token}").json
        assert answer["is_full"]
        assert queue in {row[0] for row in answer["rows"]}


# Who is let in


def test_who_has_no_name_or_a_wrong_password_is_asked_for_one(guarded):
    for path in ("/metrics", "/stats.json", "/queues", "/queues/orders/items", "/nothing"):
        answer = ask(guarded, path)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
    for header in ("Basic", "Basic !!!", "Basic YQ==", "Bearer x"):
        assert ask(guarded, "/metrics", headers={"Authorization": header}).status == 401


def test_a_refusal_of_a_wrong_password_or_name_comes_late(guarded):
    """Nobody tries many."""

    def took_s(*account: str) -> float:
        started = time.monotonic()
        assert ask(guarded, "/metrics", headers=basic(*account)).status == 401
        return time.monotonic() - started

    with ThreadPoolExecutor() as pool:
        assert min(pool.map(took_s, ("shop", "nobody"), ("wrong", "pw"))) >= 1
    assert ask(guarded, "/metrics", headers=basic("shop", "pw")).status == 200


def test_figures_take_some_right_on_the_queue_and_items_the_right_to_peek(guarded):
    with QueueClient(guarded.port) as client:
        client.ask(login("shop", "pw"), b"STORED\r\n")
        client.put("orders", b"secret")
    allowed = {
        "shop": {"/stats.json", "/metrics", "/queues", "/queues/orders"},
        "peeper": {"/stats.json", "/metrics", "/queues", "/queues/orders", "/queues/orders/items"},
        "worker": {"/stats.json", "/metrics", "/queues", "/queues/orders", "POST /queues/orders/readers/r"},
    }
    calls = set().union(*allowed.values())
    for user, may in allowed.items():
        done = set()
        for call in calls:
            method, _, path = call.rpartition(" ")
            answer = ask(guarded, path, method or "GET", basic(user, "pw"))
            assert answer.status in (200, 201, 403), (user, call, answer)
            if answer.status != 403:
                done.add(call)
        assert done == may


def test_a_user_sees_the_queues_on_which_he_has_some_right(guarded):
    with QueueClient(guarded.port) as client:
        client.ask(login("all", "pw"), b"STORED\r\n")
        for name in ("orders", "orders+kid", "mail"):
            client.put(name, b"x")
    for user in ("shop", "all"):
        headers = basic(user, "pw")
        seen = {"orders"} if user == "shop" else {"orders", "orders+kid", "mail"}
        stats = json.loads(ask(guarded, "/stats.json", headers=headers).body)
        assert {row[0] for row in stats["rows"]} == seen
        queues = json.loads(ask(guarded, "/queues", headers=headers).body)
        assert {one["queue"] for one in queues["queues"]} == seen
        page = ask(guarded, "/metrics", headers=headers).body.decode()
        assert {name for name in ("orders", "orders+kid", "mail") if f'queue="{name}"' in page} == seen
        readers = json.loads(ask(guarded, "/queues/orders", headers=headers).body)["readers"]
        assert {one["queue"] for one in readers if one["kind"] == "queue"} == seen - {"mail"}
        assert ask(guarded, "/queues/mail", headers=headers).status == (200 if user == "all" else 403)
        assert ask(guarded, "/queues/nosuch", headers=headers).status == (404 if user == "all" else 403)


def test_names_that_are_gone_are_told_to_those_who_saw_them(guarded):
    tokens = {}
    with QueueClient(guarded.port) as client:
        client.ask(login("all", "pw"), b"STORED\r\n")
        client.put("gone", b"x")
        for user in ("shop", "all"):
            tokens[user] = json.loads(ask(guarded, "/stats.json", headers=basic(user, "pw")).body)["at"]
        client.do(b"delete gone", b"DELETED\r\n")
    for user, gone in (("shop", []), ("all", ["gone"])):
        path = f"/stats.json?changed_since={tokens[user]}"
        assert json.loads(ask(guarded, path, headers=basic(user, "pw")).body)["gone"] == gone


def test_who_may_see_more_after_a_reload_is_told_everything_once(tmp_path):
    with running_daemon(tmp_path, config=USERS, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.ask(login("all", "pw"), b"STORED\r\n")
        client.put("orders", b"x")
        client.put("mail", b"x")
        state = basic("shop", "pw")
        before = json.loads(ask(daemon, "/stats.json", headers=state).body)
        assert [row[0] for row in before["rows"]] == ["orders"]
        daemon.config_path.write_text(USERS.replace("{orders: [put]}", "{orders: [put], mail: [put]}"))
        client.do(b"reload", b"Reloaded config.\r\n")
        since = f"/stats.json?changed_since={before['at']}"
        after = json.loads(ask(daemon, since, headers=state).body)
        assert (after["is_full"], {row[0] for row in after["rows"]}) == (True, {"orders", "mail"})
        since = f"/stats.json?changed_since={after['at']}"
        assert json.loads(ask(daemon, since, headers=state).body)["rows"] == []


def test_no_answer_has_a_secret_in_it(guarded):
    for path in ("/metrics", "/stats.json", "/queues", "/queues/orders", "/nothing"):
        answer = ask(guarded, path, headers=basic("peeper", "pw"))
        everything = answer.body + str(answer.headers).encode()
        for secret in (b"pw", HASH.encode(), b"scrypt", str(guarded.spool).encode()):
            assert secret not in everything
        assert answer.headers["Server"] == "kestreld"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.org"},  # a name made to lead here: DNS rebinding
        {"Host": "evil.example.org:2223"},
        {"Host": "localhost.evil.example.org"},
        {"Host": "127.0.0.1.evil.example.org"},
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_in_a_browser_do_not_get_here(daemon, connect: Connect, queue, headers):
    connect().put(queue, b"secret")
    for method, path in (
        ("GET", f"/queues/{queue}/items"),
        ("POST", f"/queues/{queue}/readers/evil"),
        ("GET", "/healthz"),
    ):
        answer = ask(daemon, path, method, headers)
        assert answer.status == 403
        assert b"secret" not in answer.body
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert [one["reader"] for one in ask(daemon, f"/queues/{queue}").json["readers"]] == [""]


def test_addresses_localhost_and_configured_names_are_its_own(daemon, tmp_path):
    for host in ("127.0.0.1", "localhost:2223", "LOCALHOST", "[::1]:2223", "10.1.2.3:80"):
        assert ask(daemon, "/queues", headers={"Host": host}).status == 200
    own = {"Host": daemon.admin, "Origin": f"http://{daemon.admin}", "Sec-Fetch-Site": "same-origin"}
    assert ask(daemon, "/queues", headers=own).status == 200
    config = "listen: {admin_hosts: queues.example.org}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as named:
        assert ask(named, "/queues", headers={"Host": "queues.example.org:2223"}).status == 200
        assert ask(named, "/queues", headers={"Host": "other.example.org"}).status == 403


def test_other_machines_are_not_let_in_where_nobody_has_to_log_in(tmp_path):
    refused = Daemon(tmp_path / "a", admin="0.0.0.0:0").run()
    assert refused.returncode == 78
    assert "listen.admin: 0.0.0.0:0 is reachable from other machines without authentication" in refused.stderr
    with running_daemon(tmp_path / "b", config=USERS, admin="0.0.0.0:0") as daemon:
        daemon.admin = daemon.admin.replace("0.0.0.0", "127.0.0.1")
        assert ask(daemon, "/queues").status == 401


def test_whoever_can_open_the_socket_file_is_trusted(short_path):
    path = short_path / "admin.sock"
    with running_daemon(short_path, config=USERS, admin=f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_with_certificates_and_with_passwords(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue_server()
    authority.issue("worker", "DNS:worker.example.org")
    config = (
        f"tls: {{certificate: {certificate}, key: {key}, client_ca: {authority.certificate},"
        " client_certificate: optional}\n"
        "users:\n"
        "  worker: {certificate: worker.example.org, rights: {'orders': [get]}}\n"
        f"  alice: {{password: '{HASH}', rights: {{'*': all}}}}\n"
    )
    with running_daemon(tmp_path / "d", config=config, admin="tls:127.0.0.1:0") as daemon:
        assert daemon.admin.startswith("tls:127.0.0.1:")
        plain = ssl.create_default_context(cafile=str(authority.certificate))
        assert ask(daemon, "/queues", context=plain).status == 401
        assert ask(daemon, "/queues", headers=basic("alice", "pw"), context=plain).status == 200
        shown = ssl.create_default_context(cafile=str(authority.certificate))
        shown.load_cert_chain(tmp_path / "worker.pem", tmp_path / "worker.key")
        assert ask(daemon, "/queues/orders/readers/r", "POST", context=shown).status == 201
        assert ask(daemon, "/queues/other/readers/r", "POST", context=shown).status == 403
        with pytest.raises((OSError, ssl.SSLError)):
            ask(daemon, "/healthz")  # no TLS


def test_tls_needs_a_certificate(tmp_path):
    refused = Daemon(tmp_path, admin="tls:127.0.0.1:0").run()
    assert refused.returncode == 78
    assert "listen.admin: tls: requires tls.certificate and tls.key" in refused.stderr


# Limits


def test_bodies_long_lines_and_wrong_methods_are_refused(daemon):
    assert ask(daemon, "/queues/x/readers/r", "POST", body=b"x" * 100_000).status == 413
    assert ask(daemon, "/metrics?" + "x" * 20_000).status == 400
    assert ask(daemon, "/queues", headers={"X-Long": "x" * 20_000}).status == 400
    for method, path in (("POST", "/metrics"), ("PUT", "/queues/x"), ("DELETE", "/queues"), ("POST", "/healthz")):
        assert ask(daemon, path, method).status == 405
    assert ask(daemon, "/../etc/passwd").status == 404


def test_connections_that_say_nothing_are_closed(tmp_path):
    with (
        running_daemon(tmp_path, "request_timeout=50ms", admin="127.0.0.1:0") as daemon,
        admin_connection(daemon, b"GET /metrics HTTP/1.1\r\nHost: loc") as slow,
    ):
        with suppress(ConnectionError):
            assert slow.recv(1) == b""
        daemon.reload("")
        assert ask(daemon, "/healthz").status == 200


def admin_connection(daemon: Daemon, sent: bytes = b"") -> socket.socket:
    one = socket.create_connection(("127.0.0.1", int(daemon.admin.rpartition(":")[2])), timeout=PATIENCE_S)
    one.sendall(sent)
    return one


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_half_handshakes_keep_nobody_from_asking_for_health(tmp_path: Path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with running_daemon(tmp_path / "d", config=config, admin="tls:127.0.0.1:0") as daemon, ExitStack() as stack:
        for number in range(200):
            stack.enter_context(admin_connection(daemon, b"\x16\x03\x01" if number % 2 else b""))
        assert ask(daemon, "/healthz", context=context).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_half_requests_keep_nobody_from_asking_for_health_or_figures(daemon, sent: bytes):
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(admin_connection(daemon, sent))
            if number % 20 == 0:
                assert ask(daemon, "/healthz").status == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(daemon, path).status == 200


def test_as_many_requests_as_there_may_be_leave_health_to_be_asked_for(tmp_path: Path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon, ExitStack() as stack:
        with QueueClient(daemon.port) as client:
            client.put("work", b"x")
        wait = b"GET /queues/work/items?first=2&wait_ms=100000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        waiting = [stack.enter_context(admin_connection(daemon, wait)) for _ in range(64)]
        assert ask(daemon, "/healthz").status == 200  # one of figures would take a place meanwhile
        until(lambda: ask(daemon, "/metrics").status == 503, "so many requests to be under way")
        more = [stack.enter_context(admin_connection(daemon, wait)) for _ in range(36)]
        assert ask(daemon, "/metrics").status == 503
        for _ in range(30):
            assert ask(daemon, "/healthz").status == 200
        until(lambda: len(select.select(more, [], [], 0)[0]) == len(more), "the others to be told or pushed out")
        assert not select.select(waiting, [], [], 0)[0], "they wait on: nobody has pushed them out"


def test_more_connections_than_there_is_room_for_are_closed_and_the_queues_serve_on(daemon, connect: Connect, queue):
    client = connect()
    crowd = [admin_connection(daemon) for _ in range(100)]
    try:
        client.put(queue, b"x")
        assert client.get(queue) == b"x"
        assert ask(daemon, "/healthz").status == 200  # on a later connection: it has accepted all of them
        refused = 0
        for one in crowd:
            one.settimeout(PATIENCE_S)
            try:
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                refused += not one.recv(64)
            except ConnectionError:
                refused += 1
        assert refused >= 20  # more on a slow machine, where those that have been idle for too long make room
    finally:
        for one in crowd:
            one.close()
    daemon.logged("connection limit of 80 reached")


def test_no_more_connections_stay_open_than_there_is_room_for_however_many_come_at_once(tmp_path: Path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        for _ in range(12):  # waves, of which every other one or so meets the bad moment
            with ExitStack() as stack:
                crowd = [stack.enter_context(admin_connection(daemon)) for _ in range(320)]
                assert ask(daemon, "/healthz").status == 200  # on a later connection: it has accepted all of them
                gone = select.select(crowd, [], [], 0)[0]
                assert len(crowd) - len(gone) <= 80


def test_connections_that_are_gone_take_no_room(tmp_path: Path):
    """However many requests come one after the other: nobody is pushed out for those that have been answered."""
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        for _ in range(170):
            assert ask(daemon, "/healthz").status == 200
        assert daemon.stop() == 0
        assert not [line for line in daemon.log if "connection limit" in line]


def test_garbage_on_the_admin_port_harms_nobody(daemon, connect: Connect, queue):
    client = connect()
    port = int(daemon.admin.rpartition(":")[2])
    for garbage in (
        b"\x00" * 5000,
        b"set q 0 0 1\r\nx\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ):
        # It may hang up before it has read all of it.
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as one, suppress(ConnectionError):
            one.sendall(garbage)
            with suppress(OSError):  # ENOTCONN is no ConnectionError
                one.shutdown(socket.SHUT_WR)
            while one.recv(4096):
                pass
    client.put(queue, b"x")
    assert ask(daemon, "/healthz").status == 200


def test_what_was_said_on_the_admin_port_is_json_that_parses(daemon):
    for path in ("/nothing", "/queues/nothing", "/queues/a/b/c/d", "/queues/a/items?limit=x"):
        answer = ask(daemon, path)
        assert answer.status in (400, 404)
        assert set(json.loads(answer.body)) == {"error"}


def test_stopping_ends_requests_that_wait(tmp_path: Path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"x")
        wait = b"GET /queues/work/items?first=2&wait_ms=300000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with admin_connection(daemon, wait) as waiting:
            assert ask(daemon, "/healthz").status == 200  # the other is under way by now
            assert daemon.stop() == 0
            assert waiting.recv(4096).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ", b""))
