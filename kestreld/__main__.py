"""Entry point of `python -m kestreld`."""

import sys

from kestreld.daemon import main

sys.exit(main())
