"""The table of the nodes of a cluster."""

from typing import ClassVar, Final

from tui.figure_table import FigureTable
from tui.keys import NODE_TABLE_KEYS, bindings
from tui.node_rows import (
    DOWN,
    ID_SHOWN,
    LEAVING,
    NODE_COLUMNS,
    NODE_FIGURES,
    NODE_HEADINGS,
    TROUBLE,
    NodeRow,
    node_cell,
)
from tui.states import STOPPED, STUCK

STATE_WIDTH: Final = 11


class NodeTable(FigureTable[NodeRow]):
    BINDINGS = bindings(NODE_TABLE_KEYS)
    COLUMNS = NODE_COLUMNS
    HEADINGS = NODE_HEADINGS
    WIDTHS: ClassVar = {"id": ID_SHOWN + 2, "state": STATE_WIDTH} | {
        column: figure.width for column, figure in NODE_FIGURES.items()
    }

    def cell(self, row: NodeRow, column: str) -> str:
        return node_cell(row, column)

    def is_idle(self, row: NodeRow) -> bool:
        return row.state == LEAVING

    def trouble(self, row: NodeRow, column: str) -> str:
        if column != "state" or row.state not in TROUBLE:
            return ""
        return STOPPED if row.state == DOWN else STUCK

    def action_open(self) -> None:
        """Do nothing: nodes have no details."""
