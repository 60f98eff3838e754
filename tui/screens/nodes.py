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
        return nodes_in_order(self.console.board.node_rows(self.console.view), column, descending=descending)

    def totals(self, rows: Sequence[NodeRow]) -> str:
        return node_totals_line(rows)

    def about(self) -> list[str]:
        return cluster_lines(self.console.board.servers_in(self.console.view))

    def troubles(self) -> list[str]:
        board, view = self.console.board, self.console.view
        return cluster_trouble(board.node_rows(view), board.servers_in(view))
