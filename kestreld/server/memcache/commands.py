"""Parsed commands of Kestrel's memcache protocol, their kinds, and the cache of parsed lines."""

from collections.abc import Callable
from typing import Any, Final

from kestreld.server.command_handler import ParsedCommands

# Kinds, as plain ints: the handler compares one per command
SET: Final = 0
SET_WITH: Final = 1  # with expiry, flags or noreply, or to a child
GET: Final = 2  # one queue, no option
NEXT: Final = 3  # one queue, /close/open and no wait: what a reliable consumer repeats
READ: Final = 4  # one queue with any other options, or gets
GET_MANY: Final = 5
DELETE: Final = 6
FLUSH: Final = 7
FLUSH_ALL: Final = 8
FLUSH_EXPIRED: Final = 9
FLUSH_ALL_EXPIRED: Final = 10
VERSION: Final = 11
SHUTDOWN: Final = 12
RELOAD: Final = 13
DUMP_CONFIG: Final = 14
STATS: Final = 15
DUMP_STATS: Final = 16
QUIT: Final = 17
REPLY: Final = 18  # answer `reply`, then close if `closes`
TOO_LARGE: Final = 19  # a SET whose data was discarded: it is larger than the queue allows
REPAIR: Final = 20
UNDO: Final = 21
DUMP_JOB_QUEUES: Final = 22
BIND: Final = 23
UNBIND: Final = 24
UNBIND_ALL: Final = 25  # bindings of a queue to an exchange
BINDINGS: Final = 26
DECLARE: Final = 27
# From here on: items that are leased, or have a key
LEASE: Final = 28
LEASE_FIRST: Final = 29  # of several queues, the first that has an item
LEASE_BY: Final = 30  # the holder has a name, or the deliveries before are asked for
CANCEL: Final = 31
LEASES: Final = 32  # what a holder has
FLUSH_COUNTED: Final = 33  # a FLUSH whose answer is the number of items
LIST_QUEUES: Final = 34  # a connection's list of queues is made, gets longer or is dropped
LEASE_LISTED: Final = 35  # of the queues of such a list, the first that has an item
PRESENT: Final = 36  # a holder is present through this connection
CONFIRM: Final = 37  # this and the following kinds: in a batch, their token follows
EXTEND: Final = 38
GIVE_BACK: Final = 39
FAIL: Final = 40

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
END: Final = b"END\r\n"
DELETED: Final = b"DELETED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
OK: Final = b"OK\r\n"
DECLARED: Final = b"DECLARED\r\n"
ERROR: Final = b"ERROR\r\n"


class Command:
    """One parsed command line, shared by all commands of the same text: only `target` changes.

    Lines with a token share it if they differ in nothing but the token. `name` is the queue's, `key` is the word that
    the client wrote; `wait_ms` -1 = do not wait; `data_bytes` -1 = no data follows. With `counts` the answer has how
    often the item was delivered before. `target` is where the handler keeps the reader of that name. `sees` tests which
    queues the sender may know of, None = all; `may_create` is True if the sender may create the queue, `may_delete` if
    they may delete it. `lease_ms` is the duration of a lease; `delay_ms` the time until an item that is put or given
    back is due; `item_key` the text after `key=`, `reason=` or `by=`, of a PRESENT the holder's name, of a DECLARE all
    of its options, or the key of a binding, of which an UNBIND_ALL has the exchange only. `delay_ms` of a PRESENT is
    the time of absence. Of a LEASE_LISTED `name` is that of the list, `key` has the options that its queues are leased
    from with, and `words` all options.
    """

    __slots__ = (
        "aborts",
        "adds",
        "closes",
        "counts",
        "data_bytes",
        "delay_ms",
        "expiry_s",
        "flags",
        "item_key",
        "key",
        "kind",
        "lease_ms",
        "may_create",
        "may_delete",
        "name",
        "noreply",
        "opens",
        "parts",
        "peeks",
        "prefix",
        "reply",
        "sees",
        "target",
        "wait_ms",
        "with_id",
        "words",
    )

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.key = b""
        self.name = ""
        self.data_bytes = -1
        self.expiry_s = 0
        self.flags = 0
        self.noreply = False
        self.wait_ms = -1
        self.opens = False
        self.closes = False  # of a READ: /close; of a REPLY: hang up afterwards
        self.aborts = False
        self.peeks = False
        self.with_id = False
        self.counts = False
        self.adds = False  # of a SET_WITH: it is an add
        self.lease_ms = 0
        self.delay_ms = 0
        self.item_key = b""
        self.prefix = b""  # VALUE line up to the length, for an item without flags; of a DECLARE: its user
        self.reply = b""
        self.words: list[bytes] = []
        self.sees: Callable[[str], bool] | None = None
        self.may_create = True
        self.may_delete = True
        self.parts: list[Command] = []
        self.target: Any = None


class CommandCache(ParsedCommands):
    """Command lines already parsed. Bounded: cleared when full, and when the meaning of a line may have changed."""

    def __init__(self) -> None:
        self.whole: dict[bytes, Command] = {}  # with the line end it came with
        self.texts: dict[bytes, Command] = {}  # the same, without
        self.stores: dict[bytes, Command] = {}  # SET lines less their last word, the length
        self.about_leases: dict[bytes, Command] = {}  # lines less their token
        self.keyed: dict[bytes, Command] = {}  # SET lines up to their key, without flags and expiry

    def clear(self) -> None:
        """Forget every line, and the readers that commands already handed out remember."""
        for cached in (self.whole, self.texts, self.stores, self.about_leases, self.keyed):
            for command in cached.values():
                command.target = None
                for part in command.parts:
                    part.target = None
            cached.clear()
