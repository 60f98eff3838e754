"""The work of `journal peek`: writes the items that a queue held at a moment in the past."""

from itertools import islice

from kestrelctl.items.framing import Framing, frame
from kestrelctl.journals.events import Came
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.journals.past import Past
from kestrelctl.journals.spools import shown
from kestrelctl.journals.times import written_instant
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted, say, write_data
from kestreld.journal.records import item_data, item_optional_fields


def write_waiting(
    place: JournalLocation, queue: str, at_ms: int, framing: Framing, limit: int | None, *, empty_ok: bool
) -> ExitCode:
    """Write at most `limit` items, None = all. Raises Failure, also if none waited and not `empty_ok`.

    Returns NEGATIVE, with a message on stderr, if some of the items are no longer on disk.
    """
    with replaying(str(place)):
        past = Past(place, queue, at_ms)
        written = 0
        for item in islice(past.items(), limit):
            write_data(frame(item_data(item.record), framing, _details(item, past)))
            written += 1
    gone = past.count - written
    if gone > 0 and (limit is None or written < limit):
        words = f"{counted(past.count, 'item')} waited in {queue}; items={gone} of them are no longer on disk"
        say(words)
        return ExitCode.NEGATIVE
    if past.count <= 0 and not empty_ok:
        raise Failure(ExitCode.NEGATIVE, f"{queue} was empty at {written_instant(at_ms)}")
    return ExitCode.OK


def _details(item: Came, past: Past) -> dict[str, object]:
    """Fields of an item beside its data, without those it does not have."""
    expire_at_ms, flags, _ = item_optional_fields(item.record)
    known: dict[str, object] = {"id": item.item_id, "at_ms": item.at_ms}
    if expire_at_ms:
        known["expire_at_ms"] = expire_at_ms
    if flags:
        known["flags"] = flags
    known |= past.known_of(item.item_id)
    if (origin := item.origin) is not None:
        known["origin"] = {
            "queue": shown(origin.queue),
            "reason": origin.reason_word,
            "attempts": origin.attempts,
            "put_at_ms": origin.put_at_ms,
        }
        if origin.failure:
            known["failure_reason"] = origin.failure
    return known
