"""Screen with the nodes of a cluster: states, lag, queued bytes, and jobs given and taken."""

from collections.abc import Sequence

from tui.keys import NODE_KEYS, bindings
from tui.node_rows import NodeRow, nodes_in_order
from tui.node_table import NodeTable
from tui.screens.figures import FigureScreen
from tui.summaries import cluster_lines, cluster_trouble, node_totals_line


class NodesScreen(FigureScreen[NodeRow]):
    BINDINGS = bindings(NODE_KEYS)
    TITLE_WORD = "nodes"
    TABLE = NodeTable
    ASCENDING = ("address", "id")

    def rows_in_order(self, column: str, *, descending: bool) -> list[NodeRow]:
        return nodes_in_order(self.session.board.node_rows(), column, descending=descending)

    def totals(self, rows: Sequence[NodeRow]) -> str:
        return node_totals_line(rows)

    def about(self) -> list[str]:
        return cluster_lines(self.session.board.servers_in())

    def troubles(self) -> list[str]:
        board = self.session.board
        return cluster_trouble(board.node_rows(), board.servers_in())
