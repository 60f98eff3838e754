"""Aliases of the transport in Kombu, so that broker URLs with `kestrel://` need no import.

Kombu has no entry point for transports, but loads those of the group `kombu.serializers`. So this module is loaded in
every program of an environment that uses Kombu: it imports nothing but `kombu.transport`, and never raises.
"""

from typing import Final

TRANSPORT: Final = "kestreld.integrations.celery.transport"
# The scheme `kestrel+unix` comes as it is, or as `kestrel` with the rest of the URL, depending on its place in a list.
ALIASES: Final = {
    "kestrel": f"{TRANSPORT}:Transport",
    "kestrels": f"{TRANSPORT}:TlsTransport",
    "kestrel+unix": f"{TRANSPORT}:Transport",
}
# What Kombu registers for the entry point: a content type without encoder and decoder, which no message has.
SERIALIZER: Final = (None, None, "application/x-kestreld-none")


def add_aliases() -> None:
    """Add the aliases to Kombu, if it is installed and has a table of them."""
    try:
        from kombu.transport import TRANSPORT_ALIASES

        TRANSPORT_ALIASES.update(ALIASES)
    except Exception:  # noqa: BLE001
        return  # a broken Kombu shows itself where it is used
