"""A client in a process of its own that puts and gets an item every other millisecond, and times each."""

import select
import subprocess
import sys
import time
from types import TracebackType

from tests.support.daemon import ROOT
from tests.support.process import cpu_clock
from tests.support.queue_client import QueueClient

PAUSE_S = 0.002


class Probe:
    """Asks the server at `port`, on a queue of its own, while a `with` block lasts.

    With `server_pid` the times are the processor time that this process uses meanwhile: what others on the machine do
    is not among it, nor what the server waits for.
    """

    def __init__(self, port: int, *, server_pid: int | None = None) -> None:
        clock = time.CLOCK_MONOTONIC if server_pid is None else cpu_clock(server_pid)
        command = [sys.executable, "-m", "tests.support.probe", str(port), str(clock)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> "Probe":
        self.worst_ms()  # it has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def worst_ms(self) -> float:
        """The longest that a put or a get has taken since this or `p99_ms` was last asked."""
        return self._ask()[0]

    def p99_ms(self) -> float:
        """What 99 of 100 puts and gets have taken at most since then."""
        return self._ask()[1]

    def worst_and_p99_ms(self) -> tuple[float, float]:
        """Both of these."""
        return self._ask()

    def _ask(self) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        worst_ms, p99_ms = map(float, self._process.stdout.readline().split())
        return worst_ms, p99_ms


def main() -> None:
    clock = int(sys.argv[2])
    with QueueClient(int(sys.argv[1])) as client:
        took_ms = [0.0]
        while True:
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                if not sys.stdin.readline():
                    return
                took_ms.sort()
                print(took_ms[-1], took_ms[len(took_ms) * 99 // 100], flush=True)
                took_ms = [0.0]
            started_ns = time.clock_gettime_ns(clock)
            client.put("probe", b"x")
            put_ns = time.clock_gettime_ns(clock) - started_ns
            assert client.get("probe") == b"x"
            took_ms += [put_ns / 1e6, (time.clock_gettime_ns(clock) - started_ns - put_ns) / 1e6]


if __name__ == "__main__":
    main()
