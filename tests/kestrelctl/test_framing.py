"""Framing: what `get` frames, `put` splits again, however the stream is cut into chunks."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelctl.items.framing import SEPARATORS, Framing, frame, split
from kestrelctl.shell.exit_codes import Failure
from kestrelctl.shell.output import Layout, OutputFormat, write_rows
from kestreld.client.blocks import parse_blocks

REVERSIBLE = [Framing.LINES, Framing.NULL, Framing.LENGTH_PREFIXED]


def _cut(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    """The stream in chunks of these sizes, over and over."""
    at = 0
    for size in cycle(sizes):
        if at >= len(stream):
            return
        yield stream[at : at + size]
        at += size


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9), min_size=1), st.sampled_from(REVERSIBLE))
def test_framed_items_survive_any_cut_of_the_stream(items: list[bytes], sizes: list[int], framing: Framing) -> None:
    items = [item.replace(SEPARATORS.get(framing, b"\xff\xff"), b"") for item in items]
    stream = b"".join(frame(item, framing) for item in items)
    assert [item for batch in split(_cut(stream, sizes), framing) for item in batch] == items


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_split_by_length_are_the_items_they_say_they_are(chunks: list[bytes]) -> None:
    items: list[bytes] = []
    with suppress(Failure):
        for batch in split(chunks, Framing.LENGTH_PREFIXED):
            items += batch
    assert b"".join(chunks).startswith(b"".join(frame(item, Framing.LENGTH_PREFIXED) for item in items))


@given(st.binary())
def test_json_is_one_line_of_valid_json(item: bytes) -> None:
    line = frame(item, Framing.JSON)
    assert line.count(b"\n") == 1
    assert len(json.loads(line)) == 1


def test_an_unfinished_line_is_an_item_and_no_line_is_none() -> None:
    assert list(split([b"a", b"b\nc"], Framing.LINES)) == [[b"ab"], [b"c"]]
    assert list(split([b"a\n"], Framing.LINES)) == [[b"a"]]
    assert list(split([], Framing.LINES)) == []


@pytest.mark.parametrize("line", [b"", b"  ", b"}", b"  no pair", b"queue 'x'", b"END"])
def test_lines_that_mean_nothing_in_a_block_are_left_out(line: bytes) -> None:
    assert parse_blocks(b"queue 'it''s' {\n" + line + b"\n  items=3\n}\n") == [{"queue": "it''s", "items": 3}]


def test_many_blocks_are_read_like_each_alone() -> None:
    plain = b"queue 'q%d' {\n  items=%d\n  bytes=7\n}\n"
    with_text = b"queue 'q%d' {\n  items=%d\n  children=a,b\n}\n"
    blocks = [(with_text if number % 7 == 3 else plain) % (number, number) for number in range(3000)]
    blocks.insert(9, b"queue 'x' {\n  word\n}\nword\n")
    assert parse_blocks(b"".join(blocks)) == [one for block in blocks for one in parse_blocks(block)]


def test_json_is_written_as_with_an_indent(capfd: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, int | str]] = [{"a": 1, "b": 'x},\n    {"'}, {"a": 2}]
    write_rows(rows, ["a"], Layout(OutputFormat.JSON))
    write_rows(iter(rows), ["a"], Layout(OutputFormat.JSON))
    write_rows([], ["a"], Layout(OutputFormat.JSON))
    text = json.dumps(rows, indent=2) + "\n"
    assert capfd.readouterr().out == text + text + "[]\n"
