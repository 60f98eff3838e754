"""The keys bound are the keys documented."""

import re

import pytest
from textual.binding import Binding

from tests.support.daemon import ROOT
from tui.app import Console
from tui.commands import COMMANDS, parse
from tui.job_rows import JOB_COLUMNS
from tui.job_table import JobTable
from tui.keys import (
    CONSOLE_KEYS,
    DETAIL_KEYS,
    ITEM_KEYS,
    JOB_KEYS,
    JOB_LIST_KEYS,
    JOB_TABLE_KEYS,
    JOURNAL_KEYS,
    NODE_KEYS,
    NODE_TABLE_KEYS,
    OVERVIEW_KEYS,
    TABLE_KEYS,
)
from tui.node_rows import NODE_COLUMNS, STATES
from tui.node_table import NodeTable
from tui.queue_rows import COLUMNS, HEADINGS
from tui.screens.details import Details
from tui.screens.job_list import JobListScreen
from tui.screens.jobs import JobsScreen
from tui.screens.journal import JournalScreen
from tui.screens.nodes import NodesScreen
from tui.screens.overview import Overview
from tui.screens.waiting import ItemBox
from tui.table import QueueTable

PAGE = (ROOT / "docs/console.md").read_text()
BOUND = {
    Console: CONSOLE_KEYS,
    Overview: OVERVIEW_KEYS,
    QueueTable: TABLE_KEYS,
    Details: DETAIL_KEYS,
    ItemBox: ITEM_KEYS,
    JournalScreen: JOURNAL_KEYS,
    JobTable: JOB_TABLE_KEYS,
    JobsScreen: JOB_KEYS,
    JobListScreen: JOB_LIST_KEYS,
    NodeTable: NODE_TABLE_KEYS,
    NodesScreen: NODE_KEYS,
}


def test_the_page_of_the_console_lists_the_keys_that_are_bound_and_no_others() -> None:
    listed = re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    expected = [
        (key.shown, key.meaning)
        for keys in (
            CONSOLE_KEYS,
            TABLE_KEYS + OVERVIEW_KEYS,
            DETAIL_KEYS + ITEM_KEYS,
            JOURNAL_KEYS,
            JOB_TABLE_KEYS + JOB_KEYS,
            JOB_LIST_KEYS,
            NODE_TABLE_KEYS + NODE_KEYS,
        )
        for key in keys
    ]
    commands = [(f":{command.name} {command.argument}".strip(), command.meaning) for command in COMMANDS]
    assert listed == expected + commands


def test_each_screen_binds_its_keys_to_something_it_can_do() -> None:
    for owner, keys in BOUND.items():
        bindings = [binding for binding in owner.BINDINGS if isinstance(binding, Binding)]
        assert [binding.key for binding in bindings] == [key.keys for key in keys]
        for key in keys:
            name = key.action.partition("(")[0]
            target = Console if name.startswith("app.") else owner
            assert hasattr(target, f"action_{name.removeprefix('app.')}"), key


def test_the_page_of_the_console_explains_every_column() -> None:
    table = PAGE.partition("| column |")[2].partition("\n\n")[0]
    explained = {
        name.strip() for cells in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for name in cells.split(",")
    }
    assert {HEADINGS.get(column, column) for column in COLUMNS} | {"depth"} == explained - {"---"}
    assert all(f"`{column}`" in PAGE for column in (*COLUMNS[1:], *JOB_COLUMNS[1:], *NODE_COLUMNS[3:]))
    assert re.findall(
        r"^\| ([a-z ]+) \|", PAGE.partition("| state of a node |")[2].partition("\n\n")[0], re.MULTILINE
    ) == [*reversed(STATES)]


def test_each_command_is_one_that_the_console_can_do_and_short_forms_are_too() -> None:
    assert all(command.action or hasattr(Console, f"command_{command.name}") for command in COMMANDS)
    assert [parse(line)[0].name for line in (":q", "quit", "so items", ": filt x", "h", "jour")] == [
        "quit", "quit", "sort", "filter", "help", "journal",
    ]  # fmt: skip
    for line, words in (("fly", "no command 'fly'"), ("re", "may be"), ("sort", "requires"), ("quit now", "takes no")):
        with pytest.raises(ValueError, match=words):
            parse(line)
