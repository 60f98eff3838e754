"""Password hashes: scrypt parameters, salt and digest in one line of text.

Computing one takes about 0.1 s, so it is not done on the event loop.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

SALT_BYTES: Final = 16
PASSWORD_BYTES_MAX: Final = 512
MEMORY_BYTES_MAX: Final = 128 * 1024**2
_COST_LOG2: Final = 15
_BLOCKS: Final = 8
_LANES: Final = 1
_DIGEST_BYTES: Final = 32
_FORM: Final = re.compile(r"scrypt:([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}):([A-Za-z0-9+/]+=*):([A-Za-z0-9+/]+=*)")


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A hash to compare passwords with. Its repr hides it; str() gives the line for a configuration."""

    cost_log2: int
    blocks: int
    lanes: int
    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        return "PasswordHash(...)"

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt:{self.cost_log2}:{self.blocks}:{self.lanes}:{salt}:{digest}"

    @classmethod
    def parse(cls, text: str) -> "PasswordHash":
        """Parse a line printed by `kestreld hash-password`. Raises ValueError, whose message does not contain it."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError("expected a line printed by `kestreld hash-password`")
        cost_log2, blocks, lanes = (int(number) for number in match.group(1, 2, 3))
        salt, digest = (base64.b64decode(part + "==") for part in match.group(4, 5))
        too_dear = not 10 <= cost_log2 <= 20 or 128 * blocks * (1 << cost_log2) > MEMORY_BYTES_MAX
        if too_dear or not 1 <= lanes <= 4 or blocks < 1 or len(salt) < 8 or len(digest) != _DIGEST_BYTES:
            raise ValueError("unsupported scrypt parameters: create the hash with `kestreld hash-password`")
        return cls(cost_log2, blocks, lanes, salt, digest)

    def fits(self, password: bytes) -> bool:
        """Return True if `password` has this hash."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost_log2, self.blocks, self.lanes), self.digest)


def hash_password(password: bytes, salt: bytes) -> PasswordHash:
    """Hash a password; `salt` is SALT_BYTES random bytes."""
    digest = _scrypt(password, salt, _COST_LOG2, _BLOCKS, _LANES)
    return PasswordHash(_COST_LOG2, _BLOCKS, _LANES, salt, digest)


def _scrypt(password: bytes, salt: bytes, cost_log2: int, blocks: int, lanes: int) -> bytes:
    memory_bytes = 2 * MEMORY_BYTES_MAX
    return hashlib.scrypt(
        password, salt=salt, n=1 << cost_log2, r=blocks, p=lanes, maxmem=memory_bytes, dklen=_DIGEST_BYTES
    )


# Compared with if a user does not exist, so that the check takes as long as for an existing user.
NOBODYS: Final = PasswordHash(_COST_LOG2, _BLOCKS, _LANES, bytes(SALT_BYTES), bytes(_DIGEST_BYTES))
