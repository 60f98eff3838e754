"""Kombu's own integration suite, the cases that all its transports share, run on this one.

The suite is not in Kombu's package but in its source archive, which pip fetches; KOMBU_SOURCE names a folder with
`t/integration/common.py` instead.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.daemon import running_daemon

pytestmark = pytest.mark.long
CLASSES = (
    "BasicFunctionality",
    "BaseExchangeTypes",
    "BaseTimeToLive",
    "BasePriority",
    "BaseMessage",
    "BaseEventLoop",  # since 5.7
    "BaseFailover",
)
CASES = {"5.7": 47, "5.5": 40}
# Its Redis transport delivers one message with each call, too, and lower numbers first: it has two cases of its own.
OF_REDIS = re.compile(r"^class test_RedisPriority\(BasePriority\):\n(?:.*\n)*?(?=\n\n\S)", re.MULTILINE)


def source_of(version: str, folder: Path) -> Path:
    """The folder of Kombu's source."""
    if "KOMBU_SOURCE" in os.environ:
        return Path(os.environ["KOMBU_SOURCE"])
    command = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder]
    done = subprocess.run([sys.executable, "-m", *command, f"kombu=={version}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the source of kombu {version}, which pip could not fetch: {done.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("kombu-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"kombu-{version}"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kombu_shared_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, str, str]:
    version = importlib.metadata.version("kombu")
    folder = source_of(version, tmp_path_factory.mktemp("kombu")) / "t" / "integration"
    assert (folder / "common.py").exists(), folder
    return loaded(folder / "common.py"), (folder / "test_redis.py").read_text(), version.rpartition(".")[0]


def test_all_shared_cases_pass(suite: tuple[ModuleType, str, str], tmp_path: Path) -> None:
    shared, of_redis, version = suite
    import kombu

    import kestreld.integrations.celery

    assert kestreld.integrations.celery
    classes = {name: getattr(shared, name) for name in CLASSES if hasattr(shared, name)}
    found = OF_REDIS.search(of_redis)
    assert found is not None
    names: dict[str, Any] = {**vars(shared), **vars(kombu), "kombu": kombu}
    exec(found[0], names)
    classes["BasePriority"] = names["test_RedisPriority"]
    passed = []
    with running_daemon(tmp_path) as daemon:
        url = f"kestrel://{daemon.address}"
        fixtures = {
            "connection": lambda: kombu.Connection(url),
            "invalid_connection": lambda: kombu.Connection("kestrel://127.0.0.1:1"),
            "failover_connection": lambda: kombu.Connection(f"kestrel://127.0.0.1:1;{url}"),
        }
        for kind in classes.values():
            for name in [name for name in dir(kind) if name.startswith("test_")]:
                case = getattr(kind(), name)
                arguments = {
                    one: fixtures[one]()
                    for one in fixtures
                    if one in case.__code__.co_varnames[: case.__code__.co_argcount]
                }
                case(**arguments)
                passed.append(f"{kind.__name__}.{name}")
                for connection in arguments.values():
                    connection.close()
    print(f"{len(passed)} cases of kombu {version} passed")
    assert len(passed) == CASES.get(version, len(passed)) >= 40
