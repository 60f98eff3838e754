"""The dictionary by itself, beside a model of what it should hold."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from kestreld.cache.dictionary import ITEM_OVERHEAD_BYTES, Dictionary
from kestreld.cache.entries import NEVER_MS, name_of, unpack
from tests.support.clock import FakeClock

DAY_S = 24 * 60 * 60


def make(memory_bytes: int = 1 << 20) -> tuple[Dictionary, FakeClock]:
    clock = FakeClock()
    return Dictionary(clock, memory_bytes, 1 << 20), clock


def put(dictionary: Dictionary, key: bytes, data: bytes, expiry_s: int = 0) -> None:
    dictionary.read_clock()
    dictionary.put(name_of(key), dictionary.item(b"0", data, expiry_s))


def get(dictionary: Dictionary, key: bytes) -> bytes | None:
    """As the handler does it."""
    dictionary.read_clock()
    name = name_of(key)
    entry = dictionary.fetch(name)
    return None if entry is None else unpack(name, entry).data


def tidied(dictionary: Dictionary) -> int:
    """Do all there is to tidy; in how many steps."""
    return sum(1 for _ in dictionary.tidy())


def cost(key: bytes, data: bytes) -> int:
    dictionary, _ = make()
    put(dictionary, key, data)
    return dictionary.used_bytes


KEYS = st.sampled_from([b"key%d" % number for number in range(12)])
DATA = st.integers(0, 600).map(lambda size: b"x" * size)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, DATA, st.sampled_from([0, 0, 1, 5, 100])),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("remove"), KEYS),
    st.tuples(st.just("expire"), KEYS, st.sampled_from([0, 2, -1])),
    st.tuples(st.just("wait"), st.integers(1, 70_000)),
    st.tuples(st.just("flush"), st.sampled_from([0, 3])),
    st.tuples(st.just("tidy")),
)


class Model:
    """A dict in the order of use, as exact as it can be."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.items: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self.now_ms = 0
        self.flush_at_ms: int | None = None

    def put(self, key: bytes, data: bytes, expiry_s: int) -> None:
        self.items.pop(key, None)
        self.items[key] = (data, self.now_ms + expiry_s * 1000 if expiry_s else NEVER_MS)
        while sum(cost(key, data) for key, (data, _) in self.items.items()) > self.memory_bytes and len(self.items) > 1:
            self.items.popitem(last=False)

    def get(self, key: bytes) -> bytes | None:
        return self.items[key][0] if key in self.items else None

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        if self.flush_at_ms is not None and self.now_ms >= self.flush_at_ms:
            self.items.clear()
            self.flush_at_ms = None
        for key, (_, expires_at_ms) in list(self.items.items()):
            if expires_at_ms <= self.now_ms:
                del self.items[key]


@given(st.lists(STEPS, max_size=60))
def test_without_pressure_it_holds_what_a_dict_would(steps: list[tuple[object, ...]]) -> None:
    dictionary, clock = make()
    model = Model(1 << 40)
    for step in steps:
        match step:
            case ("put", bytes(key), bytes(data), int(expiry_s)):
                put(dictionary, key, data, expiry_s)
                model.put(key, data, expiry_s)
            case ("get", bytes(key)):
                assert get(dictionary, key) == model.get(key)
            case ("remove", bytes(key)):
                assert dictionary.remove(name_of(key)) >= (model.items.pop(key, None) is not None)
            case ("expire", bytes(key), int(expiry_s)):
                dictionary.read_clock()
                assert dictionary.expire_at(name_of(key), dictionary.expiry_ms(expiry_s)) == (key in model.items)
                if key in model.items and expiry_s < 0:
                    del model.items[key]
                elif key in model.items:
                    ends_at_ms = model.now_ms + expiry_s * 1000 if expiry_s else NEVER_MS
                    model.items[key] = (model.items[key][0], ends_at_ms)
            case ("wait", int(ms)):
                clock.advance(ms)
                model.wait(ms)
            case ("flush", int(delay_s)):
                dictionary.read_clock()
                dictionary.flush(delay_s)
                model.flush_at_ms = model.now_ms + delay_s * 1000 if delay_s else None
                if not delay_s:
                    model.items.clear()
            case _:
                dictionary.read_clock()
                tidied(dictionary)
    dictionary.read_clock()
    tidied(dictionary)
    held = {key: get(dictionary, key) for key in model.items}
    assert held == {key: data for key, (data, _) in model.items.items()}
    assert dictionary.items == len(held)
    assert dictionary.used_bytes == sum(cost(key, data) for key, (data, _) in model.items.items())


@given(st.lists(st.tuples(KEYS, st.integers(0, 600), st.booleans()), max_size=80))
def test_what_leaves_for_lack_of_memory_is_what_was_used_least_lately(steps: list[tuple[bytes, int, bool]]) -> None:
    memory_bytes = 3000
    dictionary, clock = make(memory_bytes)
    model = Model(memory_bytes)
    for key, size, is_get in steps:
        clock.advance(60_000)  # what is used is moved up at once
        if is_get:
            assert get(dictionary, key) == get(dictionary, key) == model.get(key)
            if key in model.items:
                model.items.move_to_end(key)
        else:
            put(dictionary, key, b"x" * size)
            model.put(key, b"x" * size, 0)
        assert dictionary.used_bytes <= memory_bytes
    assert {key for key in model.items if get(dictionary, key) is None} == set()
    assert dictionary.items == len(model.items)


def test_among_very_many_the_oldest_leave_first_but_for_a_few() -> None:
    dictionary, clock = make(40_000 * (ITEM_OVERHEAD_BYTES + 100))
    count = 0
    while dictionary.counts.evictions < 10_000:
        put(dictionary, b"key%07d" % count, b"x" * 64)
        count += 1
        if count % 100 == 0:
            clock.advance(10)
    held = [number for number in range(count) if dictionary.find(name_of(b"key%07d" % number)) is not None]
    assert len(held) == dictionary.items
    oldest_expected = count - len(held)
    assert len([number for number in held if number < oldest_expected]) < len(held) / 20
    assert min(held) > oldest_expected - len(held) / 8


def test_what_is_read_often_stays_however_much_is_written() -> None:
    dictionary, clock = make(1 << 20)
    put(dictionary, b"hot", b"1")
    for number in range(20_000):
        put(dictionary, b"cold%d" % number, b"x" * 64)
        clock.advance(1)
        if number % 50 == 0:
            assert get(dictionary, b"hot") == b"1"
    assert dictionary.counts.evictions > 10_000


def test_a_few_large_values_leave_in_order_although_there_were_many_small_ones() -> None:
    dictionary, clock = make(8 << 20)
    for number in range(30_000):
        put(dictionary, b"small%d" % number, b"x" * 64)
    for number in range(100):
        clock.advance(1000)
        put(dictionary, b"large%d" % number, b"x" * 500_000)
        while dictionary.used_bytes > 8 << 20:
            put(dictionary, b"small", b"x")
    held = [number for number in range(100) if dictionary.find(name_of(b"large%d" % number)) is not None]
    assert held[-8:] == list(range(92, 100))


def test_expiry_is_relative_up_to_thirty_days_and_a_date_beyond() -> None:
    dictionary, clock = make()
    put(dictionary, b"relative", b"1", 30 * DAY_S)
    put(dictionary, b"date", b"1", clock.wall_ms // 1000 + 60)
    put(dictionary, b"past", b"1", clock.wall_ms // 1000 - 60)
    put(dictionary, b"negative", b"1", -1)
    assert [get(dictionary, key) for key in (b"relative", b"date", b"past", b"negative")] == [b"1", b"1", None, None]
    clock.advance(59_999)
    assert get(dictionary, b"date") == b"1"
    clock.advance(1)
    assert get(dictionary, b"date") is None
    clock.advance((30 * DAY_S - 60) * 1000 - 1)
    assert get(dictionary, b"relative") == b"1"
    clock.advance(1)
    assert get(dictionary, b"relative") is None


def test_expired_and_flushed_items_give_their_memory_back_in_small_steps() -> None:
    dictionary, clock = make(64 << 20)
    for number in range(20_000):
        put(dictionary, b"key%d" % number, b"x" * 64, 10 if number % 2 else 0)
    assert dictionary.tidy_at_ms == clock.monotonic_ms + 10_000
    clock.advance(10_000)
    dictionary.read_clock()
    assert tidied(dictionary) > 40
    assert dictionary.items == 10_000
    assert dictionary.tidy_at_ms == NEVER_MS
    dictionary.flush(0)
    assert (dictionary.items, dictionary.used_bytes) == (0, 0)
    assert dictionary.tidy_at_ms <= clock.monotonic_ms
    assert tidied(dictionary) > 40
    assert dictionary.tidy_at_ms == NEVER_MS


def test_a_lower_limit_is_come_down_to_in_small_steps() -> None:
    dictionary, clock = make(8 << 20)
    for number in range(20_000):
        put(dictionary, b"key%d" % number, b"x" * 64)
    dictionary.configure(1 << 18, 1 << 20)
    assert dictionary.tidy_at_ms <= clock.monotonic_ms
    assert tidied(dictionary) > 20
    assert dictionary.used_bytes <= 1 << 18
    assert dictionary.tidy_at_ms == NEVER_MS


def test_a_flush_that_is_put_off_is_done_although_nobody_comes() -> None:
    dictionary, clock = make()
    put(dictionary, b"key", b"1")
    dictionary.flush(10)
    assert dictionary.tidy_at_ms == clock.monotonic_ms + 10_000
    clock.advance(10_000)
    tidied(dictionary)
    assert (dictionary.items, dictionary.tidy_at_ms) == (0, NEVER_MS)


def test_one_item_may_be_larger_than_all_the_memory() -> None:
    dictionary, _ = make(1 << 10)
    put(dictionary, b"small", b"1")
    put(dictionary, b"large", b"x" * 5000)
    assert (dictionary.items, dictionary.is_over_limit) == (1, False)
    assert get(dictionary, b"large") == b"x" * 5000


def test_what_was_asked_for_when_it_had_expired_is_counted_and_what_was_tidied_away_is_not() -> None:
    dictionary, clock = make()
    for key in (b"asked", b"touched", b"tidied"):
        put(dictionary, key, b"x", 1)
    clock.advance(1001)
    assert get(dictionary, b"asked") is None
    assert not dictionary.expire_at(name_of(b"touched"), NEVER_MS)
    assert get(dictionary, b"asked") is None
    tidied(dictionary)
    assert get(dictionary, b"tidied") is None
    assert (dictionary.counts.get_expired, dictionary.counts.reclaimed) == (2, 3)
