"""The work of `move` and `copy`: on each server of a context separately, or from all of them to another server."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from kestrelctl.items.listing import matching
from kestrelctl.items.moving import Expiries, ItemMover, Pace, Pattern, put_paced, to_put
from kestrelctl.remote.client import KestrelClient
from kestrelctl.remote.contexts import Way
from kestrelctl.remote.reader_api import NotReadable, ReaderApi, open_reader_api
from kestrelctl.shell.endings import at_end
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark


@dataclass(frozen=True, slots=True)
class Transfer:
    """The arguments of `move` or `copy`."""

    way: Way
    timeout_ms: int
    source: str
    target: str
    to: str  # "" = the server itself
    match: Pattern
    limit: int | None
    rate_s: float  # 0 = as fast as it goes

    def servers(self) -> Iterator[tuple[str, str]]:
        """Pairs of source and target server. Raises Failure for a queue onto itself."""
        if self.source == self.target and self.stays_there:
            raise Failure(ExitCode.USAGE, f"source and destination are the same: {self.source}")
        return ((address, self.to or address) for address in self.way.servers)

    @property
    def stays_there(self) -> bool:
        return not self.to or self.to in self.way.servers

    def left(self, done: int) -> int | None:
        return None if self.limit is None else self.limit - done

    def reader(self, address: str) -> ReaderApi:
        reader_api = open_reader_api(address, self.timeout_ms, self.way.admin_port, self.way.login)
        at_end.callback(reader_api.close)
        return reader_api

    def connect(self, address: str) -> KestrelClient:
        client = KestrelClient(address, self.timeout_ms, self.way.login)
        at_end.callback(client.close)
        return client


def copy_all(transfer: Transfer) -> int:
    """Copy the items and return their number. Raises Failure."""
    pace, copied = Pace(transfer.rate_s), 0
    for address, to in transfer.servers():
        found = matching(transfer.reader(address).waiting(transfer.source), transfer.match)
        items = to_put(islice(found, transfer.left(copied)))
        copied += put_paced(transfer.connect(to), transfer.target, items, pace)
    return copied


def move_all(transfer: Transfer) -> int:
    """Move the items and return their number. Raises Failure."""
    if transfer.source.startswith(f"{transfer.target}+") and transfer.stays_there:
        raise Failure(
            ExitCode.USAGE, f"would loop: items put on {transfer.target} are also delivered to {transfer.source}"
        )
    pace, moved = Pace(transfer.rate_s), 0
    for address, to in transfer.servers():
        expiries = _expiries(transfer, address)
        move = ItemMover(
            partial(transfer.connect, address), transfer.source, transfer.connect(to), transfer.target, expiries
        )
        try:
            move.run(transfer.match, transfer.left(moved), pace)
        except Failure as failure:
            moved += move.moved
            if not moved:
                raise
            raise Failure(ExitCode.PARTLY_STORED, f"{failure.words}; moved items={moved} before") from failure
        moved += move.moved
    return moved


def _expiries(transfer: Transfer, address: str) -> Expiries | None:
    try:
        return Expiries(transfer.reader(address), transfer.source)
    except NotReadable as problem:
        remark(f"{problem.words}; expiry times are not kept")
        return None
