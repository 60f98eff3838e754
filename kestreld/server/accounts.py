"""The users as the running server has them: what each may do, and whether a password is his."""

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
    """A number of bytes a second that may be used up. A second's worth may be saved up."""

    def __init__(self, clock: Clock, rate_bytes: int) -> None:
        self._clock = clock
        self.rate_bytes = rate_bytes
        self._left_bytes = rate_bytes
        self._at_ms = clock.monotonic_ms

    def spend(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes

    def wait_ms(self) -> int:
        """How long until there is something left; 0 when there is."""
        now_ms = self._clock.monotonic_ms
        gained_bytes = (now_ms - self._at_ms) * self.rate_bytes // 1000
        if gained_bytes:
            self._left_bytes = min(self._left_bytes + gained_bytes, self.rate_bytes)
            self._at_ms = now_ms
        return 0 if self._left_bytes > 0 else -self._left_bytes * 1000 // self.rate_bytes + 1


class Account:
    """A user. What protocols have checked for it is cached here, apart from everybody else's."""

    def __init__(self, config: UserConfig, clock: Clock) -> None:
        self._commands: dict[str, ParsedCommands] = {}  # by protocol
        self.meter: Meter | None = None
        self._creates_by_right = False
        self.known = b""  # the digest of the password that was right last; b"" = none yet
        self.configure(config, clock)

    def configure(self, config: UserConfig, clock: Clock) -> None:
        """What he may do from now on."""
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
        """Whether he may make a queue only by the right to, not by that to put or get."""
        if by_right != self._creates_by_right:
            self._creates_by_right = by_right
            self.forget_commands()

    def may_create(self, queue: str) -> bool:
        """Beside putting or getting there."""
        return not self._creates_by_right or self.may(Right.CREATE, queue)

    def may(self, right: Right, name: str, thing: Thing = Thing.QUEUE) -> bool:
        """Whether it has this right on the thing of that name."""
        return self._may[thing, right].fullmatch(name) is not None

    def may_all(self, right: Right, thing: Thing) -> bool:
        """Whether it has this right on everything of the kind."""
        return (thing, right) in self._may_all

    def sees(self, queue: str, thing: Thing = Thing.QUEUE) -> bool:
        """Whether he may know of a queue: he has some right on it."""
        return self._seen[thing].fullmatch(queue) is not None

    def commands(self, protocol: str, new: Callable[[], C]) -> C:
        """What a protocol has parsed and checked for this account: one cache, made by `new`."""
        return cast(C, self._commands.setdefault(protocol, new()))

    def forget_commands(self) -> None:
        """What a command means, or whether it is allowed, may have changed."""
        for parsed in self._commands.values():
            parsed.clear()


class Accounts:
    """Every user, by name and by the name in a certificate.

    A password that was right once is recognised at once afterwards, by a digest under a key that only this process
    has. All others take a tenth of a second, which is `slowly`'s.
    """

    def __init__(self, clock: Clock, key: bytes) -> None:
        self._clock = clock
        self._key = key
        self.revision = 0  # of who may do what; rises with every reload
        self.by_name: dict[bytes, Account] = {}
        self._by_certificate: dict[str, Account] = {}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def configure(self, users: Mapping[str, UserConfig]) -> list[Account]:
        """Make these the users; those who have to log in again, since they are none any more or are somebody else."""
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
        """What a command line means may have changed."""
        for account in self.by_name.values():
            account.forget_commands()

    def of_certificate(self, names: set[str]) -> Account | None:
        """Whose certificate has these names; None where it is nobody's or more than one user's."""
        found = {id(account): account for name in names if (account := self._by_certificate.get(name)) is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def recognise(self, name: bytes, password: bytes) -> Account | None:
        """The user, if this password has been right before."""
        account = self.by_name.get(name)
        if account is None or not account.known:
            return None
        return account if hmac.compare_digest(account.known, self._digest(name, password)) else None

    def compare(self, name: bytes, password: bytes) -> tuple[Callable[[], bool], Callable[[bool], Account | None]]:
        """What takes long, for another thread; and what to do with its result: who it is, None where it is wrong."""
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
