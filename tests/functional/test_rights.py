"""What a user may do: rights by queue pattern, looked at before anything happens."""

from collections.abc import Iterator

import pytest
from pymemcache import Client
from pymemcache.exceptions import MemcacheClientError

from tests.functional.conftest import Connect, delete_all
from tests.support.accounts import LoggingInClient, login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

HASH = quick_hash("pw")
USERS = {
    "putter": "{'orders*': [put]}",
    "getter": "{'orders*': [get]}",
    "peeper": "{'orders': peek}",
    "sweeper": "{'orders': [flush, delete]}",
    "both": "{'a*z': [put], '*': [get], 'mail': [flush]}",
    "mender": "{'orders': [admin]}",
    "admin": "{'*': [admin]}",
    "king": "{'*': all}",
}
CONFIG = "listen: {admin: null}\nusers:\n" + "".join(
    f'  {name}: {{password: "{HASH}", rights: {rights}}}\n' for name, rights in USERS.items()
)
# Right -> a command it takes on a queue, and how its answer begins.
COMMANDS = {
    "put": (b"set %b 0 0 1\r\nx", b"STORED"),
    "put quietly": (b"set %b 5 0 1\r\nx", b"STORED"),
    "get": (b"get %b", b"END"),
    "gets": (b"gets %b", b"END"),
    "open": (b"get %b/open", b"END"),
    "close": (b"get %b/close/open", b"END"),
    "abort": (b"get %b/abort", b"END"),
    "put later": (b"set %b/delay=60000 0 0 1\r\nx", b"STORED"),
    "put once": (b"set %b/key=a 0 0 1\r\nx", b"STORED"),
    "add": (b"add %b/key=b 0 0 1\r\nx", b"STORED"),
    "cancel": (b"delete %b/key=k", b"NOT_FOUND"),
    "lease": (b"gets %b/open/lease=1000/t=1 %b/open/lease=1000/t=1", b"END"),
    "confirm": (b"delete %b/7", b"NOT_FOUND"),
    "extend": (b"touch %b/7 5", b"NOT_FOUND"),
    "give back": (b"touch %b/7/delay=5 0", b"NOT_FOUND"),
    "failed": (b"touch %b/7/failed 0", b"NOT_FOUND"),
    "list": (b"wait ~l %b", b"OK"),
    "leases of a queue": (b"leases by=me %b", b"END"),
    "leases": (b"leases by=me", b"END"),
    "present": (b"present me 100", b"OK"),
    "peek": (b"get %b/peek", b"END"),
    "flush": (b"flush %b", b"END"),
    "flush and count": (b"flush %b/count", b"0"),
    "flush_expired": (b"flush_expired %b", b"0"),
    "delete": (b"delete %b", b"DELETED"),
    "repair": (b"repair %b", b"SOUND"),
    "undo": (b"undo %b", b"NOT_FOUND"),
    "flush_all": (b"flush_all", b"OK"),
    "flush_all_expired": (b"flush_all_expired", b"0"),
    "dump_config": (b"dump_config", b"queue '"),
    "reload": (b"reload", b"Reloaded"),
    "stats": (b"stats", b"STAT"),
    "version": (b"version", b"VERSION"),
}
GETS = {"get", "gets", "open", "close", "abort", "lease", "confirm", "extend", "give back", "failed"}
GETS |= {"leases of a queue", "list"}
PUTS = {"put", "put quietly", "put later", "put once", "add", "cancel"}
SERVERS = {"flush_all", "flush_all_expired", "dump_config", "reload"}
FREE = {"stats", "version", "leases", "present"}
MAY = {
    "putter": PUTS,
    "getter": GETS,
    "peeper": {"peek"},
    "sweeper": {"flush", "flush and count", "flush_expired", "delete"},
    "mender": {"repair", "undo"},
    "admin": {"repair", "undo"} | SERVERS,
    "king": set(COMMANDS),
}


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


@pytest.fixture
def king(daemon: Daemon) -> Iterator[QueueClient]:
    """Who may do everything; there are no queues yet."""
    with QueueClient(daemon.port) as client:
        client.ask(login("king", "pw"), b"STORED\r\n")
        delete_all(client)
        yield client


@pytest.mark.parametrize("user", MAY)
def test_each_command_takes_its_right(daemon, king, user):
    refused = set()
    for name, (command, answer) in COMMANDS.items():
        king.send(b"delete orders\r\nget orders\r\n")  # there, and empty
        king.read_line()
        king.expect(b"END\r\n")
        with QueueClient(daemon.port) as client:
            client.ask(login(user, "pw"), b"STORED\r\n")
            line = command.replace(b"%b", b"orders")
            client.send(line + b"\r\n")
            said = client.read_line()
            assert said.startswith((b"CLIENT_ERROR not allowed: ", answer)), (name, said)
            if said.startswith(b"CLIENT_ERROR"):
                refused.add(name)
    assert set(COMMANDS) - refused - FREE == MAY[user] - FREE


def logged_in(connect: Connect, user: str) -> QueueClient:
    client = connect()
    client.ask(login(user, "pw"), b"STORED\r\n")
    return client


def test_all_patterns_that_match_count(connect):
    client = logged_in(connect, "both")
    client.put("abcz", b"x")
    client.put("az", b"y")
    assert client.get("abcz") == b"x"
    assert client.offer("abc", b"x") == b"CLIENT_ERROR not allowed: put on 'abc'"
    client.do(b"flush mail", b"END\r\n")
    client.do(b"flush mail2", b"CLIENT_ERROR not allowed: flush on 'mail2'\r\n")


@pytest.mark.usefixtures("king")
def test_a_pattern_is_for_the_whole_name_and_a_child_is_a_queue_of_its_own(connect):
    client = logged_in(connect, "peeper")
    client.do(b"get orders/peek", b"END\r\n")
    for name in (b"orders2", b"myorders", b"orders+audit", b"ORDERS"):
        client.do(b"get %b/peek" % name, b"CLIENT_ERROR not allowed: peek on '%b'\r\n" % name)


def test_what_is_refused_makes_no_queue_and_runs_no_data(connect, king, queue):
    client = logged_in(connect, "getter")
    name = queue.encode()
    data = b"set orders 0 0 0\r\n"
    client.send(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data))
    client.expect_line(b"CLIENT_ERROR not allowed: put on ")
    client.do(b"get %b" % name, b"CLIENT_ERROR not allowed: get on '%b'\r\n" % name)
    client.expect_nothing_more()
    assert f"queue_{queue}_items" not in king.stats()


def test_several_keys_are_refused_if_one_is(connect, king):
    king.put("orders", b"x")
    client = logged_in(connect, "getter")
    client.do(b"get orders secret", b"CLIENT_ERROR not allowed: get on 'secret'\r\n")
    assert client.get("orders") == b"x"


def test_waiting_on_several_queues_is_refused_if_one_is(connect, king):
    king.put("orders", b"x")
    client = logged_in(connect, "getter")
    line = b"gets orders/open/lease=9/t=9 secret/open/lease=9/t=9"
    client.do(line, b"CLIENT_ERROR not allowed: get on 'secret'\r\n")
    assert client.get("orders") == b"x"


def test_a_token_that_one_user_may_show_is_not_let_through_for_another(connect):
    for _ in range(2):
        logged_in(connect, "getter").do(b"delete orders/7", b"NOT_FOUND\r\n")
        refusal = b"CLIENT_ERROR not allowed: get on 'orders'\r\n"
        for line in (b"delete orders/7", b"delete orders/8", b"touch orders/7 5"):
            logged_in(connect, "sweeper").do(line, refusal)


def test_only_leases_from_queues_that_one_may_get_from_are_listed(connect, king):
    names = ["orders", "orders2", "secret"]
    for name in names:
        king.put(name, b"x")
    king.ask(
        b"".join(b"gets %b/open/lease=60000/by=me\r\n" % name.encode() for name in names),
        b"",
    )
    for name in names:
        king.expect_line(b"VALUE %b/" % name.encode())
        king.expect(b"x\r\nEND\r\n")
    listed = {}
    for user in ("getter", "king", "putter", "peeper", "admin"):
        client = logged_in(connect, user)
        client.send(b"leases by=me\r\n")
        listed[user] = [line.split()[1].decode() for line in client.read_until(b"END\r\n").splitlines()[:-1]]
    assert listed == {"getter": names[:2], "king": names, "putter": [], "peeper": [], "admin": []}
    client = logged_in(connect, "getter")
    client.do(b"leases by=me secret", b"CLIENT_ERROR not allowed: get on 'secret'\r\n")


def test_whoever_is_gone_ends_leases_only_of_queues_that_they_may_get_from(connect, king):
    names = ["orders-gone", "secret-gone"]
    for name in names:
        king.put(name, b"x")
        king.ask(b"gets %b/open/lease=60000/by=gone\r\n" % name.encode(), b"VALUE %b/" % name.encode())
        king.read_until(b"END\r\n")
    client = logged_in(connect, "getter")
    client.do(b"present gone 50", b"OK\r\n")
    client.close()
    assert king.get("orders-gone/t=30000") == b"x"
    assert king.get("secret-gone/t=100") is None
    client = logged_in(connect, "king")
    client.do(b"present gone 50", b"OK\r\n")
    client.close()
    assert king.get("secret-gone/t=30000") == b"x"


def test_noreply_keeps_a_refusal_quiet_too(connect, king):
    client = logged_in(connect, "getter")
    client.send(b"set orders 0 0 1 noreply\r\nx\r\ndelete orders noreply\r\n")
    client.send(b"add orders/key=k 0 0 1 noreply\r\nx\r\ndelete orders/key=k noreply\r\n")
    client.expect_nothing_more()
    assert king.items("orders") == 0


def test_lines_that_one_user_may_send_are_not_let_through_for_another(connect):
    line = b"set orders-cached 0 0 1\r\nx\r\n"
    putter, getter = logged_in(connect, "putter"), logged_in(connect, "getter")
    for _ in range(3):
        putter.ask(line, b"STORED\r\n")
        getter.send(line)
        getter.expect_line(b"CLIENT_ERROR not allowed")


def test_pymemcache_hears_of_it(daemon):
    client = LoggingInClient(("127.0.0.1", daemon.port), user="putter", password="pw", default_noreply=False)
    assert client.set("orders-py", b"x")
    with pytest.raises(MemcacheClientError, match="not allowed: get on 'orders-py'"):
        client.get("orders-py")
    client.close()


SEEN = {
    "peeper": {"orders"},
    "putter": {"orders", "orders+kid"},
    "sweeper": {"orders"},
    "mender": {"orders"},
    "both": {"orders", "orders+kid", "other"},
    "admin": {"orders", "orders+kid", "other"},
}


@pytest.mark.parametrize("user", SEEN)
def test_figures_are_of_the_queues_on_which_a_user_has_some_right(daemon, king, connect, user):
    names = {"orders", "orders+kid", "other"}
    for name in names:
        king.put(name, b"x")
    client = LoggingInClient(("127.0.0.1", daemon.port), user=user, password="pw", default_noreply=False)
    figures = client.stats()
    client.close()
    assert {name for name in names if f"queue_{name}_items".encode() in figures} == SEEN[user]
    assert int(figures[b"curr_items"]) >= 3
    told_of_children = figures.get(b"queue_orders_children", b"") == b"orders+kid"
    assert told_of_children == ("orders+kid" in SEEN[user])
    dumped = logged_in(connect, user)
    dumped.send(b"dump_stats\r\nversion\r\n")
    blocks = dumped.read_until(b"VERSION ")
    assert {name for name in names if b"queue '%b' {" % name.encode() in blocks} == SEEN[user]


def test_a_queue_that_a_user_does_not_see_has_no_figures_when_it_is_named(king, connect):
    king.put("other", b"x")
    client = logged_in(connect, "peeper")
    client.do(b"dump_stats other", b"queue 'other' {\r\n}\r\nEND\r\n")
    client.do(b"dump_stats nosuch", b"queue 'nosuch' {\r\n}\r\nEND\r\n")


def test_shutdown_is_not_for_everybody(tmp_path):
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as anonymous, QueueClient(daemon.port) as client:
            anonymous.do(b"shutdown", b"CLIENT_ERROR unauthenticated\r\n")
            client.ask(login("mender", "pw"), b"STORED\r\n")
            client.do(b"shutdown", b"CLIENT_ERROR not allowed: requires the admin right on all queues\r\n")
        with QueueClient(daemon.port) as client:
            client.ask(login("admin", "pw"), b"STORED\r\n")
            client.send(b"shutdown\r\n")
            client.expect_end()
        assert daemon.wait() == 0


def test_without_users_everybody_may_do_everything(tmp_path):
    with running_daemon(tmp_path, config="listen: {admin: null}\n") as daemon:
        client = Client(("127.0.0.1", daemon.port), default_noreply=False)
        assert client.set("q", b"x")
        assert client.flush_all()
        client.close()
