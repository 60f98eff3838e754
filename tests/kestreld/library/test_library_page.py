"""docs/library.md: its examples do what they say."""

import doctest
import re
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.daemon import running_daemon
from tests.support.shared_spools import await_end, new_spool, server_pid
from tests.support.shell import Kestrelctl

PAGE = Path(__file__).parents[3] / "docs" / "library.md"
SERVERS: Final = "Several servers"
SHARED: Final = "A spool for several processes"
ELSEWHERE: Final = (SERVERS, SHARED)  # sections whose examples need a server


def section(title: str) -> str:
    """What stands under a heading."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def run_examples(text: str, names: dict[str, object], least: int) -> None:
    examples = doctest.DocTestParser().get_doctest(text, names | {"__name__": "__main__"}, "library.md", str(PAGE), 0)
    assert len(examples.examples) >= least
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_the_examples_on_the_page_do_what_they_say(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for elsewhere in ELSEWHERE:
        text = text.replace(section(elsewhere), "")
    text = text.replace("/var/spool/kestrel", str(tmp_path))
    reacted = threading.Event()

    def say(words: str) -> None:
        said.append(words)
        reacted.set()

    said: list[str] = []
    # What the callback prints comes from another thread, and so at any time.
    text = text.replace("500, True, react)\ngot: hello\n", "500, True, react)\n>>> assert reacted.wait(60)\n")
    names = {"print": say, "reacted": reacted}
    text = text.replace(">>> print(second.result())\nNone\n", ">>> second.result() is None\nTrue\n")
    run_examples(text, names, 16)
    assert said == ["got: hello"]


def test_the_examples_with_several_servers_do_what_they_say(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "1") as first, running_daemon(tmp_path / "2") as second:
        text = section(SERVERS)
        for number, daemon in ((1, first), (2, second)):
            text = text.replace(f"queue{number}.example.org:22133", daemon.address)
        text = re.sub(r"sorted\(cluster.stats\(\)\) == (.*)", r"sorted(cluster.stats()) == sorted(\1)", text)
        run_examples(text, {}, 12)


def test_the_examples_with_a_shared_spool_do_what_they_say(tmp_path: Path) -> None:
    with new_spool() as spool:
        text = section(SHARED).replace("/var/spool/shared", str(spool))
        run_examples(text, {"time": time}, 8)
        (command,) = re.findall(r"^    (kestrelctl .*)$", text, re.MULTILINE)
        pid = server_pid(spool)
        assert Kestrelctl("", tmp_path)(*command.split()[1:]).code == 0
        await_end(pid)
        assert (spool / ".kestreld.log").read_text().endswith("kestreld: stopped\n")
