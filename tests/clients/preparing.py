"""How each client's program is run, if what it needs is installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent / "programs"
DEBIANS_PYTHON: Final = "/usr/bin/python3"
GOMEMCACHE: Final = "github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c"


class Missing(Exception):
    """What a client needs is not installed: what it is, and how to get it."""


@dataclass(frozen=True, slots=True)
class Run:
    """How to run a program of ours. Port and queue come behind the command, and then `more`."""

    command: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    more: tuple[str, ...] = ()
    lacks: frozenset[str] = frozenset()  # operations that the client does not have


Prepare = Callable[[Path], Run]  # in a folder of its own; raises Missing


def python_with(module: str) -> str:
    """An interpreter that has the module: this one, or Debian's."""
    for python in (sys.executable, DEBIANS_PYTHON):
        if (
            shutil.which(python)
            and not subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode
        ):
            return python
    raise Missing(f"no Python here has the module {module}")


def of_python(module: str) -> Run:
    return Run((python_with(module), str(PROGRAMS / "python_client.py"), module))


def of_binary_python() -> Run:
    return Run((python_with("bmemcached"), str(PROGRAMS / "binary_client.py")))


def of_php(*more: str) -> Run:
    php = needed("php", "php-cli")
    if "memcached" not in subprocess.run([php, "-m"], capture_output=True, text=True).stdout.split():
        raise Missing("PHP has no extension memcached: apt install php-memcached")
    return Run((php, str(PROGRAMS / "client.php")), more=more)


def of_perl() -> Run:
    perl = needed("perl", "perl")
    if subprocess.run([perl, "-MCache::Memcached", "-e1"], capture_output=True).returncode:
        raise Missing("Perl has no Cache::Memcached: apt install libcache-memcached-perl")
    return Run((perl, str(PROGRAMS / "client.pl")))


def of_node(module: str, program: str | Path) -> Run:
    """NODE_PATH says where Node's modules are, beside where npm installs them for all."""
    node = needed("node", "nodejs")
    folders = [os.environ.get("NODE_PATH", ""), "/usr/lib/node_modules", "/usr/local/lib/node_modules"]
    environment = {**os.environ, "NODE_PATH": ":".join(filter(None, folders))}
    known = subprocess.run([node, "-e", f"require.resolve('{module}')"], env=environment, capture_output=True)
    if known.returncode:
        raise Missing(f"Node has no module {module}: npm install --global {module}")
    return Run((node, str(PROGRAMS / program)), environment)


def of_go(folder: Path, program: str) -> Run:
    """With a gomemcache of which `CasID` is public. Nothing is fetched here."""
    go = needed("go", "golang-go")
    (folder / "client.go").write_text(program)
    (folder / "go.mod").write_text(f"module client\n\ngo 1.18\n\nrequire {GOMEMCACHE}\n")
    environment = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "GOPROXY": "off", "GOSUMDB": "off"}
    build = [go, "build", "-o", "client", "."]
    built = subprocess.run(build, cwd=folder, env=environment, capture_output=True, text=True)
    if "module lookup disabled" in built.stderr:
        raise Missing(f"no gomemcache: go mod download {GOMEMCACHE.replace(' ', '@')}")
    assert built.returncode == 0, built.stderr
    return Run((str(folder / "client"),))


def needed(command: str, package: str) -> str:
    found = shutil.which(command)
    if found is None:
        raise Missing(f"no {command}: apt install {package}")
    return found
