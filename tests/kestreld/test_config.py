"""Configuration files and overrides as operators write them, right and wrong."""

import re
import string
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.config.config import Address, Compat, Config, QueueConfig
from kestreld.config.config_dump import dump_config
from kestreld.config.config_file import find_config_path, load, load_file
from kestreld.config.origins import origin_of
from kestreld.config.queue_names import decode_queue_name, encode_queue_name, queue_name_problem
from kestreld.config.settings import SETTINGS, Setting, needs_restart, queue_setting_lines, value_of
from kestreld.config.units import parse_duration_ms, parse_size_bytes, parse_whole_number
from kestreld.config.values import BadValue
from kestreld.config.yaml_reading import read_value
from kestreld.config.yaml_tree import Node, SourceLocation
from kestreld.errors import ConfigError
from kestreld.files import FileLayer
from kestreld.passwords import hash_password

PACKAGED = Path(__file__).parents[2] / "packaging" / "kestreld.yaml"
SIZE_BYTES_MAX = 2**63 - 1
NESTED = "[\n" * 10_000  # in one line each could be a key for 1024 letters, and all are looked at for each


def problems(text: str, *overrides: str) -> list[str]:
    """What load finds wrong, each as it is printed."""
    try:
        load(text, "k.yaml", overrides)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def queue(text: str, name: str = "work") -> QueueConfig:
    return load(text, "k.yaml").for_queue(name)


# --- What a good file says.


def test_without_a_file_the_defaults_stand_and_the_admin_listener_is_on_loopback(monkeypatch):
    monkeypatch.setenv("HOME", "/home/kim")
    config = load_file(FileLayer(), None)
    assert config == Config(queue_path="/home/kim/.local/state/kestreld/spool")
    assert config.memcache == (Address("127.0.0.1", 22133),)
    assert (config.admin, config.compat, config.archive_path) == (Address("127.0.0.1", 2223), Compat.NONE, None)
    assert (config.timeout_ms, config.request_timeout_ms, config.expiration_timer_ms) == (0, 60_000, 0)
    assert (config.max_open_reads, config.max_line_bytes, config.source) == (1, 8192, "built-in defaults")
    assert config.for_queue("any") == QueueConfig()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", "queues:\n", "listen:\n", "queues: {work: }"])
def test_an_empty_file_is_the_defaults(text):
    empty = load(text, "k.yaml")
    assert empty == replace(load_file(FileLayer(), None), source="k.yaml", queues=empty.queues)
    assert empty.for_queue("work") == QueueConfig()


def test_every_server_setting_reaches_its_field():
    config = load(
        "listen: {memcache: [127.0.0.1:0, '[::1]:22133', 'unix:/run/k.sock'], admin: null}\n"
        "compat: kestrel-1\nqueue_path: /q\narchive_path: /a\ntimeout: 30\nrequest_timeout: 250ms\n"
        "expiration_timer_frequency_seconds: 1\nmax_open_reads: 100\nmax_line: 4KiB\n",
        "k.yaml",
    )
    assert config == Config(
        memcache=(Address("127.0.0.1", 0), Address("::1", 22133), Address(path="/run/k.sock")),
        admin=None,
        compat=Compat.KESTREL_1,
        queue_path="/q",
        archive_path="/a",
        timeout_ms=30_000,
        request_timeout_ms=250,
        expiration_timer_ms=1000,
        max_open_reads=100,
        max_line_bytes=4096,
        source="k.yaml",
    )


def test_every_queue_setting_reaches_its_field_as_default_and_in_a_queues_block():
    lines = (
        "max_items: 5\nmax_size: 1KiB\nmax_item_size: 10\ndiscard_old_when_full: true\njournal: no\n"
        "sync_journal: 50\nmax_journal_size: 1MiB\nmax_memory_size: 2GiB\nmax_age: 1h30m\n"
        "move_expired_to: late\nmax_retries: 3\nmove_failed_to: dead\ntrash_seconds: 60\n"
        "idle_delete: 1h\nfanout_only: true\n"
    )
    expected = QueueConfig(
        max_items=5,
        max_size_bytes=1024,
        max_item_size_bytes=10,
        discard_old_when_full=True,
        journal=False,
        sync_journal_ms=50,
        max_journal_size_bytes=1024**2,
        max_memory_size_bytes=2 * 1024**3,
        max_age_ms=5_400_000,
        move_expired_to="late",
        max_retries=3,
        move_failed_to="dead",
        trash_ms=60_000,
        idle_delete_ms=3_600_000,
        fanout_only=True,
    )
    assert queue(lines) == expected
    block = "queues:\n  work:\n" + "".join(f"    {line}\n" for line in lines.splitlines())
    assert queue(block) == expected
    assert queue(block, "other") == QueueConfig()


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("sync_journal: false", "sync_journal_ms", None),
        ("sync_journal: off", "sync_journal_ms", None),
        ("sync_journal: true", "sync_journal_ms", 0),
        ("sync_journal: 1s", "sync_journal_ms", 1000),
        ("max_age: 0", "max_age_ms", None),
        ("max_age: 0s", "max_age_ms", None),
        ("max_age: null", "max_age_ms", None),
        ("max_age: 2000", "max_age_ms", 2000),
        ("max_items: infinite", "max_items", None),
        ("max_size: ~", "max_size_bytes", None),
        ("max_size: '77'", "max_size_bytes", 77),
        (f"max_size: {SIZE_BYTES_MAX}", "max_size_bytes", SIZE_BYTES_MAX),
        ("move_expired_to: none", "move_expired_to", None),
        ("move_expired_to: 123", "move_expired_to", "123"),
        ("move_expired_to: late:x@=%#", "move_expired_to", "late:x@=%#"),
        ("journal: Yes", "journal", True),
    ],
)
def test_a_value_may_be_written_in_several_ways(line, field, value):
    assert getattr(queue(line), field) == value


def test_a_block_takes_back_what_the_defaults_set():
    defaults = "max_items: 5\nmax_age: 1s\nmove_expired_to: late\n"
    assert queue(defaults + "queues: {work: {max_items: infinite, max_age: 0}}") == QueueConfig(move_expired_to="late")


def test_a_child_has_its_parents_block_and_over_it_its_own():
    text = (
        "max_age: 9\nqueues:\n"
        "  work: {max_items: 5, max_size: 7}\n  work+audit: {max_items: 6}\n  wor: {max_items: 1}\n"
    )
    assert queue(text, "work+audit") == QueueConfig(max_age_ms=9, max_items=6, max_size_bytes=7)
    assert queue(text, "work+other") == QueueConfig(max_age_ms=9, max_items=5, max_size_bytes=7)
    assert queue(text, "work+audit+x") == queue(text, "work")


PATTERNS = """
max_age: 9
queues:
  mail-vip: {max_items: 1}
  mail-*: {max_items: 2, max_size: 3}
  "*-vip": {max_size: 4, max_item_size: 5}
  "ma?l": {max_items: 6}
  "mail-*+audit": {max_items: 7}
  "*+a*": {max_items: 8, max_keys: 9}
"""


def test_a_pattern_sets_what_the_name_does_not_and_the_first_that_matches_wins():
    assert queue(PATTERNS, "mail-vip") == QueueConfig(
        max_age_ms=9, max_items=1, max_size_bytes=3, max_item_size_bytes=5
    )
    assert queue(PATTERNS, "mail-") == QueueConfig(max_age_ms=9, max_items=2, max_size_bytes=3)
    assert queue(PATTERNS, "other") == QueueConfig(max_age_ms=9)
    for name, is_met in (("mail", True), ("mal", False), ("maiil", False), ("xmail", False), ("maöl", True)):
        assert (queue(PATTERNS, name.encode().decode("latin-1")).max_items == 6) is is_met, name


def test_children_are_matched_by_patterns_with_a_plus_and_inherit_those_of_the_parent():
    audit = queue(PATTERNS, "mail-vip+audit")
    assert (audit.max_items, audit.max_size_bytes, audit.max_keys) == (7, 3, 9)
    assert queue(PATTERNS, "mail-vip+x").max_items == 1
    assert queue(PATTERNS, "work+a+b").max_items == 8
    assert queue(PATTERNS, "work").max_items is None


def test_no_child_is_fanout_only():
    text = "queues: {'ev*': {fanout_only: true, idle_delete: 5}}"
    assert queue(text, "events").fanout_only
    assert queue(text, "events+a") == QueueConfig(idle_delete_ms=5000)
    expected = "k.yaml:1:18: a child has no children: set fanout_only under 'events'"
    assert problems("queues: {events+a: {fanout_only: true}}")[0].endswith(expected.partition(": ")[2])


def test_other_letters_of_a_pattern_stand_for_themselves_and_stars_cost_nothing():
    assert queue("queues: {'a[bc]*(': {max_items: 1}}", "a[bc]x(").max_items == 1
    assert queue("queues: {'a[bc]*(': {max_items: 1}}", "abx(").max_items is None
    assert queue(f"queues: {{'{'*' * 60}b': {{max_items: 1}}}}", "a" * 150).max_items is None


def test_a_pattern_of_the_command_line_goes_before_those_of_the_file():
    config = load("queues: {'a*': {max_items: 1}, 'ab*': {max_age: 5}}", "k.yaml", ["queues.ab*.max_items=2"])
    assert [config.for_queue(name).max_items for name in ("abc", "ac")] == [1, 1]
    config = load("queues: {'a*': {max_items: 1}}", "k.yaml", ["queues.ab*.max_items=2", "queues.abc.max_items=3"])
    assert [config.for_queue(name).max_items for name in ("abd", "abc", "ac")] == [2, 3, 1]


def test_two_patterns_do_not_make_half_a_retry_policy():
    text = "queues: {'a*': {max_retries: 3, move_failed_to: dead}, 'ab': {max_items: 5}, '*b': {max_age: 7}}"
    assert queue(text, "ab").max_retries == 3
    text = "queues:\n  'a*': {move_failed_to: none}\n  '*': {max_retries: 3, move_failed_to: dead}\n"
    assert problems(text) == ["k.yaml:2:26: max_retries has no effect without move_failed_to: set both or neither"]
    two = "queues:\n  'a*': {max_retries: infinite, move_failed_to: none}\n  '*': {max_retries: 3, move_failed_to: d}\n"
    assert queue(two, "ab") == QueueConfig()
    assert queue(two, "d") == QueueConfig()
    crossed = "queues: {'a*': {move_failed_to: none}, '*b': {max_retries: 3, move_failed_to: d}}"
    assert problems(crossed) == ["k.yaml:1:33: move_failed_to: set max_retries as well, as other blocks do"]
    crossed = "queues: {'*b': {max_retries: infinite, move_failed_to: none}, 'a*': {max_retries: 5}}"
    crossed = f"max_retries: 3\nmove_failed_to: dead\n{crossed}"
    assert problems(crossed) == ["k.yaml:3:83: max_retries: set move_failed_to as well, as other blocks do"]
    crossed = "queues: {work: {max_retries: 3, move_failed_to: d}, 'w*+*': {move_failed_to: none}}"
    assert problems(crossed) == ["k.yaml:1:78: move_failed_to: set max_retries as well, as other blocks do"]
    fits = "max_retries: 3\nmove_failed_to: dead\nqueues: {'a*': {max_retries: 5}, b: {move_failed_to: late}}"
    assert queue(fits, "ab").max_retries == 5


@pytest.mark.parametrize(
    "text",
    [
        "queues: {'a*': {move_expired_to: b}, 'b?': {move_expired_to: a}, b: {move_expired_to: ax}}",
        "queues: {work: {move_expired_to: late}, 'la*+*': {move_expired_to: work}}",
    ],
)
def test_a_circle_of_moves_is_seen_through_patterns(text):
    assert len(problems(text)) == 1
    assert "items would loop" in problems(text)[0]


def test_the_origin_of_a_value_names_the_block_and_the_patterns_that_it_hides():
    config = load(PATTERNS, "/etc/k.yaml", ["queues.x*.max_items=1"])
    place = {
        (name, field): origin_of(config, name, field)
        for name in ("mail-vip", "xy", "mail-vip+b")
        for field in ("max_items", "max_size_bytes", "max_age_ms", "max_keys")
    }
    assert place["mail-vip", "max_items"] == "/etc/k.yaml:4"
    assert place["mail-vip", "max_size_bytes"] == "/etc/k.yaml:5 (mail-*), before /etc/k.yaml:6 (*-vip)"
    assert place["mail-vip+b", "max_items"] == "/etc/k.yaml:4 (mail-vip)"
    assert place["xy", "max_items"] == "--set queues.x*.max_items (x*)"
    assert (place["xy", "max_age_ms"], place["xy", "max_keys"]) == ("/etc/k.yaml:2", "default")


def test_queue_names_are_the_text_of_their_keys_whatever_yaml_takes_it_for():
    config = load("queues: {123: {max_items: 1}, on: {max_items: 2}, null: {}, 010: {}}", "k.yaml")
    assert list(config.queues) == ["123", "on", "null", "010"]
    assert config.for_queue("on").max_items == 2


def test_a_queue_name_past_ascii_is_the_bytes_clients_send():
    as_sent = "größe".encode().decode("latin-1")
    assert queue("queues: {größe: {max_items: 3}}", as_sent).max_items == 3
    assert queue("move_expired_to: größe").move_expired_to == as_sent


def test_anchors_and_merge_keys_serve_several_queues():
    text = (
        "queues:\n  a: &small {max_items: 5, max_age: 1s}\n  b: *small\n"
        "  c: {<<: *small, max_age: 2s}\n  d: {<<: [{max_items: 1}, *small]}\n"
    )
    assert queue(text, "b") == queue(text, "a") == QueueConfig(max_items=5, max_age_ms=1000)
    assert queue(text, "c") == QueueConfig(max_items=5, max_age_ms=2000)
    assert queue(text, "d") == QueueConfig(max_items=1, max_age_ms=1000)


def test_a_move_to_oneself_or_a_default_into_ones_own_family_is_none():
    assert queue("queues: {work: {move_expired_to: work}}").move_expired_to is None
    text = "move_expired_to: late\nmove_failed_to: dead+box\nmax_retries: 3\n"
    assert queue(text, "late").move_expired_to is None
    assert queue(text, "late+x").move_expired_to is None
    assert queue(text, "work").move_expired_to == "late"
    assert (queue(text, "dead").move_failed_to, queue(text, "dead").max_retries) == (None, None)


def test_a_failed_item_may_come_back_by_way_of_a_delay():
    work, rest = "{max_retries: 1, move_failed_to: rest}", "{max_age: 1m, move_expired_to: work}"
    assert queue(f"queues:\n  work: {work}\n  rest: {rest}\n", "rest").move_expired_to == "work"


def test_home_is_known_in_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/home/kim")
    config = load("queue_path: ~/q\nlisten: {memcache: 'unix:~/k.sock'}", "k.yaml")
    assert (config.queue_path, str(config.memcache[0])) == ("/home/kim/q", "unix:/home/kim/k.sock")


# --- Overrides.


def test_overrides_come_after_the_file_and_the_last_one_wins():
    config = load(
        "max_items: 5\nqueues: {work: {max_size: 7}}",
        "k.yaml",
        [
            "listen.memcache=[::1]:0",
            "listen.admin=null",
            "queues.work.max_items=1",
            "queues.work.max_items=2",
            "queues.work+a={max_age: 1s, max_size: 8}",
            "move_expired_to=",
            "compat=kestrel-1",
        ],
    )
    assert config.memcache == (Address("::1", 0),)
    assert (config.admin, config.compat) == (None, Compat.KESTREL_1)
    assert config.for_queue("work") == QueueConfig(max_items=2, max_size_bytes=7)
    assert config.for_queue("work+a") == QueueConfig(max_items=2, max_size_bytes=8, max_age_ms=1000)


def test_an_override_may_be_a_list():
    config = load("", "k.yaml", ["listen.memcache=[127.0.0.1:0, unix:/run/k.sock]"])
    assert config.memcache == (Address("127.0.0.1", 0), Address(path="/run/k.sock"))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("max_items", "--set max_items: expected KEY=VALUE"),
        ("=5", "--set : unknown setting ''"),
        ("max_itmes=5", "--set max_itmes: unknown setting 'max_itmes'; did you mean max_items?"),
        ("queues.work.max_age=5x", "--set queues.work.max_age: max_age: expected a duration"),
        ("queues.work=5", "--set queues.work: expected a mapping"),
        ("queues.work={max_items: 5", "--set queues.work: expected a mapping"),
        ("queues.a.b=5", "--set queues.a.b: unknown setting 'b'"),
        ("queues.a~.max_items=5", "--set queues.a~.max_items: 'a~': queue name must not contain '~'"),
        (
            "work.max_items=5",
            "--set work.max_items: unknown setting 'work'; queue settings go under queues",
        ),
        ("queues.w={max_age: 1, max_age: 1}", "--set queues.w: 'max_age' is set twice"),
        ("max_retries=3", "--set max_retries: max_retries has no effect without move_failed_to"),
        ('max_items="\\U00110000"', "--set max_items: max_items: expected a whole number"),
        ("max_items=" + NESTED, "--set max_items: max_items: expected a whole number"),
        ("listen=127.0.0.1:0", "--set listen: expected a mapping"),
    ],
)
def test_a_bad_override_is_named(override, expected):
    (problem,) = problems("", override)
    assert problem.startswith(expected)


# --- What is wrong with a file, and where.

BAD_FILES = [
    ("max_itmes: 5", "1:1", "unknown setting 'max_itmes'; did you mean max_items?"),
    ("maxItems: 5", "1:1", "did you mean max_items?"),
    ("colour: red", "1:1", "unknown setting 'colour'"),
    ("work: {max_items: 5}", "1:1", "queue settings go under queues"),
    ("queues:\n  work:\n    timeout: 3", "3:5", "timeout is not allowed here: set it at the top level"),
    ("queues:\n  work: {admin: 3}", "2:10", "admin is not allowed here: set it under listen"),
    ("memcache: 127.0.0.1:1", "1:1", "memcache is not allowed here: set it under listen"),
    ("listen: {max_items: 3}", "1:10", "set it at the top level, or under a queue's name"),
    ("listen: {memcach: 127.0.0.1:1}", "1:10", "did you mean memcache?"),
    ("people: {}", "1:1", "unknown setting 'people'"),
    ("users: [alice]", "1:8", "users: expected a mapping of user names"),
    (
        "users: {alice: secret}",
        "1:9",
        "users.alice: expected a mapping such as {rights: {'*': [put, get]}}, not a plain",
    ),
    ("users:\n  'a b': {}", "2:3", "user name must have 1 to 64 characters and no spaces"),
    ("users: {a: {certificate: c}}", "1:9", "users.a: no rights: set rights"),
    ("users: {a: {rights: {q: put}}}", "1:9", "users.a: no credentials: set password, password_file or certificate"),
    ("users: {a: {certificate: c, rights: {q: put}, passwort: x}}", "1:47", "did you mean password?"),
    ("users: {a: {certificate: c, rights: {q: [put, gte]}}}", "1:47", "unknown right 'gte'"),
    ("users: {a: {certificate: c, rights: {q: [put, gte]}}}", "1:47", "did you mean get?"),
    (
        "users: {a: {certificate: c, rights: [put]}}",
        "1:37",
        "users.a.rights: expected a mapping of queue patterns to rights",
    ),
    ("users: {a: {certificate: [], rights: {q: put}}}", "1:26", "users.a.certificate: expected a name"),
    (
        "users: {a: {password: hunter2, rights: {q: put}}}",
        "1:23",
        "users.a.password: expected a line printed by `kestreld",
    ),
    (
        "users: {a: {password: [hunter2], rights: {q: put}}}",
        "1:23",
        "users.a.password: expected a line printed by `kestreld",
    ),
    (
        "users: {a: {password: 'scrypt:31:8:1:AAAAAAAAAAAAAAAA:AA==', rights: {q: put}}}",
        "1:23",
        "unsupported scrypt parameters",
    ),
    ("users: {a: {password_file: /nowhere/x, rights: {q: put}}}", "1:28", "/nowhere/x: No such file"),
    ("users: {a: {certificate: c, max_rate: fast, rights: {q: put}}}", "1:39", "expected a size"),
    (
        "users:\n  a: {certificate: c, rights: {q: put}}\n  b: {certificate: [d, c], rights: {q: put}}",
        "3:3",
        "users.b: certificate name 'c' is already used by a",
    ),
    ("tls: {certificat: x}", "1:7", "did you mean certificate?"),
    ("client_ca: x", "1:1", "client_ca is not allowed here: set it under tls"),
    ("tls: {client_ca: x}", "1:18", "tls.client_ca has no effect without tls.certificate"),
    ("listen: {memcache: 'tls:h:1'}", "1:20", "listen.memcache: tls: requires tls.certificate"),
    ("listen: {admin: 'tls:127.0.0.1:1'}", "1:17", "listen.admin: tls: requires tls.certificate"),
    ("listen: {admin_hosts: 'http://h'}", "1:23", "listen.admin_hosts: expected a host name"),
    ("listen: {cache: 'tls:h:1'}", "1:17", "listen.cache: tls: requires tls.certificate"),
    ("listen: {cache: [127.0.0.1:1, '[::]:1']}", "1:17", "listen.cache: [::]:1 is reachable from other machines"),
    ("listen: {cache: []}", "1:17", "listen.cache: expected at least one address"),
    ("listen: {cache: on}", "1:17", "not 'on'"),
    ("cache_memory: 1000KiB", "1:15", "1000KiB is too small: the minimum is 1048576"),
    ("cache_item_size_max: 1023", "1:22", "1023 is too small: the minimum is 1024"),
    ("cache_item_size_max: 2GiB", "1:22", "2GiB is too large: the maximum is 1073741824"),
    ("cache_memory: 2MiB\ncache_item_size_max: 3MiB", "2:22", "cache_item_size_max must not exceed cache_memory"),
    ("users: {a: {certificate: c, cache: [get]}}", "1:36", "a mapping of key patterns to rights"),
    ("users: {a: {certificate: c, cache: {k: peek}}}", "1:40", "expected put, get, flush, delete, admin or all"),
    ("users: {a: {certificate: c, cache: {k: gte}}}", "1:40", "did you mean get?"),
    ("metrics: {per_queue: most}", "1:22", "metrics.per_queue: expected all, off, top:N or regex:PATTERN"),
    ("metrics: {per_queue: 'top:x'}", "1:22", "metrics.per_queue: expected all, off, top:N or regex:PATTERN"),
    ("metrics: {per_queue: 'regex:('}", "1:22", "'(' is not a valid regular expression"),
    ("listen: {memcache: [127.0.0.1:1, 0.0.0.0:1]}", "1:20", "0.0.0.0:1 is reachable from other machines"),
    ("listen: {admin: '[::]:1'}", "1:17", "listen.admin: [::]:1 is reachable from other machines"),
    (
        "listen: {memcache: queues.example.org:1}",
        "1:20",
        "set users, use a loopback address, or pass --insec",
    ),
    ("max_connections: 0", "1:18", "too small"),
    ("user: a b", "1:7", "expected the name of an account on this machine"),
    ("max_items: 1\n\nmax_items: 2", "3:1", "'max_items' is set twice, first on line 1"),
    ("queues:\n  a: {}\n  'a': {}", "3:3", "'a' is set twice, first on line 2"),
    ("max_items: true", "1:12", "expected a whole number, not 'true'"),
    ("max_items: 1e6", "1:12", "expected a whole number, not '1e6'"),
    ("max_items: 0x10", "1:12", "expected a whole number, not '0x10'"),
    ("max_items: 010", "1:12", "expected a whole number, not '010'"),
    ("max_items: 1_000", "1:12", "expected a whole number, not '1_000'"),
    ("max_items: -5", "1:12", "expected a whole number, not '-5'"),
    ("max_items: 1.5", "1:12", "expected a whole number, not '1.5'"),
    ("max_items: .nan", "1:12", "expected a whole number, not '.nan'"),
    ("max_items: ٣", "1:12", "expected a whole number"),
    ("max_items: " + "9" * 5000, "1:12", "expected a whole number, not '9999"),
    (f"max_items: {SIZE_BYTES_MAX + 1}", "1:12", "expected a whole number"),
    ("max_items: 0", "1:12", "0 is too small: the minimum is 1"),
    ("max_items: [5]", "1:12", "expected a whole number, not a list"),
    ("max_items: {}", "1:12", "expected a whole number, not a mapping"),
    ("max_items: !odd 5", "1:12", "expected a whole number, not something tagged '!odd'"),
    ("max_items: !!map 5", "1:12", "expected a whole number, not something tagged"),
    ("max_size: 16MB", "1:11", "expected a size (bytes, or such as 64KiB, 16MiB, 2GiB), not '16MB'"),
    ("max_size: 16 MiB", "1:11", "expected a size"),
    ("max_size: 9999999999GiB", "1:11", "expected a size"),
    ("max_memory_size: 0", "1:18", "the minimum is 1"),
    ("max_memory_size:", "1:17", "expected a size (bytes, or such as 64KiB, 16MiB, 2GiB), not nothing"),
    ("max_journal_size: 512", "1:19", "512 is too small: the minimum is 1024"),
    ("max_age: 5x", "1:10", "expected a duration (milliseconds, or such as 250ms, 30s, 1h30m), not '5x'"),
    ("max_age: 30m1h", "1:10", "expected a duration"),
    ("max_age: -1", "1:10", "expected a duration"),
    ("max_age: 40000d", "1:10", "40000d is too large"),
    ("timeout: 1:30", "1:10", "expected a duration (seconds"),
    ("timeout: 25d", "1:10", "25d is too large"),
    ("request_timeout: 0", "1:18", "0 is too small"),
    ("sync_journal: 0", "1:15", "0 is too small"),
    ("sync_journal: often", "1:15", "expected true, false, or a duration"),
    ("journal: 1", "1:10", "expected true or false, not '1'"),
    ("journal: 'true'", "1:10", "expected true or false, not 'true'"),
    ("journal: !!bool maybe", "1:10", "expected true or false, not 'maybe'"),
    ("journal:", "1:9", "expected true or false, not nothing"),
    (
        "queues:\n  work+a: {journal: false}",
        "2:12",
        "a child shares its parent's journal: set journal under 'work'",
    ),
    ("queues:\n  work+a:\n    sync_journal: true", "3:5", "set sync_journal under 'work'"),
    ("max_open_reads: 0", "1:17", "the minimum is 1"),
    ("max_line: 100", "1:11", "the minimum is 1024"),
    ("compat: kestrel-9", "1:9", "expected none or kestrel-1, not 'kestrel-9'"),
    ("compat: null", "1:9", "expected none or kestrel-1, not nothing"),
    ("queue_path: [a]", "1:13", "expected a path, not a list"),
    ("queue_path: ''", "1:13", "path must not be empty"),
    ('queue_path: "a\\0b"', "1:13", "or contain control characters"),
    ('queue_path: "\\ud800"', "1:13", "path must not be empty"),
    ("queue_path: ~no-such-user-here/q", "1:13", "no home directory known for ~no-such-user-here"),
    ("queue_path: ~", "1:13", "expected a path, not nothing"),
    ("listen: 127.0.0.1:22133", "1:9", "expected a mapping, such as max_items: 1000, not '127.0.0.1:22133'"),
    ("listen: {memcache: null}", "1:20", "expected HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:/PATH, not nothing"),
    ("listen: {memcache: []}", "1:20", "expected at least one address"),
    ("listen: {memcache: [127.0.0.1:1, 22133]}", "1:34", "'22133': expected HOST:PORT"),
    ("listen: {memcache: ['h:1', 'h:1']}", "1:28", "h:1 is listed twice"),
    ("listen:\n  memcache: 127.0.0.1:99999", "2:13", "port out of range: the maximum is 65535"),
    ("listen:\n  memcache: 127.0.0.256:1", "2:13", "127.0.0.256"),
    ("listen:\n  memcache: '[::g]:1'", "2:13", "::g"),
    ("listen:\n  memcache: '::1:22133'", "2:13", "expected HOST:PORT"),
    ("listen:\n  memcache: 'unix:'", "2:13", "path must not be empty"),
    ("listen:\n  memcache: unix:/" + "x" * 107, "2:13", "socket path too long: the maximum is 107 bytes"),
    ("listen: {admin: off}", "1:17", "not 'off'"),
    ("queues: [work]", "1:9", "expected a mapping, such as max_items: 1000, not a list"),
    ("queues:\n  work: 5", "2:9", "expected a mapping"),
    ("queues:\n  a.b: {max_items: 5}", "2:3", "'a.b': queue name must not contain '.'"),
    ("queues:\n  a/b: {}", "2:3", "must not contain '/'"),
    ("queues:\n  ~: {}", "2:3", "must not contain '~'"),
    ("queues:\n  '': {}", "2:3", "must not be empty"),
    ("queues:\n  'a b': {}", "2:3", "spaces or control characters"),
    ("queues:\n  a+: {}", "2:3", "must not begin or end with '+'"),
    ("queues:\n  " + "n" * 201 + ": {}", "2:3", "would have 201 bytes, the maximum is 200"),
    ("queues:\n  ? [a]\n  : {}", "2:5", "a key must be a plain name"),
    ("move_expired_to: a.b", "1:18", "move_expired_to: 'a.b': queue name must not contain '.'"),
    ("move_expired_to: no", "1:18", "expected a queue name or none, not 'no'"),
    ("queues:\n  work: {move_expired_to: work+a}", "2:27", "'work+a' belongs to the same family as 'work'"),
    ("queues:\n  w+x: {move_expired_to: w}", "2:26", "to the same family"),
    ("queues:\n  w+x: {max_retries: 1, move_failed_to: w+y}", "2:41", "to the same family"),
    (
        "queues:\n  a: {move_expired_to: b}\n  b: {move_expired_to: a}",
        "2:24",
        "items would loop: 'a' -> 'b' -> 'a'",
    ),
    (
        "queues:\n  b+x: {move_expired_to: a}\n  a: {move_expired_to: b}",
        "2:26",
        "items would loop: 'b+x' -> 'a' -> 'b+x'",
    ),
    ("move_expired_to: late\nqueues:\n  late: {move_expired_to: work}", "1:18", "'work' -> 'late' -> 'work'"),
    (
        "max_retries: 1\nqueues:\n"
        "  a: {move_failed_to: b}\n  b: {move_failed_to: c}\n  c: {move_failed_to: a}\n"
        "move_failed_to: d",
        "3:23",
        "move_failed_to: items would loop: 'a' -> 'b' -> 'c' -> 'a'",
    ),
    ("max_retries: 3", "1:14", "max_retries has no effect without move_failed_to"),
    ("queues:\n  a: {move_failed_to: b}", "2:23", "move_failed_to has no effect without max_retries"),
    (
        "max_retries: 3\nmove_failed_to: d\nqueues: {a: {move_failed_to: none}}",
        "3:30",
        "max_retries has no effect without move_failed_to",
    ),
    ("- max_items", "1:1", "expected a mapping, such as max_items: 1000, not a list"),
    ("just words", "1:1", "expected a mapping, such as max_items: 1000, not 'just words'"),
    ("queues: {a: {<<: 5}}", "1:18", "<< requires a mapping or a list of mappings, not '5'"),
    ("max_items: 5\n  max_size: 3", "2:11", "YAML: mapping values are not allowed here"),
    ("max_items: [", "1:13", "YAML: while parsing a flow node"),
    ("\tmax_items: 5", "1:1", "YAML: while scanning for the next token, found character '\\t'"),
    ("max_items: *big", "1:12", "YAML: found undefined alias 'big'"),
    ("max_items: 5\n---\nmax_items: 6", "2:1", "YAML: expected a single document"),
    ("max_items: 5\n# \x07 bell", "2:3", "YAML: character '\\x07' is not allowed"),
    ('queue_path: "\\U00110000"', "1:16", "YAML:"),
]


@pytest.mark.parametrize(("text", "place", "reason"), BAD_FILES, ids=[text[:40] for text, _, _ in BAD_FILES])
def test_a_mistake_is_shown_in_its_place(text, place, reason):
    (problem,) = problems(text)
    assert problem.startswith(f"k.yaml:{place}: ")
    assert reason in problem


def test_all_mistakes_are_reported_in_the_order_of_the_file():
    found = problems(
        "queues:\n  work: {max_itmes: 5, max_age: x}\nmax_items: -1\nmax_retries: 3\n",
        "timeout=x",
        "compat=y",
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "k.yaml:2:10",
        "k.yaml:2:33",
        "k.yaml:3:12",
        "k.yaml:4:14",
        "--set timeout",
        "--set compat",
    ]


def test_a_mistake_that_several_queues_share_is_reported_once():
    (problem,) = problems("queues:\n  a: &x {max_items: -1}\n  b: *x\n  c: {<<: *x}\n")
    assert problem.startswith("k.yaml:2:21: max_items")


def test_a_value_that_cannot_be_read_is_not_also_reported_as_missing():
    assert len(problems("max_retries: x\nmove_failed_to: dead")) == 1
    assert len(problems("max_retries: 3\nmove_failed_to: a.b")) == 1
    assert len(problems("max_retries: [", "max_retries=3")) == 1


def test_no_circle_is_seen_where_a_destination_cannot_be_read():
    text = "move_expired_to: a\nqueues:\n  b: {max_age: 1s}\n  a: {move_expired_to: b}\n"
    assert "loop" in "\n".join(problems(text))
    bad = text.replace("b: {max_age: 1s}", "b: {move_expired_to: c.d}")
    assert ["c.d" in problem for problem in problems(bad)] == [True]


def test_a_file_nested_without_end_is_refused_in_one_line():
    (problem,) = problems(NESTED)
    assert re.fullmatch("k.yaml:[0-9]+:1: YAML: nested too deeply", problem)


def test_aliases_cannot_blow_a_small_file_up():
    names = ", ".join(f"q{n}: {{}}" for n in range(1000))
    text = f"queues: &q {{{names}}}\nlisten: [" + "{<<: *q}, " * 1000 + "]"
    assert "YAML: << merges too many entries" in "\n".join(problems(text))
    levels = "".join(f"  b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 20))
    assert load(f"queues:\n  b0: &b0 {{max_items: 1}}\n{levels}", "k.yaml").for_queue("b19").max_items == 1
    assert load("queues: {a: &a {<<: *a, max_items: 1}}", "k.yaml").for_queue("a").max_items == 1


@given(st.one_of(st.text(), st.text(alphabet="max_items: {}[]&*<!|>-?#'\"\\\n\t01eU%,"), st.binary().map(repr)))
def test_any_text_is_a_configuration_or_a_config_error(text):
    assert all(": " in problem for problem in problems(text, f"max_items={text}", text))


@given(st.data())
def test_a_damaged_copy_of_the_packaged_file_is_a_configuration_or_a_config_error(data):
    text = PACKAGED.read_text()
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 40)) :]
    assert all(re.match(r"k\.yaml:[0-9]+:[0-9]+: ", problem) for problem in problems(damaged))


# --- Files and where they are looked for.


def test_a_file_is_read_and_named_in_its_problems(tmp_path):
    path = tmp_path / "k.yaml"
    path.write_text("\N{BYTE ORDER MARK}max_items: 7\r\nqueue_path: /q\r\n")
    config = load_file(FileLayer(), str(path))
    assert (config.defaults.max_items, config.queue_path, config.source) == (7, "/q", str(path))
    path.write_text("\N{BYTE ORDER MARK}max_size: x\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:1:11: max_size")):
        load_file(FileLayer(), str(path))


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path):
    link, latin, large = tmp_path / "link", tmp_path / "latin", tmp_path / "large"
    latin.write_bytes(b"max_items: 5\nmove_expired_to: gr\xf6\xdfe\n")
    link.symlink_to(latin)
    large.write_text("# " + "x" * 1024**2)
    for path, reason in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (link, "2:20: not UTF-8 text"),  # links are followed: the file is the operator's
        (latin, "2:20: not UTF-8 text"),
        (large, "file larger than 1048576 bytes"),
    ]:
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}:.*{reason}"):
            load_file(FileLayer(), str(path))


def test_the_option_goes_before_the_environment_before_the_home_folder(tmp_path):
    files = FileLayer()
    asked, named = tmp_path / "asked.yaml", tmp_path / "named.yaml"
    own = tmp_path / ".config" / "kestreld" / "kestreld.yaml"
    own.parent.mkdir(parents=True)
    for path in (asked, named, own):
        path.touch()
    environ = {"HOME": str(tmp_path), "KESTRELD_CONFIG": str(named)}
    assert find_config_path(files, str(asked), environ) == str(asked)
    assert find_config_path(files, None, environ) == str(named)
    assert find_config_path(files, None, {**environ, "KESTRELD_CONFIG": ""}) == str(own)


class FilesBelow(FileLayer):
    """The real file system, seen as if it began at a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, path: str) -> bool:
        return super().exists(f"{self.root}{path}")


def test_the_system_file_comes_last_and_there_may_be_none(tmp_path):
    files = FilesBelow(tmp_path)
    assert find_config_path(files, None, {"HOME": "/root"}) is None
    (tmp_path / "etc/kestreld").mkdir(parents=True)
    (tmp_path / "etc/kestreld/kestreld.yaml").touch()
    assert find_config_path(files, None, {"HOME": "/root"}) == "/etc/kestreld/kestreld.yaml"
    assert find_config_path(files, None, {}) == "/etc/kestreld/kestreld.yaml"


def test_a_file_that_was_asked_for_must_exist():
    with pytest.raises(ConfigError, match=r"/no/such: no such file \(--config\)"):
        find_config_path(FileLayer(), "/no/such", {})
    with pytest.raises(ConfigError, match=r"/no/such: no such file \(\$KESTRELD_CONFIG\)"):
        find_config_path(FileLayer(), None, {"KESTRELD_CONFIG": "/no/such"})


# --- What a reload cannot change.


def test_only_settings_that_are_bound_at_the_start_need_a_restart():
    old = load("queue_path: /a\nmax_items: 5\nqueues: {a: {journal: false}, b: {max_age: 1s}}", "k.yaml")
    assert needs_restart(old, old) == []
    live = "queue_path: /a\nmax_age: 5\nmax_size: 3\nsync_journal: true\ntimeout: 5\nmax_open_reads: 9\n"
    assert needs_restart(old, load(live + "queues: {a: {journal: false}, c: {}}", "k.yaml")) == []
    new = load(
        "listen: {memcache: 127.0.0.1:1, admin: null, cache: 127.0.0.1:2}\ncompat: kestrel-1\nqueue_path: /b\n"
        "archive_path: /c\nmax_line: 2KiB\ncache_memory: 1GiB\ncache_item_size_max: 1KiB\n"
        "queues: {a: {journal: true}, b: {journal: false}}",
        "k.yaml",
    )
    assert needs_restart(old, new) == [
        "listen.memcache",
        "listen.admin",
        "listen.cache",
        "compat",
        "queue_path",
        "archive_path",
        "max_line",
        "queues.a.journal",
        "queues.b.journal",
    ]


def test_a_queue_that_only_inherits_a_change_of_journal_is_not_named():
    old = load("journal: true\nqueues: {a: {max_items: 5}, b: {journal: false}}", "k.yaml")
    new = load("journal: false\nqueues: {a: {max_items: 5}, b: {journal: false}}", "k.yaml")
    assert needs_restart(old, new) == ["journal"]
    assert needs_restart(old, load("queues: {a: {max_items: 5}}", "k.yaml")) == ["queues.b.journal"]


# --- What dump_config prints.


def test_every_setting_of_a_queue_is_listed_with_its_true_value():
    assert queue_setting_lines(QueueConfig()) == [
        ("max_items", "infinite"),
        ("max_size", "infinite"),
        ("max_item_size", "infinite"),
        ("discard_old_when_full", "false"),
        ("journal", "true"),
        ("journal_leases", "true"),
        ("sync_journal", "false"),
        ("max_journal_size", "16777216"),
        ("max_journal_overflow", "10"),
        ("max_memory_size", "134217728"),
        ("max_age", "0"),
        ("move_expired_to", "none"),
        ("max_retries", "infinite"),
        ("move_failed_to", "none"),
        ("retry_delays", "none"),
        ("open_transaction_timeout", "infinite"),
        ("max_lease", "43200"),
        ("lease_grace", "30"),
        ("max_delay", "31536000"),
        ("key_time", "300"),
        ("max_keys", "1000000"),
        ("trash_seconds", "0"),
        ("idle_delete", "none"),
        ("fanout_only", "false"),
    ]
    assert dict(queue_setting_lines(QueueConfig(retry_delays_ms=(1000, 250))))["retry_delays"] == "[1, 250ms]"
    assert dict(queue_setting_lines(QueueConfig(sync_journal_ms=0)))["sync_journal"] == "true"
    assert dict(queue_setting_lines(QueueConfig(sync_journal_ms=5)))["sync_journal"] == "5"
    assert dict(queue_setting_lines(QueueConfig(trash_ms=86_400_000)))["trash_seconds"] == "86400"
    assert dict(queue_setting_lines(QueueConfig(trash_ms=250)))["trash_seconds"] == "250ms"


# --- What --dump-config prints.


EVERY_SERVER_SETTING = """
listen:
  memcache: [127.0.0.1:0, '[::1]:22133', 'unix:/run/k: #1.sock', 'tls:127.0.0.1:1']
  admin: null
  cache: [127.0.0.1:0, 'unix:/run/c.sock']
  admin_hosts: [a, b.c]
metrics: {per_queue: 'regex:a "b" # \\d: {}'}
log: {format: json}
tls: {certificate: /c.pem, key: '/k #.pem', client_ca: /ca.pem, client_certificate: optional}
insecure: true
user: kestrel
compat: kestrel-1
queue_path: '/größe'
archive_path: "/a\\udc80"
timeout: 250ms
request_timeout: 5m
expiration_timer_frequency_seconds: 1
sync_together: true
max_open_reads: 4
max_line: 16KiB
max_memory: 2GiB
cache_memory: 2GiB
cache_item_size_max: 5MiB
max_inflight: 1GiB
max_queues: infinite
max_connections: 5
max_connections_per_ip: 3
"""
USERS = f"""
users:
  o#p: {{password: "{hash_password(b"x", b"salt of the tests")}", rights: {{'*': all}}, max_rate: 1MiB}}
  yes: {{certificate: [a, 'b: c'], rights: {{'größe*': [create, put], b: all, c: []}}, cache: {{'ö:*': [get, put]}}}}
  by_hand: {{certificate: z, rights: {{'*': [put, get, peek, flush, delete, admin, create]}}}}
  of_cache: {{certificate: y, cache: {{'a*': [get, put, delete, flush, admin]}}}}
  of_all: {{certificate: x, cache: {{'*': all}}}}
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        EVERY_SERVER_SETTING,
        USERS,
        PACKAGED.read_text(),
        "metrics: {per_queue: all}",
        "metrics: {per_queue: off}",
        "queues: {on: {max_age: 0, sync_journal: true}, größe+x: {move_expired_to: 'käse'}, '5': {}}",
        'queues: {"\\ud800": {max_items: 1}}',
        PATTERNS,
    ],
    ids=["nothing", "server", "users", "packaged", "all", "off", "queues", "surrogate", "patterns"],
)
def test_what_is_dumped_can_be_read_back(text):
    config = load(text, "k.yaml")
    assert load(dump_config(config), "k.yaml") == config


def test_each_line_of_a_dump_says_where_its_value_comes_from():
    text = "max_items: 7\nqueues:\n  work:\n    max_size: 3\nusers:\n  x: {certificate: x, rights: {a: put}}\n"
    config = load(f"{text}listen: {{admin: null}}", "/etc/k.yaml", ["queues.work.max_age=5", "timeout=5s"])
    lines = dump_config(config).splitlines()
    assert {
        "max_items: 7  # /etc/k.yaml:1",
        "max_size: infinite  # default",
        "    max_size: 3  # /etc/k.yaml:4",
        "    max_age: 5  # --set queues.work.max_age",
        "timeout: 5  # --set timeout",
        "  x:  # /etc/k.yaml:6",
        "  admin: null  # /etc/k.yaml:7",
        "  memcache: 127.0.0.1:22133  # default",
    } <= set(lines)
    of_settings = lines[: lines.index("queues:")]
    assert {line.split(":")[0].strip() for line in of_settings if "#" in line} == {
        setting.name.rpartition(".")[2] for setting in SETTINGS
    }


def test_a_name_of_a_file_ends_no_comment():
    config = load("max_items: 7", "a\nmax_items: 8\x85b")
    assert "max_items: 7  # a?max_items: 8?b:1" in dump_config(config).splitlines()


limits = st.none() | st.integers(1, SIZE_BYTES_MAX)
simple_names = st.text(string.ascii_letters, min_size=1).map(lambda letters: f"to_{letters}")
retries = st.just({}) | st.fixed_dictionaries(
    {"max_retries": st.integers(1, SIZE_BYTES_MAX), "move_failed_to": simple_names}
)
plain_settings = st.fixed_dictionaries(
    {
        "max_items": limits,
        "max_size_bytes": limits,
        "max_item_size_bytes": limits,
        "discard_old_when_full": st.booleans(),
        "journal": st.booleans(),
        "sync_journal_ms": st.none() | st.integers(0, 2**31 - 1),
        "max_journal_size_bytes": st.integers(1024, SIZE_BYTES_MAX),
        "max_memory_size_bytes": st.integers(1, SIZE_BYTES_MAX),
        "max_age_ms": st.none() | st.integers(1, 36_500 * 86_400_000),
        "move_expired_to": st.none() | simple_names,
        "trash_ms": st.integers(0, 36_500 * 86_400_000),
        "idle_delete_ms": st.none() | st.integers(1, 36_500 * 86_400_000),
        "fanout_only": st.booleans(),
    }
)


@given(plain_settings, retries)
def test_what_is_listed_can_be_read_back(plain, retry):
    config = QueueConfig(**plain, **retry)
    written = "".join(f"{name}: {value}\n" for name, value in queue_setting_lines(config))
    assert queue(written) == config
    whole = Config(queue_path="/q", defaults=config, source="k.yaml")
    assert load(dump_config(whole), "k.yaml") == whole


LETTERS: Final = (
    "a",
    "*",
    "'",
    '"',
    "\\",
    ":",
    "#",
    " ",
    "\n",
    "\t",
    "\x7f",
    "\x85",
    "\u00f6",
    "\u2028",
    "\ud800",
    "\U0001f600",
)
# What values look like, of any setting; each takes some of them.
WORDS: Final = (
    *("true", "false", "yes", "off", "null", "none", "infinite", "auto", "'5'", "0", "5", "[]", "{}", "required"),
    *("all", "top:3", "'regex:a: \"#', \\\\d'", "json", "text", "queueing", "delivery", "kestrel-1", "optional"),
    *("127.0.0.1:5", "'[::1]:5'", "q1:7:8", "'unix:/a: #b'", "[1.2.3.4:5, q:6]", "[a, b.c]", "A-b"),
    *("~/a", "'/a: #b'", "'/\u00e4\U0001f600'", "queue", "'q: #'", "\u00f6"),
)
UNITS: Final = ("", "ms", "s", "m", "h", "d", "KiB", "MiB", "GiB")
NEVER_UNSET: Final = ("max_retries", "move_failed_to", "tls.certificate", "tls.key", "tls.client_ca", "listen.memcache")


def yaml_text(text: str) -> str:
    return '"' + "".join(f"\\U{ord(letter):08x}" for letter in text) + '"'


def some_text(chance: Random) -> str:
    """Of a value that some setting may have."""

    def name() -> str:
        return yaml_text("".join(chance.choices(LETTERS, k=chance.randint(1, 4))))

    def number() -> str:
        return f"{chance.randrange(10 ** chance.randint(1, 10))}{chance.choice(UNITS)}"

    match chance.randrange(5):
        case 0:
            return f"[{', '.join(number() for _ in range(chance.randint(1, 3)))}]"
        case 1:
            return f"{{{name()}: {{retry_delays: [{number()}, 1500ms], move_failed_to: {name()}}}}}"
        case 2:
            return chance.choice(WORDS)
        case _:
            return number()


def parsed(setting: Setting, text: str) -> object:
    return value_of(setting, read_value(text, SourceLocation("k.yaml"))[0])


def is_value(setting: Setting, node: Node) -> bool:
    try:
        value = value_of(setting, node)
    except BadValue:
        return False
    if setting.name in ("move_expired_to", "move_failed_to"):
        return value not in (None, "\u00c3\u00b6")  # items would go round
    return not (value is None and setting.name in NEVER_UNSET) and not (
        isinstance(value, int)
        and setting.name == "cache_memory"
        and value < 1 << 30  # less than cache_item_size_max may be
    )


class SecretFiles(FileLayer):
    """Whatever is named has a secret in it."""

    def read_operators_file(self, path: str) -> bytes:
        return b"x" * 32


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))])
def test_all_settings_at_once_can_be_read_back_as_they_are_dumped_and_listed(seed: int) -> None:
    chance = Random(seed)
    texts = [*WORDS, *(some_text(chance) for _ in range(300))]
    nodes = [(text, read_value(text, SourceLocation("k.yaml"))[0]) for text in texts]
    overrides = ["insecure=true"]
    for setting in SETTINGS:
        own = [text for text, node in nodes if is_value(setting, node)]
        assert own, f"no values of {setting.name}"
        if setting.name != "insecure":
            overrides.append(f"{setting.name}={chance.choice(own)}")
        if setting.per_queue:
            overrides.append(f"queues.\u00f6.{setting.name}={chance.choice(own)}")
    config = load("", "k.yaml", overrides, SecretFiles())
    again = load(dump_config(config), "k.yaml", files=SecretFiles())
    for setting in SETTINGS:
        was, now = ((one.defaults if setting.per_queue else one) for one in (config, again))
        assert getattr(now, setting.field) == getattr(was, setting.field), setting.name
    assert again == config
    listed = dict(queue_setting_lines(config.for_queue("\u00c3\u00b6")))
    for setting in SETTINGS:
        if setting.per_queue:
            value = getattr(config.for_queue("\u00c3\u00b6"), setting.field)
            assert parsed(setting, listed[setting.name]) == value, setting.name


# --- Numbers, names and addresses.

numbers = st.integers(0, SIZE_BYTES_MAX)


@given(st.integers(0, 2**33 - 1), st.sampled_from([("", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)]))
def test_a_size_is_its_number_times_its_unit(number, unit):
    name, factor = unit
    assert parse_size_bytes(f"{number}{name}") == number * factor


@given(st.integers(0, 10**15), st.sampled_from([1, 1000]))
def test_a_duration_is_the_same_written_plain_or_in_any_units(duration_ms, plain_unit_ms):
    assert parse_duration_ms(str(duration_ms), plain_unit_ms) == duration_ms * plain_unit_ms
    parts, rest_ms = [], duration_ms
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest_ms = divmod(rest_ms, unit_ms)
        parts += [f"{count}{unit}"] if count else []
    assert parse_duration_ms("".join(parts) or "0s", plain_unit_ms) == duration_ms


@given(st.text(alphabet="0123456789dhmsKMGiB+-_. ") | st.text())
def test_any_other_text_is_refused(text):
    for parse in (parse_whole_number, parse_size_bytes, lambda text: parse_duration_ms(text, 1)):
        try:
            assert 0 <= parse(text) <= SIZE_BYTES_MAX
            assert re.match("[0-9]", text, re.ASCII)
        except ValueError:
            assert not re.fullmatch("[1-9][0-9]{0,17}", text, re.ASCII)


@given(st.text(st.characters(max_codepoint=255), max_size=80))
def test_a_queue_name_comes_back_from_its_file_name(name):
    encoded = encode_queue_name(name)
    assert re.fullmatch("[A-Za-z0-9_%-]*", encoded)
    assert decode_queue_name(encoded) == name
    assert (queue_name_problem(name) is None) <= (len(encoded) <= 200)


@pytest.mark.parametrize("folder", ["", "a.b", "a b", "%61", "%2b", "%", "a%2", "%2F", "größe", "日本"])
def test_a_folder_that_no_queue_makes_is_told_by_its_name(folder):
    name = decode_queue_name(folder)
    assert queue_name_problem(name) or encode_queue_name(name) != folder


@pytest.mark.parametrize("name", ["work", "a:@=%#-_", "a+b", "a+b+c", "gr\xc3\xb6\xc3\x9fe", "\x80\xff", "n" * 200])
def test_a_usable_queue_name_has_no_problem(name):
    assert queue_name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a~", ".", "a b", "a\0", "a\n", "\x7f", "+", "a+", "+a", "日本", "n" * 201, "\xff" * 67],
)
def test_an_unusable_queue_name_has_one(name):
    assert queue_name_problem(name)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:22133", Address("127.0.0.1", 22133)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:22133", Address("::1", 22133)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("queue-1.example.org:65535", Address("queue-1.example.org", 65535)),
        ("unix:/run/k:1.sock", Address(path="/run/k:1.sock")),
    ],
)
def test_an_address_is_printed_as_it_is_written(text, address):
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", ":1", "h", "h:", "h:-1", "h:65536", "h:1 ", "::1", "[h]:1", "[]:1", "*:1", "a b:1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError):
        Address.parse(text)


# --- The file that ships.


def test_the_packaged_file_shows_every_setting_and_its_defaults():
    text = PACKAGED.read_text()
    shown = load(text, "k.yaml")
    assert shown == replace(load("", "k.yaml"), queue_path="/var/spool/kestrel", expiration_timer_ms=1000)
    bare, examples = text.split("#queues:\n")
    defaults = load(re.sub("^#(?! |$)", "", bare, flags=re.M), "k.yaml")
    assert defaults == shown
    for setting in SETTINGS:
        name = setting.name.rpartition(".")[2]
        assert re.search(rf"^(#|  )?{name}: ", bare, re.M), f"{name} is not shown"
    queues = load("queues:\n" + examples.partition("\n\n")[0].replace("#", ""), "k.yaml")
    assert list(queues.queues) == ["work", "work+audit", "session-*", "mail"]


# --- Who gets in.

USER = "users: {a: {certificate: c, rights: {q: put}}}"


@pytest.mark.parametrize(
    "text",
    [
        "listen: {memcache: [127.8.9.1:1, '[::1]:1', 'localhost:1', 'unix:/x']}",
        "listen: {memcache: 0.0.0.0:1}\ninsecure: true",
        "listen: {memcache: 0.0.0.0:1}\n" + USER,
        "listen: {memcache: 'tls:0.0.0.0:1'}\ntls: {certificate: x, client_ca: y}",
    ],
)
def test_these_are_not_open_to_everybody(text):
    assert load(text, "k.yaml").exposed() is None


@pytest.mark.parametrize(
    "more", ["tls: {certificate: x}", "tls: {certificate: x, client_ca: y, client_certificate: optional}"]
)
def test_certificates_that_nobody_has_to_show_do_not_help(more):
    with pytest.raises(ConfigError, match="reachable from other machines without authentication"):
        load(f"listen: {{memcache: 'tls:0.0.0.0:1'}}\n{more}", "k.yaml")


def test_users_do_not_come_from_the_command_line():
    with pytest.raises(ConfigError) as refused:
        load("", "k.yaml", ["users.a.password=scrypt:hunter2"])
    assert "set users in a file" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_password_is_not_in_what_is_printed_of_it():
    secret = str(hash_password(b"x", b"salt" * 4))
    config = load(f"users: {{a: {{password: '{secret}', rights: {{'*': all}}}}}}", "k.yaml")
    assert str(config.users["a"].password) == secret
    assert secret.rpartition(":")[2] not in repr(config)
