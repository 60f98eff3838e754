"""Rights that the cache's commands require, checked at each command, because keys rarely repeat."""

from typing import Final

from kestreld.config.users import Right, Thing
from kestreld.server.accounts import Account
from kestreld.server.cache.flags import Flags

_GET, _PUT, _DELETE = (Right.GET,), (Right.PUT,), (Right.DELETE,)
OF_KEYS: Final[dict[bytes, tuple[Right, ...]]] = {
    **dict.fromkeys((b"get", b"gets", b"bget", b"mg", b"me"), _GET),
    **dict.fromkeys((b"gat", b"gats"), (Right.GET, Right.PUT)),
    **dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend", b"cas"), _PUT),
    **dict.fromkeys((b"incr", b"decr", b"touch", b"ms", b"ma"), _PUT),
    **dict.fromkeys((b"delete", b"md"), _DELETE),
}
_MANY_KEYS: Final = frozenset((b"get", b"gets", b"bget", b"gat", b"gats"))
KEYS_MAX: Final = 10_000  # checked for one command, which delays others by 5 ms at most
_OF_OPERATORS: Final = ([b"reset"], [b"detail"])
_META: Final = frozenset((b"mg", b"md", b"ma", b"me"))


class CacheRights:
    """Rights of an account on the cache. A reload changes them at once."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def refusal(self, words: list[bytes]) -> bytes | None:
        """Return the reply to a command that is not allowed, None if it is. With data, pass its word and key only."""
        word = words[0]
        if word == b"flush_all":
            return self._of_all(Right.FLUSH)
        if word in (b"verbosity", b"cache_memlimit") or (word == b"stats" and words[1:2] in _OF_OPERATORS):
            return self._of_all(Right.ADMIN)
        rights, keys = OF_KEYS.get(word, ()), words[1:2]
        if word in _MANY_KEYS:
            keys = words[2 if word in (b"gat", b"gats") else 1 :]
        elif word in _META and keys:
            flags = Flags(keys[0], words[2:])
            keys = [flags.key]
            if word == b"mg" and any(one is not None for one in (flags.vivify_s, flags.recache_s, flags.ttl_s)):
                rights = (Right.GET, Right.PUT)
        for right in rights:
            if not self._account.may_all(right, Thing.CACHE):
                if len(keys) > KEYS_MAX:
                    return _refusal(f"{right.value} on more than {KEYS_MAX} keys at once")
                for key in keys:
                    name = key.decode("latin-1")
                    if not self._account.may(right, name, Thing.CACHE):
                        return _refusal(f"{right.value} on {name!r}")
        return None

    def _of_all(self, right: Right) -> bytes | None:
        if self._account.may_all(right, Thing.CACHE):
            return None
        return _refusal(f"requires the {right.value} right on all keys of the cache")


def _refusal(reason: str) -> bytes:
    return f"CLIENT_ERROR not allowed: {reason}\r\n".encode("latin-1", "replace")
