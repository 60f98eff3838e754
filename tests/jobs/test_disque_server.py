"""disque-server: started as Disque's, by a disque.conf and options."""

import socket
import ssl
import stat
import time
from pathlib import Path

import pytest

from kestreld import __version__
from kestreld.disque_server import HELP, main
from tests.support.certificates import Authority
from tests.support.disque_aof import job_id, load, saved_job
from tests.support.disque_server import DisqueServer, disque_server
from tests.support.ports import free_port
from tests.support.process import descendants
from tests.support.resp import RespClient

SEVEN_S_MAX = 3  # on two processors, of which others may take some: the best of three attempts


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_disque_conf_says_where_it_listens_works_and_logs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    port = free_port()
    conf = f'port {port}\ndir ./data\nlogfile "disque.log"\npidfile /run/disque.pid\nmaxmemory 2mb\nhz 10\n'
    server = DisqueServer(tmp_path, conf=conf)
    log = tmp_path / "data" / "disque.log"
    server.process = server.launch()
    try:
        until = time.monotonic() + 60
        while not (log.exists() and " ready " in log.read_text()):
            assert time.monotonic() < until, "no word of its start in its log"
            time.sleep(0.02)
        client = RespClient(f"127.0.0.1:{port}")
        assert client("CONFIG", "GET", "dir") == [b"dir", str(tmp_path / "data").encode()]
        assert client("CONFIG", "GET", "port") == [b"port", b"%d" % port]
        assert client("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"2097152"]
        assert client("CONFIG", "SET", "dir", str(tmp_path)).startswith(b"ERR Invalid argument")
        assert b"config_file:" + str(server.conf_path).encode() in client("INFO", "server")
        assert client.job("q")
        assert b"maxmemory:2097152" in client("INFO", "memory")
        log.rename(tmp_path / "data" / "disque.log.1")
    finally:
        assert server.stop() == 0
    first = (tmp_path / "data" / "disque.log.1").read_text()
    assert f"without effect here: pidfile ({server.conf_path}:4), hz ({server.conf_path}:6)" in first
    assert f" cluster=127.0.0.1:{port + 10_000} " in first
    assert "stopped" in log.read_text()
    assert server.log == []


def test_options_alone_will_do_and_count_more_than_the_file(tmp_path: Path) -> None:
    port = free_port()
    options = ("--port", str(port), "--maxmemory", "3mb", "--loglevel", "warning", "--bind", "127.0.0.1")
    server = DisqueServer(tmp_path, *options, conf="port 1\nmaxmemory 1mb\n")
    server.process = server.launch()
    try:
        client = _connected(port)
        assert client("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"3145728"]
        assert client("CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1"]
        assert client("CONFIG", "SET", "loglevel", "notice") == b"OK"
    finally:
        assert server.stop() == 0
    assert [line for line in server.log if "ready" in line or "bus" in line] == []
    assert [line for line in server.log if "stopped" in line] != []


def _connected(port: int) -> RespClient:
    until = time.monotonic() + 60
    while True:
        try:
            return RespClient(f"127.0.0.1:{port}")
        except ConnectionRefusedError:
            assert time.monotonic() < until, f"it does not listen on {port}"
            time.sleep(0.02)


def test_jobs_are_on_disk_with_appendonly_yes_and_the_process_is_alone(tmp_path: Path) -> None:
    conf = f"port {free_port()}\nappendonly yes\nappendfsync always\n"
    with disque_server(tmp_path, conf=conf) as server:
        added = server.client().job("q", "kept")
        assert server.process is not None
        assert descendants(server.process.pid) == []
        server.kill()
        server.start()
        client = server.client()
        assert client.fields("SHOW", added)["body"] == b"kept"
        assert client("CONFIG", "GET", "append*") == [b"appendfsync", b"always", b"appendonly", b"yes"]
        assert b"aof_enabled:1" in client("INFO", "persistence")
    assert stat.S_IMODE((tmp_path / "nodes.conf.spool").stat().st_mode) == 0o700


def test_the_three_commands_of_a_controlled_restart_with_a_file_and_without(tmp_path: Path) -> None:
    for name, conf in (("with", "appendonly no\n"), ("without", None)):
        with disque_server(tmp_path / name, "--port", str(free_port()), conf=conf) as server:
            client = server.client()
            added = [client.job("q", str(number), "RETRY", 0) for number in range(3)]
            assert client("CONFIG", "SET", "aof-enqueue-jobs-once", "yes") == b"OK"
            assert client("CONFIG", "REWRITE") == b"OK"
            client.send("SHUTDOWN", "REWRITE-AOF")
            assert client.rest() == []
            assert server.wait() == 0
            server.start()
            client = server.client()
            assert [job[1] for job in client("GETJOB", "COUNT", 10, "FROM", "q")] == added
            assert client("CONFIG", "GET", "aof-enqueue-jobs-once")[1] == b"no"
            if conf is not None:
                assert "aof-enqueue-jobs-once no\n" in server.conf_path.read_text()


def test_a_start_that_cannot_succeed_names_the_reason_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "wrong.conf").write_text("port 7711\nfoo 1\nbar 2\n")
    code, said = DisqueServer(tmp_path, "wrong.conf").fail()
    assert code == 1
    assert f"{tmp_path}/wrong.conf:2: unknown directive 'foo'" in said
    assert f"{tmp_path}/wrong.conf:3: unknown directive 'bar'" in said
    for arguments, reason in (
        (["gone.conf"], f"{tmp_path}/gone.conf: No such file or directory"),
        (["--port", "0"], "--port: no address to listen on: set port or unixsocket"),
        (["--daemonize", "yes"], "--daemonize: daemonize yes is not supported: disque-server stays in the foreground"),
        (["--dir", "nowhere"], f"--dir: dir: {tmp_path}/nowhere is not a directory"),
        (["--port", "1", "surplus"], "--port: invalid value '1 surplus'"),
    ):
        code, said = DisqueServer(tmp_path, *arguments).fail()
        assert (code, reason in said) == (1, True), said


def test_other_machines_get_in_only_with_a_password_or_where_nobody_minds(tmp_path: Path) -> None:
    options = ("--port", str(free_port()), "--bind", "0.0.0.0")
    code, said = DisqueServer(tmp_path, *options).fail()
    assert code == 1
    assert "--bind: 0.0.0.0" in said
    assert "is reachable from other machines without authentication: set requirepass" in said
    with disque_server(tmp_path, *options, "--insecure") as server:
        assert server.address.startswith("0.0.0.0:")
        assert server.client()("PING") == b"PONG"
    with disque_server(tmp_path, *options, "--requirepass", "secret") as server:
        client = server.client()
        assert client("PING") == b"NOAUTH Authentication required."
        assert client("AUTH", "secret") == b"OK"
        assert client("CONFIG", "SET", "requirepass", "") == (b"ERR Invalid argument '' for CONFIG SET 'requirepass'")
        assert client("CONFIG", "SET", "requirepass", "other") == b"OK"


def test_commands_are_renamed_or_gone(tmp_path: Path) -> None:
    conf = f'port {free_port()}\nrename-command CONFIG adjust\nrename-command debug ""\n'
    with disque_server(tmp_path, conf=conf) as server:
        client = server.client()
        assert client("CONFIG", "GET", "port") == b"ERR unknown command 'CONFIG'"
        assert client("ADJUST", "GET", "hz") == client("adjust", "GET", "hz") == [b"hz", b"10"]
        assert client("DEBUG", "FLUSHALL") == b"ERR unknown command 'DEBUG'"
    code, said = DisqueServer(tmp_path, "--rename-command", "nonsense", "x").fail()
    assert (code, "there is no such command" in said) == (1, True)


def test_a_unix_socket_has_the_mode_that_was_asked_for(short_path: Path) -> None:
    options = ("--port", "0", "--unixsocket", "d.sock", "--unixsocketperm", "770")
    with disque_server(short_path, *options) as server:
        assert server.address == f"unix:{short_path}/d.sock"
        assert stat.S_IMODE((short_path / "d.sock").stat().st_mode) == 0o770
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(short_path / "d.sock"))
            client.sendall(b"CLIENT LIST\r\n")
            assert b" flags=U " in client.recv(65536)


def test_two_servers_of_one_folder_need_files_of_their_own(tmp_path: Path) -> None:
    with disque_server(tmp_path, "--port", str(free_port())):
        code, said = DisqueServer(tmp_path, "--port", str(free_port())).fail()
        assert (code, "nodes.conf.spool: in use by pid" in said) == (1, True)
        with disque_server(tmp_path, "--port", str(free_port()), "--cluster-config-file", "nodes-2.conf"):
            assert (tmp_path / "nodes-2.conf.spool").is_dir()


def test_jobs_of_a_disque_that_was_there_before_are_taken_over_once(tmp_path: Path) -> None:
    jobs = [saved_job(number, body=b"%d" % number, created_ms=now_ms(), counter=number) for number in range(3)]
    content = b"".join(map(load, jobs))
    (tmp_path / "old.aof").write_bytes(content + load(jobs[0])[:-1])
    conf = f"port {free_port()}\nappendonly yes\nappendfilename old.aof\naof-enqueue-jobs-once yes\n"
    with disque_server(tmp_path, conf=conf) as server:
        client = server.client()
        taken = client("GETJOB", "COUNT", 10, "FROM", "mail")
        assert [job[1] for job in taken] == [job_id(number) for number in range(3)]
        assert client("ACKJOB", job_id(1)) == 1
        assert "aof-enqueue-jobs-once no\n" in server.conf_path.read_text()
        server.stop()
        (moved,) = (tmp_path / "nodes.conf.spool" / ".imported").glob("*/old.aof")
        assert f"imported 3 jobs of Disque's; the file is now {moved}" in "\n".join(server.log)
        server.start()
        assert sorted(server.client()("JSCAN")[1]) == [job_id(0), job_id(2)]
    assert not (tmp_path / "old.aof").exists()


@pytest.mark.parametrize(
    "tail", [b"garbage", b"*2\r\n$7\r\nLOADJOB\r\n$3\r\nabc\r\n", b"*2\r\n$3\r\nSET\r\n$1\r\nx\r\n"]
)
def test_a_corrupt_file_of_disques_ends_the_start_with_1(tmp_path: Path, tail: bytes) -> None:
    content = load(saved_job(1)) + tail
    (tmp_path / "disque.aof").write_bytes(content)
    code, said = DisqueServer(tmp_path, "--port", str(free_port())).fail()
    assert code == 1
    assert f"jobs: {tmp_path}/disque.aof: byte {len(load(saved_job(1)))}: " in said
    assert (tmp_path / "disque.aof").read_bytes() == content


def test_a_file_that_is_cut_short_ends_the_start_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "disque.aof").write_bytes(load(saved_job(1))[:-1])
    code, said = DisqueServer(tmp_path, "--port", str(free_port()), "--aof-load-truncated", "no").fail()
    assert code == 1
    assert "disque.aof: byte 0: the last command is cut short, and aof-load-truncated is no" in said
    assert (tmp_path / "disque.aof").exists()


def test_a_job_log_that_cannot_be_read_ends_the_start_with_1(tmp_path: Path) -> None:
    options = ("--port", str(free_port()), "--appendonly", "yes")
    with disque_server(tmp_path, *options) as server:
        client = server.client()
        for number in range(100):
            client.job("q", str(number))
        server.stop()
    (segment,) = (tmp_path / "nodes.conf.spool" / ".jobs").glob("*.jobs")
    content = bytearray(segment.read_bytes())
    content[1000] ^= 1
    segment.write_bytes(content)
    code, said = DisqueServer(tmp_path, *options).fail()
    assert (code, f"jobs: {segment}: byte" in said) == (1, True)


def test_clients_with_a_certificate_get_in_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_server()
    options = ("--port", "0", "--tls-port", str(free_port()), "--bind", "0.0.0.0")
    code, said = DisqueServer(tmp_path, *options).fail()
    assert (code, "--tls-port: tls-port requires tls-cert-file and tls-key-file" in said) == (1, True)
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    code, said = DisqueServer(tmp_path, *options, *files).fail()
    assert (code, "reachable from other machines without authentication" in said) == (1, True)
    trusted = ("--tls-ca-cert-file", str(authority.certificate))
    with disque_server(tmp_path, *options, *files, *trusted) as server:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(*authority.issue("client"))
        port = int(server.address.rpartition(":")[2])
        plain = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"


@pytest.mark.long
def test_seven_started_at_once_answer_within_three_seconds(tmp_path: Path) -> None:
    assert min(_seven_answer_s(tmp_path / str(attempt)) for attempt in range(3)) <= SEVEN_S_MAX


def _seven_answer_s(folder: Path) -> float:
    servers = [DisqueServer(folder / str(number), "--port", str(free_port())) for number in range(7)]
    began_s = time.monotonic()
    try:
        for server in servers:
            server.process = server.launch(is_timed=True)
        for server in servers:
            client = _connected(int(server.options[1]))
            client.send_bytes(b"PING\r\n")
            assert client.reply() == b"PONG"
        return time.monotonic() - began_s
    finally:
        for server in servers:
            server.kill()


def test_help_and_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main(["--version"]) == 0
    assert capsys.readouterr().out == f"{HELP}disque-server of kestreld {__version__}\n"
