"""The man pages: those of kestrelctl are the command tree, the others name all there is, and man has no complaints."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelctl.description.files import generated
from kestrelctl.description.tree import Command, kestrelctl_tree, kestreld_tree
from kestrelctl.shell.exit_codes import ExitCode
from kestreld import __version__
from kestreld.config.settings import SETTINGS
from kestreld.daemon import ExitCode as DaemonExitCode
from kestreld.journal.job_records import JobType
from kestreld.journal.records import Type
from kestreld.server.disque import directives

ROOT: Final = Path(__file__).parents[2]
MAN: Final = ROOT / "packaging" / "man"
PAGES: Final = sorted(MAN.glob("man*/*"))


def words_of(page: Path) -> str:
    """The page without what is roff's own."""
    text = page.read_text().replace("\\(aq", "'").replace("\\-", "-")
    return re.sub(r"\\f[A-Z]|\\\[u2026\]", "", text)


def commands() -> Iterator[Command]:
    yield from kestrelctl_tree().walk()


def test_the_pages_of_kestrelctl_are_those_that_the_command_tree_gives() -> None:
    made = generated({"man"})
    stale = [path for path, content in made.items() if (ROOT / path).read_text() != content]
    left_over = {f"packaging/man/man1/{page.name}" for page in MAN.glob("man1/kestrelctl*")} - set(made)
    assert (stale, left_over) == ([], set()), "run make man"


def test_the_pages_name_every_command_option_and_example() -> None:
    overview = words_of(MAN / "man1" / "kestrelctl.1")
    for command in commands():
        page = words_of(MAN / "man1" / f"{'-'.join(('kestrelctl', *command.path))}.1")
        for option in command.options:
            assert option.is_shared or all(re.search(rf"{re.escape(name)}\b", page) for name in option.names)
        for example in command.examples:
            assert example.split(" ", 2)[1] in page
        if len(command.path) == 1:
            assert f"kestrelctl-{command.words} (1)" in overview
    for code in ExitCode:
        assert f".B {code.value}\n{code.meaning.partition(',')[0]}" in overview


def test_the_page_of_kestreld_names_its_options_commands_and_exit_codes() -> None:
    page = words_of(MAN / "man8" / "kestreld.8")
    program = kestreld_tree()
    names = {name for option in program.options for name in option.names} | {each.words for each in program.commands}
    assert {"--config", "hash-password"} <= names
    assert [name for name in sorted(names) if name not in page] == []
    assert {int(code) for code in re.findall(r"^\.B (\d+)$", page, re.MULTILINE)} == set(DaemonExitCode)


def test_the_page_of_disque_server_names_every_directive() -> None:
    page = words_of(MAN / "man1" / "disque-server.1")
    named = set(re.findall(r"[a-z-]+", " ".join(re.findall(r"^\.BR? (.*)$", page, re.MULTILINE))))
    assert {name.decode() for name in directives.NAMES} - named == set()


def test_the_page_of_the_configuration_names_every_setting() -> None:
    page = words_of(MAN / "man5" / "kestreld.yaml.5")
    named = set(re.findall(r"[a-z_.]+", " ".join(re.findall(r"^\.BR (.*)$", page, re.MULTILINE))))
    assert {setting.name for setting in SETTINGS} - named == set()


def test_the_page_of_the_journal_names_every_record() -> None:
    page = words_of(MAN / "man5" / "kestrel-journal.5")
    shown = dict(re.findall(r"^\.B (\d+) ([A-Z]+)$", page, re.MULTILINE))
    assert shown == {str(int(record)): record.name for record in Type}
    of_jobs = dict(re.findall(r"^\.B ([A-Z]+) (\d+)$", page, re.MULTILINE))
    assert of_jobs == {record.name: str(int(record)) for record in JobType}


@pytest.mark.exhaustive("kestreld", "kestrelctl-put", "kestrelctl.1", "journal-verify")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_its_name_version_and_nothing_that_man_complains_about(page: Path) -> None:
    header, _, _ = page.read_text().partition(".SH NAME")
    name, section = page.name.rsplit(".", 1)
    assert f'"{name.upper()}" {section} "" "kestreld {__version__}"' in header
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    run = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-z", str(page)], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    if shutil.which("lexgrog"):
        run = subprocess.run(["lexgrog", str(page)], capture_output=True, text=True)
        assert f'"{name} - ' in run.stdout


def test_the_wheel_installs_completions_and_man_pages_where_shells_and_man_look() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert [source for source in shared if not (ROOT / source).exists()] == []
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "completions").iterdir()} <= set(shared)
    targets = {
        target: [program for program in ("kestrelctl", "kestreld") if pattern.format(program) in shared.values()]
        for target, pattern in {
            "bash": "share/bash-completion/completions/{}",
            "zsh": "share/zsh/site-functions/_{}",
            "fish": "share/fish/vendor_completions.d/{}.fish",
        }.items()
    }
    assert targets == {shell: ["kestrelctl", "kestreld"] for shell in ("bash", "zsh", "fish")}
    assert shared["packaging/man"] == "share/man"
