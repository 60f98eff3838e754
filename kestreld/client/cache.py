"""Commands of a cache on one connection: to kestreld's own cache, or to a memcached."""

import re
from typing import Final

from kestreld import errors
from kestreld.client.blocks import text
from kestreld.client.transport import Transport

CACHE_PORT_DEFAULT: Final = 11211
KEY_BYTES_MAX: Final = 250
_UNSENDABLE: Final = re.compile(rb"[\x00-\x20\x7f]")


class CacheConnection(Transport):
    """Connection to a cache. Methods raise InvalidValue for a key that no cache accepts."""

    port_default = CACHE_PORT_DEFAULT

    def _check_kind(self) -> None:
        """Raise OtherServer for a server with queues: it would lose an item by a get, and all items by a delete."""
        try:
            reply = self._reply()
        except errors.ConnectionLost:  # a proxy in front of a memcached does so
            self.close()
            self._connect()
            return
        if not isinstance(reply, bytes) or not reply.startswith(b"ERROR"):
            raise errors.OtherServer(self.address, "it has queues")

    def get(self, key: bytes) -> bytes | None:
        """Return a value, None if there is none."""
        with self._talking():
            self._send(b"get %b\r\n" % self._key(key))
            reply = self._reply()
            if isinstance(reply, bytes) or len(reply) > 1:
                raise self._refusal(reply, b"get")
            return reply[0] if reply else None

    def set(self, key: bytes, data: bytes, expiry_s: int = 0, flags: int = 0) -> None:
        """Store a value unconditionally. `expiry_s` as on the wire: 0 = never, above 30 days = seconds since 1970."""
        self._store(b"set", key, data, expiry_s, flags)

    def add(self, key: bytes, data: bytes, expiry_s: int = 0, flags: int = 0) -> bool:
        """Store a value like `set`, unless there is one already: False then."""
        return self._store(b"add", key, data, expiry_s, flags)

    def increase(self, key: bytes, by: int) -> int | None:
        """Add to a number, or subtract down to 0, and return the result; None if there is no value."""
        verb = b"incr" if by >= 0 else b"decr"
        found = self._match(b"%b %b %d" % (verb, self._key(key), abs(by)), rb"(\d+) *|NOT_FOUND")[1]
        return None if found is None else int(found)

    def delete(self, key: bytes) -> bool:
        """Delete a value; False = there was none."""
        return self._ask(b"delete " + self._key(key), b"DELETED", b"NOT_FOUND") == b"DELETED"

    def flush(self) -> None:
        """Delete all values."""
        self._ask(b"flush_all", b"OK")

    def stats(self, group: bytes = b"") -> dict[str, int | str]:
        """Return the server's figures: general ones, or those of a group such as `items`."""
        return self._counters(b"stats " + group if group else b"stats")

    def _store(self, verb: bytes, key: bytes, data: bytes, expiry_s: int, flags: int) -> bool:
        with self._talking():
            line = b"%b %b %d %d %d" % (verb, self._key(key), flags, expiry_s, len(data))
            self._send(b"%b\r\n%b\r\n" % (line, data))
            reply = self._reply()
            if reply not in (b"STORED", b"NOT_STORED"):
                raise self._refusal(reply, verb)
            return reply == b"STORED"

    def _key(self, key: bytes) -> bytes:
        if not key or len(key) > KEY_BYTES_MAX or _UNSENDABLE.search(key):
            expected = f"1 to {KEY_BYTES_MAX} bytes without blanks and control characters"
            raise self.failure_of(errors.InvalidValue("key", expected, text(key)))
        return key
