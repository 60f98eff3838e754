"""Plays what was recorded with the real Disque: tests/golden/disque, whose steps its README describes."""

import json
import re
import time
from pathlib import Path
from typing import Any, Final

from tests.support.resp import NIL_ARRAY, PATIENCE_S, ErrorReply, RespClient, Status, request

FOLDER: Final = Path(__file__).parents[1] / "golden" / "disque"
Steps = list[dict[str, Any]]


def scenarios() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def steps_of(name: str) -> Steps:
    loaded: Steps = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def slept_ms(name: str) -> int:
    """How long a scenario takes at least."""
    return sum(step.get("sleep_ms", 0) + step.get("min_ms", 0) for step in steps_of(name))


def as_json(reply: Any) -> Any:
    """A reply in the form that scenarios have."""
    if isinstance(reply, list):
        return [as_json(one) for one in reply]
    if isinstance(reply, Status):
        return {"status": reply.decode("latin-1")}
    if isinstance(reply, ErrorReply):
        return {"error": reply.decode("latin-1")}
    if isinstance(reply, bytes):
        return reply.decode("latin-1")
    return {"nil": "array"} if reply == NIL_ARRAY else reply


def fits(wanted: Any, found: Any) -> bool:
    """Whether a reply is what a step expects."""
    if isinstance(wanted, list):
        same_length = isinstance(found, list) and len(found) == len(wanted)
        return same_length and all(map(fits, wanted, found))
    if not isinstance(wanted, dict):
        return type(wanted) is type(found) and bool(wanted == found)
    for matcher, does in _MATCHERS.items():
        if matcher in wanted:
            return bool(does(wanted[matcher], found))
    return bool(wanted == found)


def _is_bag(wanted: list[Any], found: Any) -> bool:
    if not isinstance(found, list) or len(found) != len(wanted):
        return False
    left = list(found)
    for one in wanted:
        place = next((at for at, other in enumerate(left) if fits(one, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _has_pairs(wanted: dict[str, Any], found: Any) -> bool:
    pairs = dict(zip(found[::2], found[1::2], strict=False)) if isinstance(found, list) else {}
    return all(key in pairs and fits(value, pairs[key]) for key, value in wanted.items())


def _matches(pattern: str, text: Any) -> bool:
    return isinstance(text, str) and re.search(pattern, text) is not None


_MATCHERS: Final = {
    "any": lambda wanted, found: True,
    "alt": lambda wanted, found: any(fits(one, found) for one in wanted),
    "re": _matches,
    "status_re": lambda wanted, found: isinstance(found, dict) and _matches(wanted, found.get("status")),
    "error_re": lambda wanted, found: isinstance(found, dict) and _matches(wanted, found.get("error")),
    "range": lambda wanted, found: type(found) is int and wanted[0] <= found <= wanted[1],
    "bag": _is_bag,
    "kv": _has_pairs,
    "kvkeys": lambda wanted, found: isinstance(found, list) and found[::2] == wanted,
}
_SHAPES: Final = {"nil": None, "nilarray": {"nil": "array"}}


class Player:
    """Plays one scenario against a server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._clients: dict[str, RespClient] = {}
        self._saved: dict[str, str] = {}

    def play(self, steps: Steps) -> None:
        try:
            for number, step in enumerate(steps):
                self._step(number, step)
        finally:
            for client in self._clients.values():
                client.close()

    def _filled_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\$\{(\w+)\}", lambda name: self._saved[name[1]], value)
        if isinstance(value, list):
            return [self._filled_in(one) for one in value]
        if isinstance(value, dict):
            return {key: self._filled_in(one) for key, one in value.items()}
        return value

    def _bytes_of(self, step: dict[str, Any]) -> bytes:
        if "raw" in step:
            return str(self._filled_in(step["raw"])).encode("latin-1")
        return request(*[self._filled_in(word).encode("latin-1") for word in step["send"]])

    def _step(self, number: int, step: dict[str, Any]) -> None:
        time.sleep(step.get("sleep_ms", 0) / 1000)
        if not step.keys() & {"send", "raw", "recv", "close", "silent_ms", "expect_close"}:
            return
        name = step.get("conn", "a")
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = RespClient(self._address)
        self._talk(f"step {number}: {step}", step, client)
        if "silent_ms" in step:
            client.expect_silence(step["silent_ms"])
        if step.get("expect_close"):
            client.expect_end()
        if step.get("close") or step.get("expect_close"):
            self._clients.pop(name).close()

    def _talk(self, where: str, step: dict[str, Any], client: RespClient) -> None:
        until_s = time.monotonic() + (PATIENCE_S if "until_ms" in step else 0)
        while True:
            started_s = time.monotonic()
            if "send" in step or "raw" in step:
                client.send_bytes(self._bytes_of(step))
            elif "recv" not in step:
                return
            if step.get("noreply"):
                return
            found = as_json(client.reply())
            took_ms = (time.monotonic() - started_s) * 1000
            is_expected = "expect" not in step or fits(self._filled_in(step["expect"]), found)
            if is_expected or time.monotonic() >= until_s:
                break
            time.sleep(0.05)
        assert is_expected, f"{where}: got {found}"
        if "expect_shape" in step:
            assert found == _SHAPES[step["expect_shape"]], f"{where}: got {found}"
        assert step.get("min_ms", 0) <= took_ms, f"{where}: took {took_ms:.0f} ms"  # not max_ms: a machine may be busy
        for variable, path in step.get("save", {}).items():
            value = found
            for at in path:
                value = value[at]
            self._saved[variable] = next(iter(value.values())) if isinstance(value, dict) else value
