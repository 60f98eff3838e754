"""Writes completions/ and packaging/man/ into the checkout that is the working directory, or one of the two."""

import sys
from pathlib import Path

from kestrelctl.description.files import generated

root = Path()
for path, content in generated(set(sys.argv[1:]) or {"completions", "man"}).items():
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
