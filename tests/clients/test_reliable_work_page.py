"""docs/reliable-work.md: its examples do what they say, those for other clients where these are installed."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.preparing import Missing, Run, of_go, of_node, python_with
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliable-work.md"
EXAMPLES: Final = re.findall(r"^```(python|js|go|sh)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ADDRESS: Final = re.compile(r"(?:localhost|127\.0\.0\.1):22133")
PRINTED: Final = {
    "python": "",
    "js": "resize cat.jpg true true\n",
    "go": "resize cat.jpg <nil> <nil>\n",
    "sh": "what the commands show",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With the page's configuration, only that nobody waits as long for a retry."""
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    short = config.replace("[1s, 10s, 1m]", "[200ms, 300ms]")
    assert short != config
    with running_daemon(tmp_path_factory.mktemp("kestreld"), config=short, admin="127.0.0.1:0") as running:
        yield running


def name_of(number: int) -> str:
    language, text = EXAMPLES[number]
    return f"{number}-{'pylibmc' if 'import pylibmc' in text else language}"


def prepared(language: str, text: str, address: str, folder: Path) -> Run:
    """Raises Missing."""
    match language:
        case "js":
            (folder / "example.js").write_text(text)
            return of_node("memcached", folder / "example.js")
        case "sh":
            return Run(("sh", "-euc", text), Kestrelctl(address, folder).environment)
        case "go":
            return of_go(folder, text)
        case _:
            (folder / "example.py").write_text(text)
            python = python_with("pylibmc") if "import pylibmc" in text else sys.executable
            return Run((python, str(folder / "example.py")))


def test_there_is_an_example_for_each_client_and_for_each_choice() -> None:
    assert [language for language, _ in EXAMPLES].count("python") >= 7
    assert {language for language, _ in EXAMPLES} == set(PRINTED)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=name_of(number), marks=[pytest.mark.long] if language == "go" else [])
        for number, (language, _) in enumerate(EXAMPLES)
    ],
)
def test_an_example_does_what_it_says_and_leaves_nothing(daemon: Daemon, tmp_path: Path, number: int) -> None:
    language, text = EXAMPLES[number]
    spool = tmp_path / "spool"
    text = ADDRESS.sub(daemon.address, text).replace("/var/spool/kestrel", str(spool))
    try:
        run = prepared(language, text, daemon.address, tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(run.command, env=run.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[language] or language == "sh"
    with QueueClient(daemon.port) as client:
        for queue in ("work", "work-dead"):
            assert client.drain(queue) == []
            assert client.queue_stats(queue)["open_transactions"] == "0"
            client.do(b"delete " + queue.encode(), b"DELETED\r\n")
