"""packaging/debian: the package that its script builds, what is in it, and a kestreld that runs where it installs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from kestreld import __version__
from kestreld.config.config_file import load
from tests.support.compiled import can_compile_for, uncompiled
from tests.support.daemon import READY, ROOT, STOP_S
from tests.support.process import environment
from tests.support.queue_client import QueueClient

FOLDER: Final = ROOT / "packaging" / "debian"
PYTHON: Final = "/usr/bin/python3"
IS_COMPILED: Final = "SEARCH" in os.environ  # which takes some minutes
# /opt is the package's there, and nobody else sees it.
IN_ITS_PLACE: Final = (
    *("unshare", "--mount", "--fork", "--kill-child", "sh", "-euc"),
    'mount -t tmpfs none /opt; mkdir /opt/kestreld; mount --bind "$0" /opt/kestreld; exec "$@"',
)


@cache
def can_build() -> bool:
    return (
        shutil.which("dpkg-deb") is not None
        and subprocess.run([PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode == 0
        and can_compile_for(PYTHON)
    )


@cache
def is_let_install() -> bool:
    return os.geteuid() == 0 and subprocess.run([*IN_ITS_PLACE, "/tmp", "true"], capture_output=True).returncode == 0


# Texts: what they say is asked where a test is run, not by each process that reads the file.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "not can_build()", reason="needs dpkg, a system Python of 3.11 or newer with its headers, and a C compiler"
    ),
]
can_install = pytest.mark.skipif("not is_let_install()", reason="needs root and mount namespaces")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    variables = environment() | {"PIP": f"{sys.executable} -m pip", "KESTRELD_COMPILE": f"{IS_COMPILED:d}"}
    built = subprocess.run([FOLDER / "build", folder], cwd="/", env=variables, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    (path,) = folder.iterdir()
    assert built.stdout == f"{path}\n"
    return path


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root of its own with nothing but the package in it."""
    root = tmp_path_factory.mktemp("root")
    (root / "var" / "lib" / "dpkg").mkdir(parents=True)
    (root / "var" / "lib" / "dpkg" / "status").touch()
    dpkg(root, "--install", str(package))
    yield root
    dpkg(root, "--remove", "kestreld")
    assert not (root / "opt").exists()
    assert (root / "etc" / "kestreld" / "kestreld.yaml").exists()
    dpkg(root, "--purge", "kestreld")
    assert not (root / "etc" / "kestreld").exists()


def dpkg(root: Path, *words: str) -> None:
    """Debian's Python and C library are not in this root."""
    done = subprocess.run(
        ["dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def listing(package: Path) -> dict[str, tuple[str, str]]:
    """Path -> mode and owner, as the package has them; a link with where it leads."""
    shown = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    matched = [re.fullmatch(r"(\S+) (\S+) +\d+ \S+ \S+ \.(/.*)", line) for line in shown.splitlines()]
    return {found[3]: (found[1], found[2]) for found in matched if found is not None}


def test_everything_is_where_debian_looks_for_it(package: Path) -> None:
    found = listing(package)
    assert {
        "/usr/bin/kestreld -> /opt/kestreld/bin/kestreld",
        "/usr/bin/kestrelctl -> /opt/kestreld/bin/kestrelctl",
        "/usr/bin/disque-server -> /opt/kestreld/bin/disque-server",
        "/opt/kestreld/bin/kestreld",
        "/etc/kestreld/kestreld.yaml",
        "/usr/lib/systemd/system/kestreld.service",
        "/usr/lib/systemd/system/kestreld@.service",
        "/usr/lib/systemd/system/kestreld.socket",
        "/usr/lib/systemd/system/kestrel-journal-verify.service",
        "/usr/lib/systemd/system/kestrel-journal-verify.timer",
        "/usr/lib/sysusers.d/kestreld.conf",
        "/usr/share/bash-completion/completions/kestreld",
        "/usr/share/bash-completion/completions/kestrelctl",
        "/usr/share/zsh/vendor-completions/_kestreld",
        "/usr/share/zsh/vendor-completions/_kestrelctl",
        "/usr/share/fish/vendor_completions.d/kestrelctl.fish",
        "/usr/share/man/man1/kestrelctl.1.gz",
        "/usr/share/man/man5/kestreld.yaml.5.gz",
        "/usr/share/man/man8/kestreld.8.gz",
        "/usr/share/doc/kestreld/copyright",
        "/usr/share/kestreld/grafana/kestreld.json",
    } <= set(found)
    pages = {f"/usr/share/man/{path.parent.name}/{path.name}.gz" for path in (ROOT / "packaging/man").glob("man*/*")}
    assert pages <= set(found)


def test_only_root_can_change_what_is_installed(package: Path) -> None:
    found = listing(package)
    assert {owner for _, owner in found.values()} == {"root/root"}
    assert [path for path, (mode, _) in found.items() if mode[0] != "l" and "w" in mode[4:]] == []


def test_nothing_tells_where_it_was_built(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", package, tmp_path / "tree"], check=True)
    pieces = [f"{ROOT}/".encode(), b"/tmp/tmp.", b"/tmp/kestreld-", b"/tmp/pip-"]
    telling = [
        path.relative_to(tmp_path)
        for path in (tmp_path / "tree").rglob("*")
        if path.is_file() and not path.is_symlink() and any(piece in path.read_bytes() for piece in pieces)
    ]
    assert telling == []


def test_it_is_of_one_version_of_python(package: Path) -> None:
    shown = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"^(\S+): (.*)$", shown, re.MULTILINE))
    release = subprocess.run(
        [PYTHON, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    ).stdout.strip()
    assert (fields["Package"], fields["Version"]) == ("kestreld", __version__)
    assert fields["Depends"].split(", ")[0] == release
    lib = f"/opt/kestreld/lib/{release}/site-packages"
    assert f"{lib}/kestreld/daemon.py" in listing(package)
    assert f"{lib}/kestreld/__pycache__/daemon.{release.replace('python3.', 'cpython-3')}.pyc" in listing(package)


@can_install
def test_the_configuration_is_the_operators(installed: Path) -> None:
    text = (installed / "etc/kestreld/kestreld.yaml").read_text()
    assert load(text, "kestreld.yaml").queue_path == "/var/lib/kestreld/spool"
    shown = (installed / "var/lib/dpkg/status").read_text()
    assert re.search(r"^Conffiles:\n /etc/kestreld/kestreld.yaml ", shown, re.MULTILINE)


@can_install
@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_there_is_an_account_for_it(installed: Path) -> None:
    assert re.search(r"^kestreld:.*:/var/lib/kestreld:/usr/sbin/nologin$", (installed / "etc/passwd").read_text(), re.M)


@can_install
@pytest.mark.skipif(not IS_COMPILED, reason="a second compiled build: SEARCH=1 makes it, as does make prove")
def test_it_is_compiled(installed: Path) -> None:
    place = [*IN_ITS_PLACE, str(installed / "opt/kestreld")]
    shown = subprocess.run([*place, "/opt/kestreld/bin/kestreld", "--version"], capture_output=True, text=True, cwd="/")
    assert shown.stdout == f"kestreld {__version__} (compiled)\n"
    assert uncompiled([*place, "/opt/kestreld/bin/python3", "-I"]) == []


@can_install
def test_kestreld_and_kestrelctl_run_from_there(installed: Path, tmp_path: Path) -> None:
    config = (installed / "etc/kestreld/kestreld.yaml").read_text()
    config = config.replace("/var/lib/kestreld", str(tmp_path)).replace("127.0.0.1:22133", "127.0.0.1:0")
    (tmp_path / "kestreld.yaml").write_text(config.replace("127.0.0.1:2223", "127.0.0.1:0"))
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "not-here"), "HOME": str(tmp_path)}
    place = [*IN_ITS_PLACE, str(installed / "opt/kestreld")]
    command = [*place, "/opt/kestreld/bin/kestreld", "--config", str(tmp_path / "kestreld.yaml")]
    with subprocess.Popen(command, env=variables, cwd="/", stderr=subprocess.PIPE, text=True) as outer:
        assert outer.stderr is not None
        try:
            found = READY.search(outer.stderr.readline())
            assert found is not None, outer.stderr.read()
            with QueueClient(found[1]) as client:
                client.put("work", b"hello")
            got = subprocess.run(
                [*place, "/opt/kestreld/bin/kestrelctl", "-s", found[1], "ls", "-o", "json"],
                env=variables,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert [(row["queue"], row["items"]) for row in json.loads(got.stdout)] == [("work", 1)], got.stderr
            (first,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            assert outer.stderr.read().endswith("kestreld: stopped\n")
            assert outer.wait(STOP_S) == 0
        finally:
            outer.kill()
