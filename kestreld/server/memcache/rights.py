"""Rights that memcache commands require, checked once for each line, before it is cached for an account."""

from collections.abc import Callable
from functools import partial
from typing import Final

from kestreld.config.users import Right, Thing
from kestreld.server.accounts import Account
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import Command

# Allowed to every user; the second report only the queues that the user sees.
_FREE: Final = frozenset({wire.REPLY, wire.VERSION, wire.QUIT, wire.BINDINGS})
_FIGURES: Final = frozenset({wire.STATS, wire.DUMP_STATS})
_ON_A_QUEUE: Final = {
    wire.SET: Right.PUT,
    wire.SET_WITH: Right.PUT,
    wire.TOO_LARGE: Right.PUT,
    wire.GET: Right.GET,
    wire.NEXT: Right.GET,
    wire.READ: Right.GET,
    wire.LEASE: Right.GET,
    wire.LEASE_BY: Right.GET,
    wire.LEASES: Right.GET,
    wire.CONFIRM: Right.GET,
    wire.EXTEND: Right.GET,
    wire.GIVE_BACK: Right.GET,
    wire.FAIL: Right.GET,
    wire.CANCEL: Right.PUT,
    wire.BIND: Right.PUT,
    wire.UNBIND: Right.PUT,
    wire.UNBIND_ALL: Right.PUT,
    wire.FLUSH: Right.FLUSH,
    wire.FLUSH_COUNTED: Right.FLUSH,
    wire.FLUSH_EXPIRED: Right.FLUSH,
    wire.DELETE: Right.DELETE,
    wire.REPAIR: Right.ADMIN,
    wire.UNDO: Right.ADMIN,
}


def checker(account: Account) -> Callable[[Command], Command]:
    """Return a function that returns a command if `account` may send it, else a refusal of it."""

    def check(command: Command) -> Command:
        kind = command.kind
        if kind in _FREE:
            return command
        if kind in _FIGURES:
            command.sees = account.sees
            return command
        if kind == wire.DUMP_JOB_QUEUES:
            command.sees = partial(account.sees, thing=Thing.JOB)
            return command
        if kind == wire.LEASES and not command.name:
            command.sees = partial(account.may, Right.GET)
            return command
        if kind in (wire.LEASE_LISTED, wire.PRESENT):
            command.sees = partial(account.may, Right.GET)  # rights may have changed when it counts
            return command
        if kind in (wire.GET_MANY, wire.LEASE_FIRST, wire.LIST_QUEUES):
            for part in command.parts:
                checked = check(part)
                if checked is not part:
                    return checked
            return command
        if kind == wire.DECLARE:
            may_use = account.may(Right.PUT, command.name) or account.may(Right.GET, command.name)
            command.prefix = account.config.name.encode()
            command.may_delete = account.may(Right.DELETE, command.name)
            if may_use and account.may_create(command.name):
                return command
            return _refusal(command, f"create on {command.name!r}")
        right = _ON_A_QUEUE.get(kind)
        if right is None:
            return command if account.is_admin else _refusal(command, "requires the admin right on all queues")
        if right is Right.GET and command.peeks:
            right = Right.PEEK
        if account.may(right, command.name):
            command.may_create = account.may_create(command.name)
            return command
        return _refusal(command, f"{right.value} on {command.name!r}")

    return check


def _refusal(command: Command, reason: str) -> Command:
    """Return a command that answers with the refusal, and discards the data of `command`."""
    refusal = Command(wire.REPLY)
    refusal.data_bytes = command.data_bytes
    if not command.noreply:
        refusal.reply = f"CLIENT_ERROR not allowed: {reason}\r\n".encode("latin-1", "replace")
    return refusal
