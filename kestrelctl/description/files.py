"""The files of a checkout that are generated from the command tree, by path."""

from collections.abc import Set

from kestrelctl.description import bash, fish, man, zsh
from kestrelctl.description.settings import setting_names
from kestrelctl.description.tree import kestrelctl_tree, kestreld_tree


def generated(wanted: Set[str]) -> dict[str, str]:
    """Contents of the generated files by path from the root of the checkout: `completions`, `man`, or both."""
    files: dict[str, str] = {}
    if "completions" in wanted:
        settings = setting_names()
        for program in (kestrelctl_tree(), kestreld_tree()):
            files[f"completions/{program.program}.bash"] = bash.script(program, settings)
            files[f"completions/_{program.program}"] = zsh.script(program, settings)
            files[f"completions/{program.program}.fish"] = fish.script(program, settings)
    if "man" in wanted:
        files |= {f"packaging/man/man1/{name}": page for name, page in man.pages(kestrelctl_tree()).items()}
    return files
