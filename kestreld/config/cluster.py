"""Values of the cluster settings: the address that a node announces, and the secret that nodes share."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from kestreld.files import FileLayer

SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4096
PORT_MAX: Final = 65_535
EXPECTED: Final = "HOST, HOST:PORT or HOST:PORT:BUS_PORT"
_ANNOUNCED: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5})(?::([0-9]{1,5}))?)?")


@dataclass(frozen=True, slots=True)
class Announce:
    """Address of this node as told to other nodes and clients. A port of None is the one that it listens on."""

    host: str
    port: int | None = None
    bus_port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ":".join([host, *[str(port) for port in (self.port, self.bus_port) if port is not None]])

    @classmethod
    def parse(cls, text: str) -> "Announce":
        """Parse HOST, HOST:PORT or HOST:PORT:BUS_PORT. Raises ValueError with the reason."""
        match = _ANNOUNCED.fullmatch(text)
        if match is None:
            raise ValueError(f"expected {EXPECTED}")
        if match[1]:
            IPv6Address(match[1])
        port, bus_port = (None if number is None else int(number) for number in (match[3], match[4]))
        if any(number is not None and not 0 < number <= PORT_MAX for number in (port, bus_port)):
            raise ValueError(f"port out of range: expected 1 to {PORT_MAX}")
        return cls(match[1] or match[2], port, bus_port)


def read_secret(files: FileLayer, path: str) -> bytes:
    """Read the secret in a file, without white space around it. Raises OSError, and ValueError with the reason."""
    secret = files.read_operators_file(path)[: SECRET_BYTES_MAX + 1].strip()
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        advice = "create one with: openssl rand -hex 32"
        raise ValueError(
            f"a secret of {len(secret)} bytes: expected {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; {advice}"
        )
    return secret
