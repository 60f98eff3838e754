"""Recording of samples to a file, and replay.

A recording is lines of JSON: a header, then one line per sample of a server, with only the queues whose figures changed
since the previous sample.
"""

import json
import time
from collections.abc import Sequence
from typing import IO, Any, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from tui.board import Board
from tui.snapshots import JOB_KEYS, KEYS, NODE_KEYS, NOTHING, Figures, Outage, Snapshot

VERSION: Final = 1
# Going back rebuilds the history from this many samples before.
REBUILT_SAMPLES: Final = 60


class Recorder:
    """Writes a new file. Its methods raise OSError."""

    def __init__(self, path: str, interval_ms: int) -> None:
        self.path = path
        self._file: IO[str] = open(path, "x", encoding="ascii")  # noqa: SIM115  (open as long as the recorder is)
        self._seen: dict[str, dict[str, Figures]] = {}
        keys = {"keys": KEYS, "job_keys": JOB_KEYS, "node_keys": NODE_KEYS}
        self._write({"kestrel_top": VERSION, **keys, "interval_ms": interval_ms})

    def write(self, news: Snapshot | Outage) -> None:
        head = {"server": news.server, "at_ms": news.at_ms}
        if isinstance(news, Outage):
            self._write({**head, "outage": news.reason, "next_try_ms": news.next_try_ms})
            return
        seen = self._seen.get(news.server, {})
        self._write(
            {
                **head,
                "clock_ms": news.clock_ms,
                "ahead_ms": news.ahead_ms,
                "counters": news.counters,
                "changed": {name: figures for name, figures in news.queues.items() if seen.get(name) != figures},
                **({"reasons": news.reasons} if news.reasons else {}),
                **({"jobs": news.jobs} if news.jobs else {}),
                **({"nodes": news.nodes} if news.nodes else {}),
                "gone": [name for name in seen if name not in news.queues],
            }
        )
        self._seen[news.server] = news.queues

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def open_recorder(path: str, interval_ms: int) -> Recorder:
    """Open a new recording. Raises Failure."""
    try:
        return Recorder(path, interval_ms)
    except OSError as error:
        words = f"cannot record to {path}: {(error.strerror or str(error)).lower()}"
        raise Failure(ExitCode.CANNOT_CREATE, words) from error


class Player:
    """A recording and a position in it."""

    def __init__(self, samples: Sequence[Snapshot | Outage], interval_ms: int) -> None:
        self.samples = samples
        self.interval_ms = interval_ms
        self.servers = list(dict.fromkeys(sample.server for sample in samples))
        self.position = -1  # of the sample shown last

    @property
    def at_ms(self) -> int:
        return self.samples[max(self.position, 0)].at_ms

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.samples) - 1

    def seek(self, position: int, board: Board) -> None:
        """Show this sample on the board, with earlier ones as history."""
        position = min(max(position, 0), len(self.samples) - 1)
        first = self.position + 1
        if position < first:
            board.rewind()
            first = max(0, position - REBUILT_SAMPLES * len(self.servers))
        for sample in self.samples[first : position + 1]:
            board.receive(sample)
            board.advance(sample.at_ms)
        self.position = position

    def scrubber(self, width: int) -> str:
        """A line that shows the position in the recording."""
        last = max(1, len(self.samples) - 1)
        knob = round(max(self.position, 0) / last * (width - 1))
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at_ms / 1000))
        return f"{stamp} {'━' * knob}◆{'─' * (width - 1 - knob)} {self.position + 1}/{len(self.samples)}"


def load(path: str) -> Player:
    """Read a recording. Raises Failure. A last line cut off by a crash is ignored."""
    try:
        with open(path, encoding="ascii") as file:
            head, samples = json.loads(file.readline() or "null"), []
            if not isinstance(head, dict) or head.get("kestrel_top") != VERSION:
                raise Failure(ExitCode.CORRUPT, f"{path} is not a recording of kestrelctl top")
            keys = [head["keys"].index(key) if key in head["keys"] else None for key in KEYS]
            more = {
                kind: [known.index(key) if key in known else None for key in wanted]
                for kind, wanted in (("jobs", JOB_KEYS), ("nodes", NODE_KEYS))
                for known in [head.get(f"{kind.removesuffix('s')}_keys", [])]
            }
            seen: dict[str, dict[str, Figures]] = {}
            for line in file:
                if line.endswith("\n"):
                    samples.append(_sample(json.loads(line), keys, more, seen))
    except OSError as error:
        raise Failure(ExitCode.NO_INPUT, f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Failure(ExitCode.CORRUPT, f"{path} is damaged: {error}") from error
    if not samples:
        raise Failure(ExitCode.CORRUPT, f"{path} contains no samples")
    return Player(samples, head["interval_ms"])


def _sample(
    line: dict[str, Any],
    keys: Sequence[int | None],
    more: dict[str, list[int | None]],
    seen: dict[str, dict[str, Figures]],
) -> Snapshot | Outage:
    server, at_ms = line["server"], line["at_ms"]
    if "outage" in line:
        return Outage(server, at_ms, line["outage"], line["next_try_ms"])
    queues = seen.get(server, {})
    if line["changed"] or line["gone"]:
        queues = {name: figures for name, figures in queues.items() if name not in line["gone"]}
        for name, values in line["changed"].items():
            figures = tuple([values[index] if index is not None else None for index in keys])
            queues[name] = figures if figures != NOTHING else NOTHING
        seen[server] = queues
    jobs, nodes = (
        {
            name: tuple([values[index] if index is not None else None for index in places])
            for name, values in line.get(kind, {}).items()
        }
        for kind, places in more.items()
    )
    return Snapshot(
        server,
        at_ms,
        line["clock_ms"],
        queues,
        line["counters"],
        line.get("ahead_ms", 0),
        jobs,
        line.get("reasons", {}),
        nodes,
    )
