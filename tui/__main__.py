"""Entry point of `python -m tui`, which is `kestrelctl top`."""

import sys

from kestrelctl.app import main

sys.argv.insert(1, "top")
main()
