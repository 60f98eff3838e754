"""Rights that Disque's commands require if users are configured."""

from collections.abc import Iterable
from typing import Final

from kestreld.config.users import Right, Thing
from kestreld.jobs.globs import Glob
from kestreld.jobs.jobs import Jobs
from kestreld.server.accounts import Account
from kestreld.server.disque.commands import Command

WITH_SECRETS: Final = frozenset({b"auth", b"config"})  # not to be shown to others
_FREE: Final = frozenset(
    [b"ping", b"hello", b"quit", b"auth", b"time", b"command", b"info", b"latency", b"loadjob", b"qscan", b"jscan"]
)
_OF_CLIENT: Final = frozenset([b"getname", b"setname", b"reply"])
_OF_CLUSTER: Final = frozenset([b"nodes", b"myid", b"info"])
_ON_QUEUE: Final = {
    b"addjob": Right.PUT,
    b"qlen": Right.PEEK,
    b"qstat": Right.PEEK,
    b"qcount": Right.PEEK,
    b"qpeek": Right.PEEK,
    b"qdel": Right.DELETE,
    b"redrive": Right.FLUSH,
}
_ON_JOBS: Final = {
    b"ackjob": Right.GET,
    b"fastack": Right.GET,
    b"nack": Right.GET,
    b"enqueue": Right.GET,
    b"dequeue": Right.GET,
    b"working": Right.GET,
    b"deadjob": Right.GET,
    b"deljob": Right.DELETE,
    b"show": Right.PEEK,
    b"deadshow": Right.PEEK,
    b"waitjob": Right.PEEK,
}


class OwnGlob(Glob):
    """A user's pattern, which matches only queues whose jobs the user may take."""

    __slots__ = ("_account",)

    def __init__(self, text: bytes, account: Account) -> None:
        super().__init__(text)
        self.text = b"%b\0%b" % (account.config.name.encode(), text)  # distinct for each user
        self._account = account

    def matches(self, name: bytes) -> bool:
        return super().matches(name) and self._account.may(Right.GET, name.decode("latin-1"), Thing.JOB)


def forbidden(account: Account, jobs: Jobs, command: Command, words: list[bytes]) -> bytes:
    """Return the reason why an account may not send a command; b"" if it may. Unknown jobs need no right."""
    name = command.name
    if name in _FREE or account.is_admin:
        return b""
    if (right := _ON_QUEUE.get(name)) is not None:
        return _missing(account, right, words[1:2])
    if (right := _ON_JOBS.get(name)) is not None:
        found = [job for job_id in words[1:] if (job := jobs.table.get(job_id)) is not None]
        return _missing(account, right, {job.terms.queue.name for job in found})
    if name == b"getjob":
        places = [place for place, word in enumerate(words) if word.lower() == b"from"]
        return _missing(account, Right.GET, words[places[0] + 1 :] if places else [])
    if name == b"pause":
        return _missing(account, Right.FLUSH, words[1:2])
    word = words[1].lower() if len(words) > 1 else b""
    if (name == b"client" and word in _OF_CLIENT) or (name == b"cluster" and word in _OF_CLUSTER):
        return b""
    return b"requires the admin right on all queues"


def _missing(account: Account, right: Right, queues: Iterable[bytes]) -> bytes:
    for queue in queues:
        if not account.may(right, queue.decode("latin-1"), Thing.JOB):
            return b"has no right to %b on %b" % (right.value.encode(), queue)
    return b""
