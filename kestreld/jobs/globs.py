"""Patterns of queue names and settings, matched as in Redis: `*`, `?`, `[a-z]`, `[^a]` and escapes."""

import re


class Glob:
    """A pattern, matched in time proportional to the name: each part between two stars is taken at its first match."""

    __slots__ = ("_lengths", "_parts", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._parts: list[re.Pattern[bytes]] = []
        self._lengths: list[int] = []
        chars: list[bytes] = []
        at = 0
        while at < len(text):
            if text[at] == 42:
                self._end_part(chars)
                chars = []
                at += 1
            else:
                char, at = _char(text, at)
                chars.append(char)
        self._end_part(chars)

    def _end_part(self, chars: list[bytes]) -> None:
        if chars or not self._parts or self._lengths[-1] or len(self._parts) == 1:
            self._parts.append(re.compile(b"".join(chars), re.DOTALL))
            self._lengths.append(len(chars))

    def matches(self, name: bytes) -> bool:
        """Return True if the whole name matches."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0].fullmatch(name) is not None
        if parts[0].match(name) is None:
            return False
        at = self._lengths[0]
        for part in parts[1:-1]:
            found = part.search(name, at)
            if found is None:
                return False
            at = found.end()
        end_at = len(name) - self._lengths[-1]
        return end_at >= at and parts[-1].match(name, end_at) is not None


def _char(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the regular expression for one character of the pattern, and the index of the next."""
    char = text[at : at + 1]
    if char == b"?":
        return b".", at + 1
    if char == b"[":
        return _bracket(text, at + 1)
    if char == b"\\" and at + 1 < len(text):
        return re.escape(text[at + 1 : at + 2]), at + 2
    return re.escape(char), at + 1


def _bracket(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the set behind a `[`, and the index after it. Without a `]` it extends to the end of the pattern."""
    is_negated = text[at : at + 1] == b"^"
    at += is_negated
    chars = set[int]()
    while at < len(text) and text[at] != 93:
        if text[at] == 92 and at + 1 < len(text):
            chars.add(text[at + 1])
            at += 2
        elif text[at + 1 : at + 2] == b"-" and at + 2 < len(text):
            low, high = sorted((text[at], text[at + 2]))
            chars.update(range(low, high + 1))
            at += 3
        else:
            chars.add(text[at])
            at += 1
    if is_negated:
        chars = set(range(256)) - chars
    if not chars:
        return b"(?!)", at + 1
    return b"[%b]" % b"".join([b"\\x%02x" % one for one in sorted(chars)]), at + 1
