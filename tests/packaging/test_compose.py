"""packaging/docker/compose.yaml: its form, and that its nodes meet with the words that it has for them.

No container is made here.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support import forked
from tests.support.daemon import DISQUE, ROOT
from tests.support.process import environment
from tests.support.resp import resp_client
from tests.support.waiting import until

FOLDER: Final = ROOT / "packaging" / "docker"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
NODES: Final = [name for name in SERVICES if name.startswith("node")]
# Those of the Compose Specification that it uses: a key of another name is an error to Compose.
TOP: Final = {"name", "services", "volumes", "secrets", "x-node"}
OF_SERVICES: Final = {
    *("build", "image", "read_only", "secrets", "stop_grace_period", "restart", "command", "volumes", "ports"),
    *("profiles", "entrypoint", "healthcheck", "depends_on"),
}


def test_it_has_the_form_of_a_compose_file() -> None:
    assert set(COMPOSE) <= TOP
    assert NODES == ["node1", "node2", "node3"]
    for service in SERVICES.values():
        assert set(service) <= OF_SERVICES
        assert service["image"] == "kestreld"
    for name in NODES:
        node = SERVICES[name]
        build = node["build"]
        assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
        assert all(isinstance(word, str) for word in (*node["command"], *node["volumes"], *node["ports"]))
        ((volume, path),) = [one.split(":") for one in node["volumes"]]
        assert volume in COMPOSE["volumes"]
        assert f"VOLUME {path}\n" in (FOLDER / "Dockerfile").read_text()
        assert set(node["secrets"]) <= set(COMPOSE["secrets"])
    assert len({port for name in NODES for port in SERVICES[name]["ports"]}) == len(NODES)
    assert SERVICES["meet"]["depends_on"] == {name: {"condition": "service_healthy"} for name in NODES}


def test_its_nodes_meet_with_the_words_that_it_has_for_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret that all nodes share, of the test")
    config = (FOLDER / "kestreld.yaml").read_text()
    processes: list[subprocess.Popen[str]] = []
    places: dict[str, str] = {}
    try:
        for name in NODES:
            volume = tmp_path / name
            volume.mkdir()
            text = re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", config).replace("/var/lib/kestreld", str(volume))
            (volume / "kestreld.yaml").write_text(text)
            words = [
                word.replace("0.0.0.0:7711", "0.0.0.0:0")
                .replace("/run/secrets/cluster", str(tmp_path / "secret"))
                .replace(f"announce={name}", "announce=localhost")
                for word in SERVICES[name]["command"]
            ]
            command = [sys.executable, "-m", "kestreld", "--config", str(volume / "kestreld.yaml"), *words]
            processes.append(forked.Launched(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True))
            assert processes[-1].stderr is not None
            ready = next(line for line in processes[-1].stderr if " ready" in line)
            found = DISQUE.search(ready)
            assert found is not None, ready
            places[f"{name}:7711"] = f"127.0.0.1:{found[1].rpartition(':')[2]}"
        meet = [places.get(word, word) for word in SERVICES["meet"]["entrypoint"]]
        run = forked.run([sys.executable, "-m", *meet], None, 60, cwd=ROOT, env=environment(), text=True)
        assert (run.returncode, run.stderr) == (0, "")
        with resp_client(places["node2:7711"]) as client:
            until(lambda: b"cluster_size:3\r" in client("CLUSTER", "INFO"), "three nodes")
            assert client("ADDJOB", "q", "x", 5000).startswith(b"D-")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
