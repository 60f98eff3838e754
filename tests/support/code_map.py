"""The map of the code, docs/map.md: the first line of every module, by product and folder. `make pages` writes it."""

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MAP: Final = ROOT / "docs" / "map.md"
LINE_MAX: Final = 110  # of what a module says of itself
# Each folder of modules belongs to one product; of the other products a change needs to know nothing.
PRODUCTS: Final[dict[str, tuple[str, ...]]] = {
    "The daemon": (
        "kestreld",
        "kestreld/config",
        "kestreld/server",
        "kestreld/server/admin",
    ),
    "Queues": ("kestreld/queues", "kestreld/journal", "kestreld/journal/kestrel", "kestreld/server/memcache"),
    "Jobs and clusters": ("kestreld/jobs", "kestreld/server/disque", "kestreld/cluster", "kestreld/server/bus"),
    "Cache": ("kestreld/cache", "kestreld/server/cache"),
    "Library": ("kestreld/library",),
    "Clients": ("kestreld/client", "kestreld/recipes", "kestreld/integrations", "kestreld/integrations/celery"),
    "Command line": (
        "kestrelctl",
        "kestrelctl/commands",
        "kestrelctl/shell",
        "kestrelctl/remote",
        "kestrelctl/items",
        "kestrelctl/journals",
        "kestrelctl/doctor",
        "kestrelctl/bench",
        "kestrelctl/description",
    ),
    "Console": ("tui", "tui/screens"),
    "Spark": ("kestrelspark", "kestrelspark/jobs"),
}
PREFACE: Final = """\
# A map of the code

Every module with the first line of its docstring, by product and folder; made by `make pages`. Where a change goes is
in [CONTRIBUTING.md](../CONTRIBUTING.md), which packages may import which in [design.md](design.md).

A change to a product needs the folders of that product, and those of the daemon if it is served over a socket. What
the console shows begins in `kestreld/figures.py`; what a client is to read of a reply is in Clients.

"""


def rendered() -> str:
    """The page as it should be."""
    parts = [PREFACE, "| product | folders | modules |\n|---|---|---|\n"]
    for product, folders in PRODUCTS.items():
        modules = sum(len(modules_of(folder)) for folder in folders)
        names = ", ".join(f"`{folder}/`" for folder in folders)
        parts.append(f"| [{product}](#{product.lower().replace(' ', '-')}) | {names} | {modules} |\n")
    for product, folders in PRODUCTS.items():
        parts.append(f"\n## {product}\n")
        for folder in folders:
            parts.append(f"\n### `{folder}/`\n\n{first_line(ROOT / folder / '__init__.py')}\n\n")
            parts += [f"- `{path.name}`: {first_line(path)}\n" for path in modules_of(folder)]
    return "".join(parts)


def modules_of(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).glob("*.py")) if not path.name.startswith("__")]


def first_line(path: Path) -> str:
    """Raises ValueError for a module that says nothing of itself."""
    words = ast.get_docstring(ast.parse(path.read_text()))
    if not words:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    return words.partition("\n")[0]


if __name__ == "__main__":
    MAP.write_text(rendered())
