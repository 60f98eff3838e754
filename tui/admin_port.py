"""Requests to a server's admin port: figures, items and journals."""

import http.client
import json
from typing import Any

from kestrelctl.remote.admin import AdminConnection, admin_connection
from kestreld.client.access import Login


class AdminLost(Exception):
    """The admin port does not answer, or answered with an error. The memcache port may still answer."""


class AdminRefused(AdminLost):
    """The admin port answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AdminPort:
    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def get(self, path: str) -> bytes:
        """Body of the response. Raises AdminLost; AdminRefused if the response is an error."""
        return self._ask("GET", path)

    def post(self, path: str) -> bytes:
        """Body of the response. Raises as `get` does."""
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> bytes:
        try:
            answer, content = self._connection.ask(method, path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AdminLost(str(error)) from error
        if answer.status != 200:
            self.close()
            raise AdminRefused(answer.status, _reason(content) or answer.reason)
        return content

    def close(self) -> None:
        self._connection.close()


def _reason(content: bytes) -> str:
    """The error message in a response."""
    try:
        document: Any = json.loads(content)
    except ValueError:
        return ""
    return str(document.get("error", "")) if isinstance(document, dict) else ""


def admin_port_of(address: str, admin: str, timeout_ms: int, login: Login) -> AdminPort | None:
    """The admin port at `admin` of the server at `address`. None = not reachable from here."""
    connection = admin_connection(address, admin, timeout_ms, login)
    return AdminPort(connection) if connection is not None else None
