"""Users of the running server: rights, rate limits, and password checks."""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from kestreld.clock import Clock
from kestreld.config.users import ALL_OF_CACHE, ALL_OF_JOBS, EVERYTHING, Right, Rights, Thing, UserConfig, pattern_of
from kestreld.passwords import NOBODYS, PasswordHash
from kestreld.server.command_handler import ParsedCommands

C = TypeVar("C", bound=ParsedCommands)


class Meter:
    """A rate limit in bytes a second; unused bytes are saved up for one second."""

    def __init__(self, clock: Clock, rate_bytes: int) -> None:
        self._clock = clock
        self.rate_bytes = rate_bytes
        self._left_bytes = rate_bytes
        self._at_ms = clock.monotonic_ms

    def spend(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes

    def wait_ms(self) -> int:
        """Return the time until bytes may be used again, in ms; 0 = now."""
        now_ms = self._clock.monotonic_ms
        gained_bytes = (now_ms - self._at_ms) * self.rate_bytes // 1000
        if gained_bytes:
            self._left_bytes = min(self._left_bytes + gained_bytes, self.rate_bytes)
            self._at_ms = now_ms
        return 0 if self._left_bytes > 0 else -self._left_bytes * 1000 // self.rate_bytes + 1


class Account:
    """A user, with the commands that protocols have checked for them, which no other user shares."""

    def __init__(self, config: UserConfig, clock: Clock) -> None:
        self._commands: dict[str, ParsedCommands] = {}  # by protocol
        self.meter: Meter | None = None
        self._creates_by_right = False
        self.known = b""  # digest of the last correct password; b"" = none yet
        self.configure(config, clock)

    def configure(self, config: UserConfig, clock: Clock) -> None:
        """Set the user's rights and rate limit."""
        self.config = config
        self.is_admin = any(Right.ADMIN in rights and pattern == EVERYTHING for pattern, rights in config.rights)
        granted: dict[Thing, Sequence[tuple[str, Rights]]] = {
            Thing.QUEUE: config.rights,
            Thing.CACHE: config.cache_rights,
            Thing.JOB: config.job_rights,
        }
        if self.is_admin:
            granted[Thing.CACHE] = ((EVERYTHING, ALL_OF_CACHE),)
            granted[Thing.JOB] = ((EVERYTHING, ALL_OF_JOBS),)
        self._may = {
            (thing, right): pattern_of([pattern for pattern, rights in by_pattern if right in rights])
            for thing, by_pattern in granted.items()
            for right in Right
        }
        self._may_all = {
            (thing, right)
            for thing, by_pattern in granted.items()
            for pattern, rights in by_pattern
            if pattern == EVERYTHING
            for right in rights
        }
        self._seen = {
            thing: pattern_of([pattern for pattern, rights in by_pattern if rights])
            for thing, by_pattern in granted.items()
        }
        if config.rate_bytes is None:
            self.meter = None
        elif self.meter is None or self.meter.rate_bytes != config.rate_bytes:
            self.meter = Meter(clock, config.rate_bytes)
        self.forget_commands()

    def create_by_right(self, by_right: bool) -> None:
        """Set whether creating a queue requires the right CREATE; otherwise a right to put or get is enough."""
        if by_right != self._creates_by_right:
            self._creates_by_right = by_right
            self.forget_commands()

    def may_create(self, queue: str) -> bool:
        """Return True if a user with the right to put or get on this queue may also create it."""
        return not self._creates_by_right or self.may(Right.CREATE, queue)

    def may(self, right: Right, name: str, thing: Thing = Thing.QUEUE) -> bool:
        """Return True if the user has this right on the thing of that name."""
        return self._may[thing, right].fullmatch(name) is not None

    def may_all(self, right: Right, thing: Thing) -> bool:
        """Return True if the user has this right on everything of the kind."""
        return (thing, right) in self._may_all

    def sees(self, queue: str, thing: Thing = Thing.QUEUE) -> bool:
        """Return True if the user has any right on a queue, and may therefore know of it."""
        return self._seen[thing].fullmatch(queue) is not None

    def commands(self, protocol: str, new: Callable[[], C]) -> C:
        """Return this account's cache of a protocol's parsed and checked commands, made by `new` if missing."""
        return cast(C, self._commands.setdefault(protocol, new()))

    def forget_commands(self) -> None:
        """Empty the caches: the meaning of a command, or the right to it, may have changed."""
        for parsed in self._commands.values():
            parsed.clear()


class Accounts:
    """All users, by name and by the name in a certificate.

    A password that was correct once is recognised at once afterwards, by a digest under a key of this process only.
    Any other takes a tenth of a second, in the CPU worker.
    """

    def __init__(self, clock: Clock, key: bytes) -> None:
        self._clock = clock
        self._key = key
        self.revision = 0  # of users and rights; increases with every reload
        self.by_name: dict[bytes, Account] = {}
        self._by_certificate: dict[str, Account] = {}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def configure(self, users: Mapping[str, UserConfig]) -> list[Account]:
        """Set the users; returns the accounts that must log in again: users removed, or with new credentials."""
        self.revision += 1
        changed = []
        for name in [name for name in self.by_name if name.decode() not in users]:
            changed.append(self.by_name.pop(name))
        for user in users.values():
            account = self.by_name.get(user.name.encode())
            if account is None:
                self.by_name[user.name.encode()] = Account(user, self._clock)
                continue
            before = account.config
            if (before.password, before.certificates) != (user.password, user.certificates):
                changed.append(account)
                self.by_name[user.name.encode()] = Account(user, self._clock)
            elif before != user:
                account.configure(user, self._clock)
        by_right = any(user.names_create for user in users.values())
        for account in self.by_name.values():
            account.create_by_right(by_right)
        self._by_certificate = {
            name: account for account in self.by_name.values() for name in account.config.certificates
        }
        return changed

    def forget_commands(self) -> None:
        """Empty the caches of all accounts: the meaning of a command line may have changed."""
        for account in self.by_name.values():
            account.forget_commands()

    def of_certificate(self, names: set[str]) -> Account | None:
        """Return the account with these names in its certificate; None if there is none or more than one."""
        found = {id(account): account for name in names if (account := self._by_certificate.get(name)) is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def recognise(self, name: bytes, password: bytes) -> Account | None:
        """Return the account if this password has been correct before, else None."""
        account = self.by_name.get(name)
        if account is None or not account.known:
            return None
        return account if hmac.compare_digest(account.known, self._digest(name, password)) else None

    def compare(self, name: bytes, password: bytes) -> tuple[Callable[[], bool], Callable[[bool], Account | None]]:
        """Return a slow check of the password, for a thread, and a function of its result.

        The function returns the account, or None if the password is wrong.
        """
        account = self.by_name.get(name)
        kept: PasswordHash = (account.config.password if account is not None else None) or NOBODYS

        def conclude(fits: bool) -> Account | None:
            if not fits or account is None or self.by_name.get(name) is not account:
                return None
            account.known = self._digest(name, password)
            return account

        return lambda: kept.fits(password), conclude

    def _digest(self, name: bytes, password: bytes) -> bytes:
        return hashlib.blake2b(name + b"\0" + password, key=self._key, digest_size=32).digest()
