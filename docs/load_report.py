"""What `make report` runs: a kestreld under load for a few seconds, then the load analysis of its journals.

kestreld runs on a spool and an archive of its own and on a free port, with several writers, a fanout child, reliable
readers of whom some give items back, and items that expire. The page is .report/report.html.
"""

import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pymemcache import Client  # type: ignore[import-untyped]

FOLDER: Final = Path(__file__).parents[1] / ".report"
SECONDS: Final = 8.0
READY: Final = re.compile(r"ready .*memcache=127\.0\.0\.1:(\d+)")
SETTINGS: Final = {
    "listen.memcache": "127.0.0.1:0",
    "listen.admin": "null",
    "queue_path": FOLDER / "server=here" / "spool",
    "archive_path": FOLDER / "server=here" / "archive",
    "max_journal_size": "4MiB",
    "expiration_timer_frequency_seconds": "1",
}


def main() -> int:
    """Load, stop, analyse; returns the exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "kestreld", *sets]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        try:
            port = next(int(found[1]) for line in daemon.stderr if (found := READY.search(line)))
            threading.Thread(target=daemon.stderr.read, daemon=True).start()
            print(f"{SECONDS:.0f} s of traffic on a kestreld of its own, port {port}", flush=True)
            _load(port)
        finally:
            daemon.terminate()
    print("looking through its journals with Spark", flush=True)
    job = [sys.executable, "-m", "kestrelspark", "report", str(FOLDER / "server=here"), "--to", str(FOLDER)]
    return subprocess.run(job, check=False).returncode


def _load(port: int) -> None:
    until = time.monotonic() + SECONDS
    tasks = [_put_orders, _put_orders, _put_tickets, _read_orders, _read_orders, _audit]
    threads = [threading.Thread(target=_work, args=(task, port, until, seed)) for seed, task in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(task: Callable[[Client, random.Random], None], port: int, until: float, seed: int) -> None:
    client = Client(("127.0.0.1", port), default_noreply=False)
    chance = random.Random(seed)
    while time.monotonic() < until:
        task(client, chance)
    client.close()


def _put_orders(client: Client, chance: random.Random) -> None:
    """A burst, and a short rest."""
    for _ in range(chance.randrange(200)):
        client.set("orders", chance.randbytes(chance.randrange(20, 400)))
    time.sleep(chance.random() / 50)


def _put_tickets(client: Client, chance: random.Random) -> None:
    """Nobody takes them: they expire."""
    client.set("pending_commits", b"ticket", expire=1)
    time.sleep(chance.random() / 100)


def _read_orders(client: Client, chance: random.Random) -> None:
    if client.get("orders/open/t=100") is not None:
        client.get("orders/abort" if chance.random() < 0.02 else "orders/close")


def _audit(client: Client, chance: random.Random) -> None:
    client.get("orders+audit/t=100")


if __name__ == "__main__":
    sys.exit(main())
