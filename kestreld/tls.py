"""TLS connections with the methods of a socket, TLS contexts, and the names in certificates.

A record is at most 16 KiB, and OpenSSL takes them from the socket one at a time: a `recv` with more room than that
leaves no data behind in OpenSSL that the poller would not report.
"""

import ssl
from contextlib import suppress
from typing import Any, Final, Never

from kestreld import net
from kestreld.config.config import Config
from kestreld.errors import ConfigError
from kestreld.files import FileLayer

_NAMES: Final = frozenset({"DNS", "email", "URI"})


class TlsConnection:
    """One side of a TLS connection. Nothing can be received or sent before `shake_hands` returns 0."""

    def __init__(self, context: ssl.SSLContext, connection: Any, *, is_server: bool = True) -> None:
        """Raises OSError if the other side is gone already."""
        self._socket = context.wrap_socket(connection, server_side=is_server, do_handshake_on_connect=False)

    def shake_hands(self) -> int:
        """Continue the handshake; returns the event to poll for, 0 when done. Raises OSError if it fails."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return net.READ
        except ssl.SSLWantWriteError:
            return net.WRITE
        return 0

    def certificate_names(self) -> set[str]:
        """Return the names in the client's certificate; none if it has shown none."""
        return names_in(self._socket.getpeercert())

    def recv(self, size_bytes: int, /) -> bytes:
        try:
            return self._socket.recv(size_bytes)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: bytes | memoryview, /) -> int:
        if not data:
            return 0
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def shutdown(self, how: int, /) -> None:
        """End the output; later input is not decrypted. Raises OSError."""
        self._say_goodbye()
        self._socket.shutdown(how)

    def close(self) -> None:
        self._say_goodbye()
        self._socket.close()

    def _say_goodbye(self) -> None:
        with suppress(OSError, ValueError):  # it does not wait for the answer
            self._socket.unwrap()

    def fileno(self) -> int:
        return self._socket.fileno()


def names_in(certificate: Any) -> set[str]:
    """Return the names in a certificate as `getpeercert` gives it; none without one."""
    found: Any = certificate or {}
    names = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return names | {value for kind, value in found.get("subjectAltName", ()) if kind in _NAMES}


def server_context(config: Config, files: FileLayer) -> ssl.SSLContext | None:
    """Make the context of TLS listeners; None without a certificate. Raises ConfigError."""
    if config.tls_certificate is None:
        return None
    for field in ("tls_certificate", "tls_key", "tls_client_ca"):
        path = getattr(config, field)
        if path is not None:
            try:
                files.read_operators_file(path)
            except OSError as error:
                raise _mistake(config, field, f"{path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, _no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = f"{config.tls_certificate}: with {config.tls_key or 'the key in it'}: {_reason(error)}"
        raise _mistake(config, "tls_certificate", reason) from error
    if config.tls_client_ca is not None:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise _mistake(config, "tls_client_ca", f"{config.tls_client_ca}: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_certificate_required else ssl.CERT_OPTIONAL
    return context


def cluster_contexts(config: Config, files: FileLayer) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Make the contexts of both sides of a link between nodes, the server's first; None if the bus does not use TLS.

    Each node must show a certificate of `tls.client_ca`, with any names. Raises ConfigError.
    """
    if not config.cluster_tls:
        return None
    server = server_context(config, files)
    assert server is not None, "cluster.tls without a certificate"
    assert config.tls_certificate is not None
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.check_hostname = False
    client.load_cert_chain(config.tls_certificate, config.tls_key, _no_password)
    client.load_verify_locations(config.tls_client_ca)
    return server, client


def _no_password() -> Never:
    raise ValueError("the key is encrypted: use a key without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error.args[0] if error.args and isinstance(error.args[0], str) else "contains no matching PEM data")


def _mistake(config: Config, field: str, reason: str) -> ConfigError:
    return ConfigError([config.problem(field, f"{field.replace('_', '.', 1)}: {reason}")])
