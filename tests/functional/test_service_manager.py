"""What an init system wants: readiness, the watchdog, passed sockets, another account, a hardened unit."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.accounts import quick_hash
from tests.support.daemon import ROOT, STOP_S, Daemon
from tests.support.process import environment
from tests.support.queue_client import QueueClient
from tests.support.resp import resp_client

QUIET = "listen: {admin: null}\n"
USERS = f'users:\n  alice: {{password: "{quick_hash("pw")}", rights: {{"*": all}}}}\n'
UNITS = ROOT / "packaging" / "systemd"
# Binds sockets as systemd would, and becomes what comes behind the --.
PASSES_SOCKETS = """
import os, socket, sys
names, *rest = sys.argv[1:]
addresses, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
for fd, address in enumerate(addresses, 3):
    path, colon, mode = address.partition("|")
    bound = socket.socket(socket.AF_UNIX if mode else socket.AF_INET)
    bound.bind(path if mode else (address, 0))
    if mode:
        os.chmod(path, int(mode, 8))
    bound.listen()
    os.dup2(bound.fileno(), fd + 100)
for fd in range(3, 3 + len(addresses)):
    os.dup2(fd + 100, fd)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(addresses)), "LISTEN_FDNAMES": names}
os.execv(command[0], command)
"""


class ServiceDaemon(Daemon):
    """A kestreld that finds the environment and sockets of a service manager."""

    def __init__(self, folder: Path, config: str = QUIET, *, names: str = "", sockets: tuple[str, ...] = ()) -> None:
        super().__init__(folder, config=config)
        self.names, self.sockets = names, sockets
        self.variables: dict[str, str] = {}

    def command(self) -> list[str]:
        command = super().command()
        if self.sockets:
            command = [sys.executable, "-c", PASSES_SOCKETS, self.names, *self.sockets, "--", *command]
        return ["env", *(f"{name}={value}" for name, value in self.variables.items()), *command]


@contextmanager
def started(daemon: Daemon) -> Iterator[Daemon]:
    daemon.start()
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.kill()


def test_it_says_when_it_is_ready_reloads_lives_and_stops(short_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_path / "notify"))
        manager.settimeout(STOP_S)
        daemon = ServiceDaemon(short_path / "daemon")
        daemon.variables = {"NOTIFY_SOCKET": str(short_path / "notify"), "WATCHDOG_USEC": "2000000"}
        with started(daemon):
            assert manager.recv(4096) == b"READY=1"
            with QueueClient(daemon.port) as client:
                client.put("q", b"x")
            while (said := manager.recv(4096)) != b"WATCHDOG=1":
                pass
            daemon.signal(signal.SIGHUP)
            while not (said := manager.recv(4096)).startswith(b"RELOADING=1\nMONOTONIC_USEC="):
                pass
            while (said := manager.recv(4096)) != b"READY=1":
                assert said == b"WATCHDOG=1"
            daemon.stop()
            while (said := manager.recv(4096)) != b"STOPPING=1":
                assert said == b"WATCHDOG=1"


def test_passed_sockets_stand_in_for_those_of_the_configuration(short_path):
    own, shared = short_path / "own.sock", short_path / "shared.sock"
    sockets = ("127.0.0.1", f"{own}|600", f"{shared}|666")
    daemon = ServiceDaemon(short_path / "daemon", QUIET + USERS, names="memcache:own:shared", sockets=sockets)
    with started(daemon):
        tcp, *rest = daemon.address.split(",")
        assert rest == [f"unix:{own}", f"unix:{shared}"]
        with QueueClient(tcp) as stranger:
            stranger.do(b"version", b"CLIENT_ERROR unauthenticated\r\n")
        with QueueClient(f"unix:{own}") as operator:
            operator.put("q", b"x")
        with QueueClient(f"unix:{shared}") as anybody:
            anybody.do(b"get q", b"CLIENT_ERROR unauthenticated\r\n")
        daemon.stop()
    assert own.exists()  # it is systemd's


def test_a_passed_socket_that_others_can_reach_is_refused_while_nobody_has_to_log_in(tmp_path):
    done = ServiceDaemon(tmp_path, names="memcache", sockets=("0.0.0.0",)).run()
    assert done.returncode == 78
    assert re.search(r"memcache: 0\.0\.0\.0:\d+ is reachable from other machines without authentication", done.stderr)


def test_sockets_named_for_the_cache_are_its_and_stand_in_for_listen_cache(short_path):
    own = short_path / "own.sock"
    names, sockets = "kestreld-memcache.socket:cache:my-cache", ("127.0.0.1", "127.0.0.1", f"{own}|600")
    daemon = ServiceDaemon(short_path / "daemon", QUIET, names=names, sockets=sockets)
    daemon.settings.append("listen.cache=127.0.0.1:1")
    with started(daemon):
        assert "," not in daemon.address
        tcp, unix = daemon.cache.split(",")
        assert unix == f"unix:{own}"
        with QueueClient(tcp) as client, QueueClient(unix) as other, QueueClient(daemon.address) as queues:
            client.do(b"set k 0 0 1\r\nx", b"STORED\r\n")
            other.do(b"get k", b"VALUE k 0 1\r\nx\r\nEND\r\n")
            queues.do(b"get k", b"END\r\n")


def test_sockets_named_for_disque_are_those_of_jobs_and_stand_in_for_listen_disque(short_path):
    own = short_path / "own.sock"
    names, sockets = "memcache:kestreld-disque:disque", ("127.0.0.1", "127.0.0.1", f"{own}|600")
    daemon = ServiceDaemon(short_path / "daemon", QUIET, names=names, sockets=sockets)
    daemon.settings.append("listen.disque=127.0.0.1:1")
    with started(daemon):
        assert "," not in daemon.address
        tcp, unix = daemon.disque.split(",")
        assert unix == f"unix:{own}"
        with resp_client(tcp) as client, QueueClient(unix) as other, QueueClient(daemon.address) as queues:
            job_id = client("ADDJOB", "q", "body", 0)
            other.do(b"ACKJOB " + job_id, b":1\r\n")
            assert client("INFO", "server").count(b"tcp_port:%d\r" % int(tcp.rpartition(":")[2]))
            queues.do(b"get q", b"END\r\n")


def test_a_passed_socket_of_jobs_that_others_can_reach_is_refused_while_nobody_has_to_log_in(tmp_path):
    done = ServiceDaemon(tmp_path, names="disque", sockets=("0.0.0.0",)).run()
    assert done.returncode == 78
    assert re.search(r"disque: 0\.0\.0\.0:\d+ is reachable from other machines without authentication", done.stderr)


def test_sockets_for_another_process_are_none_of_ours(tmp_path):
    daemon = ServiceDaemon(tmp_path)
    daemon.variables = {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
    with started(daemon), QueueClient(daemon.port) as client:
        client.do(b"get q", b"END\r\n")


# --- Another account.

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def open_path(short_path: Path) -> Path:
    """A folder of the test that any account can get to."""
    for folder in [short_path, *short_path.parents]:
        if folder.owner() == pwd.getpwuid(os.geteuid()).pw_name and folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return short_path


@needs_root
def test_root_becomes_the_user_and_gives_him_what_it_makes(open_path):
    daemon = Daemon(open_path, config=QUIET + "user: nobody\n", listen=f"unix:{open_path}/run/k.sock")
    open_path.joinpath("kestreld.yaml").chmod(0o644)
    with started(daemon):
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        uid, gid = pwd.getpwnam("nobody")[2:4]
        assert re.search(rf"^Uid:\t{uid}\t{uid}\t{uid}\t{uid}$", status, re.M)
        assert re.search(rf"^Gid:\t{gid}\t{gid}\t{gid}\t{gid}$", status, re.M)
        assert re.search(r"^CapEff:\t0+$", status, re.M)
        assert daemon.spool.stat().st_uid == uid
        with QueueClient(daemon.address) as client:
            client.put("q", b"x")
        daemon.restart()
        with QueueClient(daemon.address) as client:
            assert client.get("q") == b"x"


@needs_root
def test_somebody_elses_spool_is_refused(tmp_path):
    daemon = Daemon(tmp_path, config=QUIET)
    daemon.spool.mkdir(mode=0o700)
    os.chown(daemon.spool, pwd.getpwnam("nobody").pw_uid, -1)
    done = daemon.run()
    assert (done.returncode, len(done.stderr.splitlines())) == (73, 1)
    assert "owned by nobody, but kestreld runs as root" in done.stderr
    assert list(daemon.spool.iterdir()) == []


@needs_root
def test_a_spool_that_cannot_be_written_is_refused(open_path):
    daemon = Daemon(open_path, config=QUIET + "user: nobody\n")
    daemon.spool.mkdir(mode=0o500)
    os.chown(daemon.spool, pwd.getpwnam("nobody").pw_uid, -1)
    done = daemon.run()
    assert (done.returncode, len(done.stderr.splitlines())) == (73, 1)
    assert "not usable as a spool: Permission denied" in done.stderr


def test_an_account_that_is_not_there_is_refused(tmp_path):
    done = Daemon(tmp_path, config="user: no-such-account\n").run()
    assert done.returncode == 78
    assert f"{tmp_path}/kestreld.yaml:1:7: user: no such account: 'no-such-account'" in done.stderr


# --- The units that ship.


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", ["kestreld.service", "kestreld@.service", "kestrel-journal-verify.service"])
def test_the_unit_is_hardened(unit):
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNITS / unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    exposure = re.search(rf"Overall exposure level for {unit.replace('@', '@i')}: ([0-9.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_are_understood(tmp_path):
    units = []
    for path in sorted(UNITS.iterdir()):
        units.append(tmp_path / path.name.replace("@.", "@7711."))  # where the programs are is the packager's choice
        units[-1].write_text(re.sub(r"(?m)^(Exec\w+=)/usr/bin/kestrel\w+", r"\1/bin/true", path.read_text()))
    pages = os.environ | {"MANPATH": str(ROOT / "packaging" / "man")}  # those that the units name are looked for
    command = ["systemd-analyze", "verify", *units]
    done = subprocess.run(command, env=pages, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def settings_of(unit):
    """The lines of a unit's [Service], but for comments."""
    service = (UNITS / unit).read_text().partition("\n[Service]\n")[2].partition("\n[")[0]
    return [line for line in service.splitlines() if line and not line.startswith("#")]


def test_a_node_of_a_cluster_is_as_hardened_as_a_server_of_its_own():
    own, node = settings_of("kestreld.service"), settings_of("kestreld@.service")
    names = {line.partition("=")[0] for line in set(own) ^ set(node)}
    assert names == {"ExecStartPre", "ExecStart", "StateDirectory", "RuntimeDirectory", "Environment"}


def test_nodes_of_the_unit_run_beside_each_other_and_meet(short_path):
    """With the words that the unit has for each, in folders of the test."""
    lines = settings_of("kestreld@.service")
    variables = dict(
        line.removeprefix("Environment=").strip('"').split("=", 1) for line in lines if "Environment" in line
    )
    (short_path / "kestreld.yaml").write_text("listen: {cache: 127.0.0.1:11211}\njobs: {journal: true}\n")
    nodes, ports = [], free_ports(2)
    try:
        for port in ports:

            def here(words, port=port):
                for name, value in variables.items():
                    words = words.replace(f"${{{name}}}", value).replace(f"${name}", value)
                for old in ("/etc/kestreld", "/run/kestreld-%i", "/var/lib/kestreld-%i"):
                    words = words.replace(old, f"{short_path}/{port}" if "%i" in old else str(short_path))
                return [sys.executable, "-m", *words.replace("%i", str(port)).replace("/usr/bin/", "").split()]

            (short_path / str(port)).mkdir()
            for line in lines:
                name, _, words = line.partition("=")
                if name == "ExecStartPre":
                    checked = forked.run(here(words), None, 60, cwd=ROOT, env=environment(), text=True)
                    assert (checked.returncode, checked.stderr) == (0, "")
                elif name == "ExecStart":
                    nodes.append(
                        forked.Launched(here(words), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
                    )
            ready = nodes[-1].stderr.readline()
            assert f"disque=127.0.0.1:{port} cluster=127.0.0.1:{port + 10_000}" in ready, ready
            assert f"memcache=unix:{short_path}/{port}/kestreld.sock" in ready
            assert (short_path / str(port) / "spool").is_dir()
        first, second = (f"127.0.0.1:{port}" for port in ports)
        meet = [sys.executable, "-m", "kestrelctl", "cluster", "meet", second, "-s", first]
        met = forked.run(meet, None, 60, cwd=ROOT, env=environment(), text=True)
        assert (met.returncode, met.stderr) == (0, "")
    finally:
        for node in nodes:
            node.kill()
            node.wait()
            node.stderr.close()


def free_ports(count):
    """Ports with which those 10000 above are free, too; below the range that clients' own ports are from."""
    found, port = [], 20_000 + os.getpid() % 2000  # not where others look at the same time
    while len(found) < count:
        port += 1
        with socket.socket() as own, socket.socket() as bus:
            try:
                own.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
    return found
