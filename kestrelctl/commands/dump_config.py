"""`kestrelctl dump-config`: print the settings in force for every queue."""

from typing import Annotated

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import Blocks, Remote

OriginsOption = Annotated[bool, option("--origins", help="Say where each setting is from, as NAME_from.")]


def dump_config(output: Blocks, remote: Remote, origins: OriginsOption = False) -> None:
    """Print the settings in force for every queue, in the server's blocks. Kestrel 2 does not have this.

    --origins says where each is from: `default`, a line of the configuration, or with the name of its block if that is
    not the queue's own. A pattern further down that matches, too, is named behind `before`.
    """
    output.write(remote.client().dump_config(origins=origins))
