"""`kestrelctl help`: the help of a verb, or the list of all exit codes."""

from typing import Annotated

from kestrelctl.commands.declared import argument
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, table_of


def show_help(
    words: Annotated[
        list[str] | None, argument(metavar="[VERB]...", help="A verb, or exit-codes.", show_default=False)
    ] = None,
) -> None:
    """Explain a verb, as `-h` behind it does; `help exit-codes` lists all exit codes."""
    if words == ["exit-codes"]:
        output.write_data(f"{table_of(ExitCode)}\n".encode())
        return
    from kestrelctl.command_tree import explain

    explain([*(words or ()), "--help"])
