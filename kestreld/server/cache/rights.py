"""Which right each command of the cache requires. Keys rarely repeat, so it is looked up at each command."""

import binascii
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kestreld.config.users import Right, Thing
from kestreld.server.accounts import Account

_GET, _PUT, _DELETE = (Right.GET,), (Right.PUT,), (Right.DELETE,)
_OF_KEYS: Final[dict[bytes, tuple[Right, ...]]] = {
    **dict.fromkeys((b"get", b"gets", b"bget", b"mg", b"me"), _GET),
    **dict.fromkeys((b"gat", b"gats"), (Right.GET, Right.PUT)),
    **dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend", b"cas"), _PUT),
    **dict.fromkeys((b"incr", b"decr", b"touch", b"ms", b"ma"), _PUT),
    **dict.fromkeys((b"delete", b"md"), _DELETE),
}
_MANY_KEYS: Final = frozenset((b"get", b"gets", b"bget", b"gat", b"gats"))
_META: Final = frozenset((b"mg", b"ms", b"md", b"ma", b"me"))
_CHANGES: Final = (b"E", b"N", b"R", b"T")  # flags of mg that store something


class CacheRights:
    """What an account may do. A reload changes it at once."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def refusal(self, words: Sequence[bytes]) -> bytes | None:
        """The answer to a command, given as its words, that is not allowed; None = it is."""
        word = words[0]
        if word == b"flush_all":
            return self._of_all(Right.FLUSH)
        if word == b"verbosity" or (word == b"stats" and words[1:2] == [b"reset"]):
            return self._of_all(Right.ADMIN)
        rights = _OF_KEYS.get(word)
        if rights is None or len(words) < 2:
            return None
        if word == b"mg" and any(flag.startswith(_CHANGES) for flag in words[2:]):
            rights = (Right.GET, Right.PUT)
        may, may_all = self._account.may, self._account.may_all
        for right in rights:
            if may_all(right, Thing.CACHE):
                continue
            for key in _keys(words):
                if not may(right, key, Thing.CACHE):
                    return _refusal(f"{right.value} on {key!r}")
        return None

    def _of_all(self, right: Right) -> bytes | None:
        if self._account.may_all(right, Thing.CACHE):
            return None
        return _refusal(f"requires the {right.value} right on all keys of the cache")


def _keys(words: Sequence[bytes]) -> list[str]:
    word = words[0]
    if word in _MANY_KEYS:
        return [key.decode("latin-1") for key in words[2 if word in (b"gat", b"gats") else 1 :]]
    key = words[1]
    if word in _META and b"b" in words[2:]:
        with suppress(binascii.Error):  # which is refused as a key
            key = binascii.a2b_base64(key)
    return [key.decode("latin-1")]


def _refusal(reason: str) -> bytes:
    return f"CLIENT_ERROR not allowed: {reason}\r\n".encode("latin-1", "replace")
