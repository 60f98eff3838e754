"""Write completions/ and the generated pages of packaging/man/ into a checkout; an argument says which of the two."""

import sys
from pathlib import Path

from kestrelctl.description.files import generated

root = Path(__file__).parents[2]
for path, content in generated(set(sys.argv[1:]) or {"completions", "man"}).items():
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
