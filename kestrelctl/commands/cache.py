"""`kestrelctl cache get, set, add, incr, delete, flush, stats`: access to a cache."""

import os
import re
from typing import Annotated

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.dropping import MissingOkOption
from kestrelctl.commands.options import Answer, Output, RemoteCache, YesOption, data_is_literal, duration_ms
from kestrelctl.items.putting import expiry_s, open_source
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, remark, write_data
from kestreld.client.cache import KEY_BYTES_MAX


def _key(value: str) -> str:
    """An argument's key. Raises a usage error for a key that no cache accepts."""
    key = os.fsencode(value)
    if not key or len(key) > KEY_BYTES_MAX or re.search(rb"[\x00-\x20\x7f]", key):
        raise BadValue(f"{value!r} is not a key: 1 to {KEY_BYTES_MAX} bytes without blanks and control characters")
    return value


# Of parameters named `name`: `key` is that of the client's certificate.
KeyArgument = Annotated[str, argument(metavar="KEY", help="The key.", show_default=False, callback=_key)]
DataArgument = Annotated[
    str | None,
    argument(metavar="DATA|-|@FILE", help="The value. - or nothing: stdin. @FILE: the contents of FILE."),
]
ExpireOption = Annotated[
    int | None,
    option(metavar="SPAN", parser=duration_ms, help="The value expires after this: 10m, 2h; 90 = seconds."),
]
FlagsOption = Annotated[int, option(metavar="N", min=0, max=2**32 - 1, help="Flags of the value.")]


def cache_get(name: KeyArgument, remote: RemoteCache) -> None:
    """Write the value of a key to stdout, its bytes and nothing else.

    Exit 1 when there is none.
    """
    data = remote.client().get(os.fsencode(name))
    if data is None:
        raise _no_value(name)
    write_data(data)


def _value(data: str | None) -> bytes:
    return b"".join(open_source(data, is_literal=data_is_literal()))


def cache_set(
    name: KeyArgument,
    remote: RemoteCache,
    data: DataArgument = None,
    expire: ExpireOption = None,
    flags: FlagsOption = 0,
) -> None:
    """Store a value, in place of the one that there may be.

    DATA alone behind -- is the value, whatever it begins with.

    Exit 77 when it is larger than cache_item_size_max.
    """
    remote.client().set(os.fsencode(name), _value(data), expiry_s(expire), flags)
    remark(f"stored {name}")


def cache_add(
    name: KeyArgument,
    remote: RemoteCache,
    data: DataArgument = None,
    expire: ExpireOption = None,
    flags: FlagsOption = 0,
) -> None:
    """Store a value unless the key has one: of several that try at once, one succeeds.

    Exit 1 when it has one, 77 when the value is larger than cache_item_size_max.
    """
    if not remote.client().add(os.fsencode(name), _value(data), expiry_s(expire), flags):
        raise Failure(ExitCode.NEGATIVE, f"{name} already has a value")
    remark(f"stored {name}")


def cache_incr(
    name: KeyArgument,
    answer: Answer,
    remote: RemoteCache,
    by: Annotated[
        int, option("--by", metavar="N", min=1 - 2**64, max=2**64 - 1, help="Negative: count down, to 0 at the least.")
    ] = 1,
) -> None:
    """Add to the number that is the value of a key, and print it.

    Exit 1 when there is no value, 77 when it is not a number.
    """
    number = remote.client().increase(os.fsencode(name), by)
    if number is None:
        raise _no_value(name)
    answer.write({"value": number, "key": name})


def cache_delete(
    name: KeyArgument, remote: RemoteCache, yes: YesOption = False, missing_ok: MissingOkOption = False
) -> None:
    """Delete the value of a key.

    Exit 1 when there is none.
    """
    confirm(f"delete the value of {name}?", yes=yes)
    if remote.client().delete(os.fsencode(name)):
        remark(f"deleted {name}")
    elif not missing_ok:
        raise _no_value(name)


def cache_flush(remote: RemoteCache, yes: YesOption = False) -> None:
    """Delete all values of a cache. They cannot be brought back."""
    client = remote.client()
    client.must_be_known()
    confirm(f"delete all values of {client.address}?", yes=yes)
    client.flush()
    remark(f"flushed {client.address}")


def cache_stats(
    output: Output,
    remote: RemoteCache,
    group: Annotated[
        str,
        argument(metavar="[items|settings]", help="Print these instead of the general statistics.", show_default=False),
    ] = "",
) -> None:
    """Print the figures of a cache, under memcached's names."""
    if group not in ("", "items", "settings"):
        raise BadValue(f"{group!r} is not a group of statistics: use items or settings")
    output.write_record(remote.client().stats(group.encode()))


def _no_value(name: str) -> Failure:
    return Failure(ExitCode.NEGATIVE, f"no value: {name}")
