"""Random memcached commands, sound and unsound. `<cas0>` and so on stand for cas numbers that the server has told."""

import base64
import time
from typing import Final

from hypothesis import strategies as st

FAR_S: Final = 1000
ITEM_BYTES_MAX: Final = 1 << 20  # of both servers; with much smaller ones memcached 1.6.18 crashes
KEYS: Final = (b"a", b"b", b"n", b"caf\xc3\xa9", b"k" * 250)
LONG_KEYS: Final = (b"k" * 251, b"l" * 400)
NUMBERS: Final = (b"0", b"1", b"9", b"100", b"18446744073709551615", b"9223372036854775808", b"007")
ODD_NUMBERS: Final = (
    b"", b"-", b"+", b"-1", b"+1", b"-0", b"x", b"1x", b"x1", b"0x1", b"1e1", b"1.5", b"\xd9\xa9", b"2147483647",
    b"2147483648", b"-2147483648", b"4294967295", b"4294967296", b"18446744073709551616", b"9" * 30, b"1\t",
)  # fmt: skip
WORDS: Final = (b"", b"noreply", b"x", b"0", b"noreply x")

keys = st.sampled_from(KEYS[:3]) | st.sampled_from(KEYS + LONG_KEYS)
counts = st.sampled_from(NUMBERS) | st.sampled_from(ODD_NUMBERS)
flags = st.sampled_from((b"0", b"0", b"7", b"65535", b"4294967295")) | st.sampled_from(ODD_NUMBERS)
# Whole hundreds of seconds, so that an answer about what is left is the same if a second ends between two servers.
expiries = st.sampled_from((b"0", b"0", b"0", b"-1", b"100", b"500", b"2592000", b"2592001", b"now")) | st.sampled_from(
    tuple(word for word in ODD_NUMBERS if word not in (b"+1", b"1\t", b"007"))
)
some_data = st.sampled_from(
    (b"", b"x", b"abc", b"10", b"007", b"5 ", b"-1", b"18446744073709551615", b"a\r\nb", b"\0\n")
)
large_data = st.integers(ITEM_BYTES_MAX - 500, ITEM_BYTES_MAX + 500).map(
    lambda size_bytes: (b"y" * 999 + b"\n") * (size_bytes // 1000) + b"z" * (size_bytes % 1000)
)
noreply = st.sampled_from((b"", b"", b"", b" noreply")) | st.sampled_from(WORDS).map(lambda word: b" " + word)
cas_numbers = st.sampled_from((b"<cas0>", b"<cas1>", b"<cas2>")) | counts
lengths = st.sampled_from(ODD_NUMBERS)


def line(*words: bytes) -> bytes:
    return b" ".join(words).replace(b"now", b"%d" % (time.time() + FAR_S)) + b"\r\n"


@st.composite
def blocks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The length that is said, and the data with its end. Most are true."""
    data = draw(large_data if draw(st.integers(0, 29)) == 29 else some_data)
    which = draw(st.integers(0, 19))
    if which == 0:
        return draw(lengths), data + b"\r\n"
    if which == 1:
        return b"%d" % max(len(data) + draw(st.sampled_from((-2, -1, 1, 2))), 0), data + b"\r\n"
    if which == 2:
        return b"%d" % len(data), data + draw(st.sampled_from((b"\n", b"\r", b"", b"\n\r", b"zz")))
    return b"%d" % len(data), data + b"\r\n"


@st.composite
def storage(draw: st.DrawFn) -> bytes:
    word = draw(st.sampled_from((b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas")))
    length, data = draw(blocks())
    words = [word, draw(keys), draw(flags), draw(expiries), length]
    if word == b"cas":  # none is empty: the number would be in the place of the length
        words = [each or b"x" for each in [*words, draw(cas_numbers)]]
    return line(*words).removesuffix(b"\r\n") + draw(noreply) + b"\r\n" + data


def tailed(*words: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A line of these words, and of nothing, noreply, or what does not belong there."""
    return st.tuples(st.tuples(*words), noreply).map(lambda both: line(b" ".join(both[0]) + both[1]))


def word(*choices: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(choices)


# Not those that are too long: with what it answers to them memcached drops the answers before it in the same packet.
many_keys = st.lists(st.sampled_from(KEYS), max_size=4) | st.lists(st.sampled_from(KEYS[:3]), min_size=20, max_size=60)
retrieval = st.builds(line, word(b"get", b"gets"), many_keys.map(b" ".join)) | st.builds(
    line, word(b"gat", b"gats"), expiries, many_keys.map(b" ".join)
)
changes = (
    tailed(word(b"delete"), keys)
    | tailed(word(b"incr", b"decr"), keys, counts)
    | tailed(word(b"touch"), keys, expiries)
)
rare = (
    tailed(word(b"flush_all", b"flush_all 0", b"flush_all -1", b"flush_all x", b"verbosity", b"verbosity 1"))
    | tailed(st.just(b"version"))
    | st.builds(line, word(b"stats", b"stats reset", b"stats nonsense"))
    | st.builds(
        line, word(b"", b" ", b"get", b"set", b"SET a 0 0 1", b"frobnicate", b"a\0b", b"\x01", b"\xff\xfe", b"mn x")
    )
    | st.sampled_from(
        (b"\n", b"get a\n", b" get a\r\n", b"get  a   b  \r\n", b"get a\r\r\n", b"get\ta\r\n", b"get a\0b\r\n")
    )
)

# Meta commands

meta_keys = st.tuples(keys, st.booleans()).map(
    lambda both: (both[0], b"") if both[1] else (base64.b64encode(both[0]), b"b")
) | st.sampled_from(((b"!!!", b"b"), (b"YQ", b"b"), (b"a", b"b"), (b"", b"")))
opaque = st.sampled_from((b"O1", b"Oabc", b"O" + b"o" * 32, b"O" + b"o" * 33, b"O"))
common = st.sampled_from((b"k", b"q", b"b", b"P/path", b"Lhint")) | opaque
odd_flags = st.sampled_from((b"!", b"Z", b"W", b"vv", b"\xc3\xa9", b"1", b"", b"S3", b"kk"))


def flagged(prefix: bytes, numbers: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: prefix + number)


def meta_flags(*own: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    choice = st.one_of(*own, *own, *own, common)
    return st.lists(st.one_of(*[choice] * 15, odd_flags), max_size=6).map(
        lambda flags: b"".join([b" " + flag for flag in flags])
    )


get_flags = meta_flags(
    word(b"v", b"v", b"s", b"t", b"c", b"f", b"h", b"l", b"u"), flagged(b"T", expiries), flagged(b"N", expiries),
    word(b"R30", b"R50", b"R150", b"R700", b"R0", b"R-5", b"R2592001", b"R2000000000", b"Rx", b"R"),
)  # fmt: skip
set_flags = meta_flags(
    word(b"c", b"I"), flagged(b"C", cas_numbers), flagged(b"F", flags), flagged(b"T", expiries),
    word(b"ME", b"MA", b"MP", b"MR", b"MS", b"Me", b"Ma", b"Mx", b"M", b"Mset"),
)  # fmt: skip
delete_flags = meta_flags(word(b"I", b"I", b"q"), flagged(b"C", cas_numbers), flagged(b"T", expiries))
count_flags = meta_flags(
    word(b"v", b"v", b"t", b"c"), flagged(b"C", cas_numbers), flagged(b"N", expiries), flagged(b"J", counts),
    flagged(b"D", counts), flagged(b"T", expiries), word(b"MI", b"MD", b"M+", b"M-", b"Mi", b"Mincr", b"Mx", b"M"),
)  # fmt: skip


def meta_line(command: bytes, key: tuple[bytes, bytes], flags: bytes, length: bytes = b"") -> bytes:
    name, binary = key
    return line(b"%b %b%b%b%b" % (command, name, length, binary and b" " + binary, flags))


meta = (
    st.builds(meta_line, word(b"mg"), meta_keys, get_flags)
    | st.builds(meta_line, word(b"md"), meta_keys, delete_flags)
    | st.builds(meta_line, word(b"ma"), meta_keys, count_flags)
    | st.builds(
        lambda key, flags, block: meta_line(b"ms", key, flags, b" " + block[0]) + block[1],
        meta_keys,
        set_flags,
        blocks(),
    )
    | st.builds(meta_line, word(b"me"), meta_keys, st.just(b""))
    | st.just(b"mn\r\n")
)
endings = st.sampled_from((b"", b"", b"quit\r\n", b"quit now\r\n"))
text = st.one_of(storage(), storage(), storage(), retrieval, retrieval, changes, changes, rare)
