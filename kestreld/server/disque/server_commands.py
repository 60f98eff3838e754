"""Commands about the server itself: PING, AUTH, INFO, CONFIG, SLOWLOG, LATENCY, DEBUG, SHUTDOWN and others."""

from hmac import compare_digest
from typing import Final

from kestreld.server.accounts import Account
from kestreld.server.disque import replies
from kestreld.server.disque.commands import Command
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.info import sections
from kestreld.server.disque.node import Nap
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import NIL, NIL_ARRAY, NOT_AN_INTEGER, OK, SYNTAX_ERROR, bulk
from kestreld.server.disque.settings import SETTABLE

SLEEP_S_MAX: Final = 86_400
SLOW_DEFAULT: Final = 10


def ping(handler: DisqueHandler, words: list[bytes]) -> None:
    if len(words) > 2:
        handler.out.append(b"-ERR wrong number of arguments for 'ping' command\r\n")
    else:
        handler.out.append(bulk(words[1]) if len(words) == 2 else b"+PONG\r\n")


def quit_session(handler: DisqueHandler, words: list[bytes]) -> None:
    handler.out.append(OK)
    handler.quit()


def time(handler: DisqueHandler, words: list[bytes]) -> None:
    wall_ms = handler.node.clock.wall_ms
    handler.out.append(replies.array([bulk(b"%d" % (wall_ms // 1000)), bulk(b"%d" % (wall_ms % 1000 * 1000))]))


def auth(handler: DisqueHandler, words: list[bytes]) -> None:
    node, authenticate = handler.node, handler.authenticate
    if len(words) == 3 and authenticate is not None:
        _log_in(handler, words[1], words[2])
    elif len(words) != 2:
        handler.out.append(b"-ERR wrong number of arguments for 'auth' command\r\n")
    elif not node.password:
        handler.out.append(b"-ERR Client sent AUTH, but no password is set\r\n")
    else:
        fits = compare_digest(node.password, words[1])
        if authenticate is None:
            handler.enter(handler.account, has_entered=fits)
        handler.out.append(OK if fits else b"-ERR invalid password\r\n")


def _log_in(handler: DisqueHandler, name: bytes, password: bytes) -> None:
    """Log in as one of the configured users; the password is compared in a thread."""

    def compared(account: Account | None) -> None:
        if handler.gone:
            return
        handler.enter(account, has_entered=account is not None)
        if account is not None:
            handler.finish_slices(OK)
            return
        handler.state.stats.failed_logins += 1
        handler.refuse_login(b"-ERR invalid password\r\n")

    assert handler.authenticate is not None
    handler.begin_slices()
    if not handler.authenticate(name, password, compared):
        handler.finish_slices(b"-ERR too many logins, try again later\r\n")


def info(handler: DisqueHandler, words: list[bytes]) -> None:
    if len(words) > 2:
        handler.out.append(SYNTAX_ERROR)
        return
    wanted = words[1].lower() if len(words) == 2 else b"default"
    parts = []
    for name, lines in sections(handler.node):
        is_default = name != "Commandstats" and (name != "Cluster" or handler.node.cluster.is_one_of_several)
        if wanted == name.lower().encode() or wanted == b"all" or (wanted == b"default" and is_default):
            parts.append("".join([f"# {name}\r\n", *[f"{key}:{value}\r\n" for key, value in lines()]]))
    handler.out.append(bulk("\r\n".join(parts).encode("utf-8", "replace")))


def command(handler: DisqueHandler, words: list[bytes]) -> None:
    table = handler.node.commands
    word = words[1].lower() if len(words) > 1 else b""
    if len(words) == 1:
        handler.out.append(replies.array([_described(one) for one in table.values()]))
    elif word == b"count" and len(words) == 2:
        handler.out.append(replies.integer(len(table)))
    elif word == b"info":
        found = [table.get(name.lower()) for name in words[2:]]
        handler.out.append(replies.array([NIL if one is None else _described(one) for one in found]))
    else:
        handler.out.append(b"-ERR Unknown subcommand or wrong number of arguments.\r\n")


def _described(one: Command) -> bytes:
    flags = replies.array([replies.status(name) for name in one.flag_names])
    numbers = [replies.integer(0)] * 3
    return replies.array([bulk(one.name), replies.integer(one.arity), flags, *numbers])


def loadjob(handler: DisqueHandler, words: list[bytes]) -> None:
    handler.out.append(b"-ERR LOADJOB is a special command only processed from AOF\r\n")


def monitor(handler: DisqueHandler, words: list[bytes]) -> None:
    if handler not in handler.node.monitors:
        handler.out.append(OK)
        handler.node.add_monitor(handler)


def slowlog(handler: DisqueHandler, words: list[bytes]) -> None:
    node, word = handler.node, words[1].lower()
    count = integer(words[2]) if len(words) == 3 else SLOW_DEFAULT
    if word == b"reset" and len(words) == 2:
        node.slow.clear()
        handler.out.append(OK)
    elif word == b"len" and len(words) == 2:
        handler.out.append(replies.integer(len(node.slow)))
    elif word == b"get" and len(words) <= 3:
        if count is None:
            handler.out.append(NOT_AN_INTEGER)
            return
        lines = [
            [*map(replies.integer, (one.number, one.at_s, one.spent_us)), replies.array(map(bulk, one.words))]
            for one in list(node.slow)[: count if count >= 0 else None]
        ]
        handler.out.append(replies.array([replies.array(line) for line in lines]))
    else:
        handler.out.append(b"-ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.\r\n")


def latency(handler: DisqueHandler, words: list[bytes]) -> None:
    known, word = handler.node.latency, words[1].lower()
    if word == b"latest" and len(words) == 2:
        events = [[bulk(name), *map(replies.integer, numbers)] for name, *numbers in known.latest()]
        handler.out.append(replies.array([replies.array(one) for one in events]))
    elif word == b"history" and len(words) == 3:
        samples = [replies.array(map(replies.integer, sample)) for sample in known.history(words[2])]
        handler.out.append(replies.array(samples))
    elif word == b"graph" and len(words) == 3:
        graph = known.graph(words[2], handler.node.clock.wall_ms // 1000)
        no_samples = replies.error(b"ERR No samples available for event '%b'" % words[2])
        handler.out.append(bulk(graph) if graph else no_samples)
    elif word == b"reset":
        handler.out.append(replies.integer(known.reset(words[2:])))
    elif word == b"doctor" and len(words) == 2:
        handler.out.append(bulk(b"LATENCY LATEST lists what took longer than latency-monitor-threshold.\n"))
    else:
        handler.out.append(SYNTAX_ERROR)


def debug(handler: DisqueHandler, words: list[bytes]) -> None:
    node, word = handler.node, words[1].lower()
    if word == b"flushall" and len(words) == 2:
        flush(handler)
    elif word == b"loadaof" and len(words) == 2:
        handler.until_done(node.persistence.load)
    elif word == b"sleep" and len(words) == 3:
        span_ms = _milliseconds(words[2])
        if span_ms is None:
            handler.out.append(b"-ERR value is not a valid float\r\n")
        elif span_ms:
            handler.wait(Nap(node.clock.monotonic_ms + span_ms, lambda: handler.wait_is_over(OK)), NIL_ARRAY)
        else:
            handler.out.append(OK)
    elif word == b"error" and len(words) == 3:
        handler.out.append(replies.error(words[2]))
    else:
        handler.out.append(
            replies.error(b"ERR Unknown DEBUG subcommand or wrong number of arguments for '%b'" % words[1])
        )


def flush(handler: DisqueHandler) -> None:
    """Delete every job and queue, and end waits; memory is freed in slices."""
    if refusal := handler.node.persistence.refusal:
        handler.out.append(refusal)
        return
    work = handler.node.clear()
    handler.depend_on_log()
    handler.out.append(OK)
    handler.state.control.take_on(work)


def _milliseconds(word: bytes) -> int | None:
    try:
        span_s = float(word)
    except ValueError:
        return None
    return int(span_s * 1000) if 0 <= span_s <= SLEEP_S_MAX else None


def shutdown(handler: DisqueHandler, words: list[bytes]) -> None:
    if len(words) > 2 or (len(words) == 2 and words[1].lower() != b"rewrite-aof"):
        handler.out.append(SYNTAX_ERROR)
        return
    control = handler.state.control
    if len(words) == 1:
        handler.hang_up()
        control.shutdown()
        return

    def saved(problem: str) -> None:
        if problem:
            handler.finish_slices(replies.error(b"ERR " + problem.encode("utf-8", "replace")))
        else:
            handler.finish_slices(b"")
            handler.hang_up()
            control.shutdown()

    handler.begin_slices()
    handler.node.persistence.save_for_restart(saved)


def bgrewriteaof(handler: DisqueHandler, words: list[bytes]) -> None:
    persistence = handler.node.persistence
    if persistence.is_rewriting:
        handler.out.append(b"-ERR Background append only file rewriting already in progress\r\n")
        return
    persistence.rewrite(lambda problem: None)
    handler.out.append(b"+Background append only file rewriting started\r\n")


# CONFIG


def config(handler: DisqueHandler, words: list[bytes]) -> None:
    word, count = words[1].lower(), len(words)
    counts = {b"get": 3, b"set": 4, b"resetstat": 2, b"rewrite": 2}
    if word not in counts:
        handler.out.append(b"-ERR CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE\r\n")
    elif count != counts[word]:
        handler.out.append(replies.error(b"ERR Wrong number of arguments for CONFIG %b" % words[1]))
    elif word == b"get":
        found = handler.node.settings.matching(words[2])
        handler.out.append(replies.pairs([(name, bulk(value)) for name, value in found]))
    elif word == b"set":
        _set(handler, words[2], words[3])
    elif word == b"resetstat":
        handler.node.reset_statistics()
        handler.out.append(OK)
    else:
        problem = handler.node.rewrite_settings()
        handler.out.append(replies.error(b"ERR " + problem.encode()) if problem else OK)


def _set(handler: DisqueHandler, word: bytes, value: bytes) -> None:
    name, settings = word.lower(), handler.node.settings
    if name not in SETTABLE:
        handler.out.append(replies.error(b"ERR Unsupported CONFIG parameter: " + word))
        return
    checked = settings.check(name, value)
    if checked is None:
        handler.out.append(replies.error(b"ERR Invalid argument '%b' for CONFIG SET '%b'" % (value, word)))
        return
    persistence = handler.node.persistence
    if name == b"appendonly" and persistence.is_loading:
        handler.out.append(persistence.obstacle)  # whether there is a log is known once it is read
        return
    wants_log = checked == b"yes"
    if name != b"appendonly" or wants_log == persistence.is_on:
        handler.node.set(name, checked)
        handler.out.append(OK)
        return

    def switched(problem: str) -> None:
        if problem:
            handler.finish_slices(replies.error(b"ERR Unable to turn on AOF. " + problem.encode("utf-8", "replace")))
        else:
            handler.node.set(name, checked)
            handler.finish_slices(OK)

    handler.begin_slices()
    persistence.switch(switched, on=wants_log)
