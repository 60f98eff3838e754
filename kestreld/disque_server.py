"""main() of disque-server: a kestreld that serves jobs only, configured by a disque.conf."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kestreld import __version__
from kestreld.config.cluster import Announce, read_secret
from kestreld.config.config import BUS_PORT_OF_CLIENTS, Address, Config, LogFormat, bus_exposure_reason
from kestreld.config.values import usable_path
from kestreld.config.yaml_tree import SourceLocation
from kestreld.daemon import run, stderr_log
from kestreld.errors import ConfigError, ConfigProblem
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.log import Level, Log
from kestreld.server.disque.conf_file import DisqueConf
from kestreld.server.disque.persistence import SYNC_MS
from kestreld.tls import server_context

FAILED: Final = 1  # whatever the reason, as Disque's
PORT: Final = 7711
NODES_FILE: Final = "nodes.conf"
SPOOL_SUFFIX: Final = ".spool"
HELP: Final = f"""usage: disque-server [disque.conf] [--directive value ...] ... [--insecure]

Serve jobs to Redis clients, as Disque's server does, by the directives of a disque.conf; see disque-server(1).
Each option is a directive and overrides the file:

  disque-server /etc/disque.conf
  disque-server --port 7712 --dir /var/lib/disque --appendonly yes
  disque-server - --port 7712      the file is standard input

  --insecure  accept connections from other machines without a password
  --version   print the version and exit
  --help      print this and exit

It stays in the foreground. Without `bind` it listens on 127.0.0.1:{PORT}.
Exit codes: 0 stopped as asked, 1 not started, or the jobs on disk cannot be read, 130 stopped by a second signal.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if words in (["-v"], ["--version"]):
        sys.stdout.write(f"disque-server of kestreld {__version__}\n")
        return 0
    files = FileLayer()
    os.umask(0o077)
    try:
        conf, is_insecure = read_command_line(files, words)
        config = configuration(conf, is_insecure=is_insecure)
        context = server_context(config, files)
        log = log_of(files, conf)
    except ConfigError as error:
        complain = stderr_log().of("daemon", Level.ERROR)
        for problem in error.problems:
            complain(str(problem))
        return FAILED
    note = log.of("daemon", Level.INFO)
    if names := conf.without_effect():
        note(f"without effect here: {', '.join(names)}")
    conf.save_in(config.queue_path)
    complain = log.of("daemon", Level.ERROR)
    return FAILED if run(config, lambda: with_secret(files, conf, config), context, log, complain, conf) else 0


def read_command_line(files: FileLayer, words: Sequence[str]) -> tuple[DisqueConf, bool]:
    """Return the directives, and True if `--insecure` was given. Raises ConfigError."""
    left = list(words)
    file = left.pop(0) if left and not left[0].startswith("--") else ""
    options: list[tuple[str, list[bytes]]] = []
    for word in left:
        if word.startswith("--"):
            options.append((word.removeprefix("--"), []))
        elif options:
            options[-1][1].append(os.fsencode(word))
        else:
            raise ConfigError([ConfigProblem("disque-server", 0, 0, f"unexpected argument {word!r}: see --help")])
    is_insecure = ("insecure", []) in options
    options = [option for option in options if option != ("insecure", [])]
    is_stdin = file == "-"
    path = os.path.abspath(file) if file and not is_stdin else ""
    content = sys.stdin.buffer.read() if is_stdin else b""
    return DisqueConf(files, os.getcwd(), path, options, content), is_insecure


def configuration(conf: DisqueConf, *, is_insecure: bool) -> Config:
    """Build the server's configuration from the directives. Raises ConfigError."""
    problems = []
    if conf.text(b"daemonize") == "yes":
        advice = "is not supported: disque-server stays in the foreground; have systemd start it, or a shell with &"
        problems.append(conf.problem(b"daemonize", f"daemonize yes {advice}"))
    if not FileLayer().is_dir(conf.dir):
        problems.append(conf.problem(b"dir", f"dir: {conf.dir} is not a directory"))
    addresses: tuple[Address, ...] = ()
    try:
        addresses = tuple(addresses_of(conf))
    except ValueError as error:
        problems.append(conf.problem(b"bind", f"bind: {error}"))
    if not addresses and not problems:
        problems.append(conf.problem(b"port", "no address to listen on: set port or unixsocket"))
    if problems:
        raise ConfigError(problems)
    config = Config(
        memcache=(),
        admin=None,
        disque=addresses,
        queue_path=conf.in_dir(conf.text(b"cluster-config-file", NODES_FILE) + SPOOL_SUFFIX),
        jobs_journal=conf.text(b"appendonly") == "yes",
        jobs_sync_journal_ms=SYNC_MS[conf.text(b"appendfsync", "everysec").encode()],
        tls_certificate=path_of(conf, b"tls-cert-file"),
        tls_key=path_of(conf, b"tls-key-file"),
        tls_client_ca=path_of(conf, b"tls-ca-cert-file"),
        tls_client_certificate_required=conf.text(b"tls-auth-clients", "yes") == "yes",
        insecure=is_insecure,
        has_password=bool(conf.text(b"requirepass")),
        jobs_min_replicate=int(conf.text(b"jobs-min-replicate", "0")) or None,
        cluster_port=int(conf.text(b"cluster-port", "0")) or BUS_PORT_OF_CLIENTS,
        cluster_announce=announce_of(conf),
        cluster_secret_file=path_of(conf, b"cluster-secret-file"),
        cluster_tls=conf.text(b"tls-cluster") == "yes",
        cluster_node_timeout_ms=int(conf.text(b"cluster-node-timeout", "15000")),
        source=conf.path or "options",
    )
    check_tls(conf, config)
    exposed = config.exposed()
    if exposed is not None:
        advice = "set requirepass, bind 127.0.0.1, use tls-port with tls-ca-cert-file, or pass --insecure"
        reason = f"{exposed} is reachable from other machines without authentication: {advice}"
        raise ConfigError([conf.problem(b"bind", reason)])
    conf.needs_password = replace(config, has_password=False).exposed() is not None
    return with_bus(with_secret(FileLayer(), conf, config), conf)


def check_tls(conf: DisqueConf, config: Config) -> None:
    """Raise ConfigError if TLS is configured without its certificates."""
    if any(address.tls for address in config.disque or ()) and config.tls_certificate is None:
        raise ConfigError([conf.problem(b"tls-port", "tls-port requires tls-cert-file and tls-key-file")])
    if config.cluster_tls and (config.tls_certificate is None or config.tls_client_ca is None):
        reason = "tls-cluster requires tls-cert-file, tls-key-file and tls-ca-cert-file"
        raise ConfigError([conf.problem(b"tls-cluster", reason)])


def with_secret(files: FileLayer, conf: DisqueConf, config: Config) -> Config:
    """Return the configuration with the current content of `cluster-secret-file`. Raises ConfigError."""
    path = config.cluster_secret_file
    if path is None:
        return config
    try:
        return replace(config, cluster_secret=read_secret(files, path))
    except OSError as error:
        must_be_the_systems(error)
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise ConfigError([conf.problem(b"cluster-secret-file", f"cluster-secret-file: {path}: {reason}")])


def with_bus(config: Config, conf: DisqueConf) -> Config:
    """Note where `cluster-port` is set, if it is. Raises ConfigError if that exposes the bus without authentication."""
    if config.cluster_port == BUS_PORT_OF_CLIENTS:
        return config
    exposed = config.exposed_bus([one for one in config.disque or () if not one.path])
    if exposed is not None:
        reason = f"cluster-port: {bus_exposure_reason(exposed, 'cluster-secret-file or tls-cluster')}"
        raise ConfigError([conf.problem(b"cluster-port", reason)])
    return replace(config, places={"cluster_port": SourceLocation(conf.problem(b"cluster-port", "").source)})


def announce_of(conf: DisqueConf) -> Announce | None:
    """Return the address to announce to other nodes, None if none is set. Raises ConfigError."""
    ports = [int(conf.text(name, "0")) or None for name in (b"cluster-announce-port", b"cluster-announce-bus-port")]
    host = conf.text(b"cluster-announce-ip")
    if not host:
        if any(ports):
            reason = "cluster-announce-port and cluster-announce-bus-port require cluster-announce-ip"
            raise ConfigError([conf.problem(b"cluster-announce-port", reason)])
        return None
    try:
        announce = Announce.parse(f"[{host}]" if ":" in host else host)
    except ValueError as error:
        raise ConfigError([conf.problem(b"cluster-announce-ip", f"cluster-announce-ip: {error}")]) from None
    return replace(announce, port=ports[0], bus_port=ports[1])


def addresses_of(conf: DisqueConf) -> list[Address]:
    """Return the addresses to listen on. Raises ValueError."""
    hosts = [word.decode("utf-8", "surrogateescape") for word in conf.words(b"bind")] or ["127.0.0.1"]
    found = []
    for kind, port in (("", conf.text(b"port", str(PORT))), ("tls:", conf.text(b"tls-port", "0"))):
        for host in hosts if port != "0" else ():
            found.append(Address.parse(f"{kind}[{host}]:{port}" if ":" in host else f"{kind}{host}:{port}"))
    if conf.text(b"unixsocket"):
        address = Address.parse(f"unix:{conf.in_dir(conf.text(b'unixsocket'))}")
        mode = int(conf.text(b"unixsocketperm", "0"), 8)
        found.append(replace(address, mode=mode) if mode else address)
    return found


def path_of(conf: DisqueConf, name: bytes) -> str | None:
    """Return the path in a directive, None if it is not set. Raises ConfigError."""
    text = conf.text(name)
    try:
        return usable_path(conf.in_dir(text)) if text else None
    except ValueError as error:
        raise ConfigError([conf.problem(name, f"{name.decode()}: {error}")]) from None


def log_of(files: FileLayer, conf: DisqueConf) -> Log:
    """Return the log, on stderr or in `logfile`, which may be moved away at any time. Raises ConfigError."""
    log = stderr_log(is_timed=True)
    if conf.text(b"logfile"):
        path = conf.in_dir(conf.text(b"logfile"))
        try:
            files.append(path, b"")
        except OSError as error:
            must_be_the_systems(error)
            reason = f"logfile: {path}: {error.strerror}"
            raise ConfigError([conf.problem(b"logfile", reason)]) from None
        log = Log(LogFormat.TEXT, is_timed=True, write=partial(append_text, files, path))
    if conf.text(b"loglevel") == "warning":
        log.say_up_to(Level.WARNING)
    return log


def append_text(files: FileLayer, path: str, text: str) -> None:
    """Append to the log file. Raises OSError."""
    files.append(path, text.encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    sys.exit(main())
