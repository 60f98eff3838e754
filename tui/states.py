"""States of a queue, each one word, ranked from ok to the worst."""

from typing import Final

OK: Final = "ok"
GROWING: Final = "growing"  # more items each time, over the last samples
STALE: Final = "stale"  # its server does not answer
STUCK: Final = "stuck"  # items wait, and none is fetched
FULL: Final = "full"  # max_items or max_size is reached
FAILED: Final = "failed"  # journal writes are failing: its puts are refused
STOPPED: Final = "stopped"  # its journal is damaged
RANK: Final = {state: rank for rank, state in enumerate((OK, GROWING, STALE, STUCK, FULL, FAILED, STOPPED))}
TROUBLE: Final = frozenset({STUCK, FULL, FAILED, STOPPED})
