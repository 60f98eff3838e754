"""What a seed decides before a run begins: queues, how they are kept and used, who the clients are, what goes wrong."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from kestreld.config.config import LEASE_GRACE_MS_MIN, Config, QueueConfig
from tests.simulation.excuses import Rules
from tests.simulation.history import Mode

SPOOL: Final = "/spool"
ARCHIVE: Final = "/archive"
LATE: Final = "late"  # where expired and failed items go
IMPORTED: Final = "old"
FEEDER: Final = "feed"  # a parent that keeps nothing
DECLARED_FROM: Final = 30_000_000  # from this seed on somebody also declares queues and leaves them behind
REASONED_FROM: Final = 20_000_000  # from this seed on clients also say why they have failed with an item
TIMED_FROM: Final = 10_000_000  # from this seed on most have items with a time and an owner of their own
BOUND_FROM: Final = 1_000_000_000  # from this seed on a client binds queues to exchanges
LISTED_FROM: Final = 1_500_000_000  # from this seed on clients lease from lists of queues, and a queue is fanout_only
PRESENT_FROM: Final = 2_000_000_000  # from this seed on holders of leases are present, and servers stopped for a while
HOLD_MS_MAX: Final = 3000  # no lease, delay or back-off is longer
Changes = dict[str, object]  # QueueConfig field -> value


@dataclass(slots=True)
class Plan:
    """`readers` are all queues, parents first; of `reliable` ones nothing is taken but by open and close."""

    readers: list[str] = field(default_factory=list)
    reliable: list[str] = field(default_factory=list)
    wiped: list[str] = field(default_factory=list)
    expiring: list[str] = field(default_factory=list)  # families that get items with an expiry
    fixed: dict[str, Changes] = field(default_factory=dict)  # the same in every life
    streams: list[str] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    modes: dict[str, Mode] = field(default_factory=dict)
    max_open_reads: int = 1
    timeout_ms: int = 0
    expiration_timer_ms: int = 0
    has_archive: bool = False
    has_imports: bool = False
    clients: list[str] = field(default_factory=list)  # what each does
    lives: int = 1
    disk_fails: bool = False
    disk_fills: bool = False
    flips_bits: bool = False
    clock_steps: bool = False
    network_breaks: float = 0.0  # so often while a client waits for an answer
    big_items: bool = False
    sync_together: bool = False
    puts_max: int = 0
    is_timed: bool = False
    says_why: bool = False
    declares: bool = False
    halts: bool = False  # the server is stopped by SIGSTOP and goes on

    @property
    def families(self) -> list[str]:
        return [name for name in self.readers if "+" not in name]

    def writable(self) -> list[str]:
        return [name for name in self.readers if name != LATE]

    def config(self, chance: Random) -> Config:
        """The configuration of one life."""
        aside = Random(str(chance.getstate()))  # draws nothing from `chance`: seeds stay what they have been
        queues: dict[str, Changes] = {}
        for name in self.readers:
            if "+" in name:
                queues[name] = {"max_memory_size_bytes": _memory(chance), **self.fixed.get(name, {})}
            else:
                mode = self.modes[name]
                queues[name] = {
                    "journal": mode.journal,
                    "sync_journal_ms": mode.sync_ms,
                    "max_journal_size_bytes": chance.choice([1, 300, 1000, 1000, 4000, 1 << 24]),
                    "max_journal_overflow": chance.choice([1, 2, 3, 10]),
                    "max_memory_size_bytes": _memory(chance),
                    "trash_ms": chance.choice([0, 0, 3000]),
                    **self.fixed.get(name, {}),
                }
        return Config(
            queue_path=SPOOL,
            archive_path=ARCHIVE if self.has_archive else None,
            timeout_ms=self.timeout_ms,
            request_timeout_ms=2000,
            expiration_timer_ms=self.expiration_timer_ms,
            max_open_reads=self.max_open_reads,
            max_memory_bytes=aside.choice([None, None, None, 1, 700, 5000]),
            sync_together=self.sync_together,
            defaults=QueueConfig(lease_grace_ms=LEASE_GRACE_MS_MIN),
            queues=queues,
            source="a seed",
        )

    def redraw_modes(self, chance: Random) -> None:
        """Another way of keeping some families, from the next start on."""
        for family, mode in self.modes.items():
            if mode.journal and family in self.readers and chance.random() < 0.2:
                self.modes[family] = Mode(sync_ms=_sync_ms(chance))


def _memory(chance: Random) -> int:
    return chance.choice([1, 200, 1000, 1 << 27])


def _sync_ms(chance: Random) -> int | None:
    return chance.choice([0, 0, 0, None, None, 20, 150])


def draw(chance: Random) -> Plan:
    """The plan of a seed."""
    plan = Plan()
    _draw_queues(plan, chance)
    _draw_limits(plan, chance)
    plan.max_open_reads = chance.choice([1, 1, 3])
    plan.timeout_ms = chance.choice([0, 0, 0, 1500])
    plan.expiration_timer_ms = chance.choice([0, 1000])
    plan.has_archive = chance.random() < 0.2
    plan.clients = ["producer", "worker"]
    others = ["producer", "consumer", "worker", "worker", "mixed", "janitor"]
    plan.clients += [chance.choice(others) for _ in range(chance.randint(1, 4))]
    if plan.wiped:
        plan.clients.append("sweeper")
    plan.lives = chance.randint(2, 5)
    plan.disk_fails = chance.random() < 0.4
    plan.disk_fills = chance.random() < 0.25
    plan.flips_bits = chance.random() < 0.06
    plan.clock_steps = chance.random() < 0.15
    plan.network_breaks = chance.choice([0.0, 0.0, 0.02, 0.1])
    plan.big_items = chance.random() < 0.4
    plan.puts_max = chance.choice([50, 200, 500])
    plan.sync_together = chance.random() < 0.3
    plan.streams = [name for name in ("work+@stays", "work+@passes") if chance.random() < 0.3]
    return plan


def add_times(plan: Plan, chance: Random) -> None:
    """Have items with a time and an owner of their own: leases, delays, back-off, keys."""
    plan.is_timed = True
    plan.clients += ["leaser", "scheduler"]
    plan.clients += [chance.choice(["leaser", "scheduler"]) for _ in range(chance.randint(0, 2))]
    retry_delays_ms: dict[str, tuple[int, ...]] = {}
    key_time_ms: dict[str, int] = {}
    for family in plan.families:
        changes: Changes = {"key_time_ms": chance.choice([100, 700, 3000, 300_000])}
        key_time_ms[family] = int(str(changes["key_time_ms"]))
        if chance.random() < 0.4:
            retry_delays_ms[family] = chance.choice([(3,), (80,), (40, 900)])
            changes["retry_delays_ms"] = retry_delays_ms[family]
        plan.fixed[family] = {**plan.fixed.get(family, {}), **changes}
    aside = Random(str(chance.getstate()))
    forgets = frozenset(family for family in plan.families if aside.random() < 0.15)
    for family in forgets:
        plan.fixed[family]["journal_leases"] = False
    lease_grace_ms = {family: HOLD_MS_MAX for family in plan.families if aside.random() < 0.3}
    for family, grace_ms in lease_grace_ms.items():
        plan.fixed[family]["lease_grace_ms"] = grace_ms
    limited = {name.partition("+")[0] for name, changes in plan.fixed.items() if "max_items" in changes}
    limited.update(family for family, mode in plan.modes.items() if not mode.journal)
    plan.rules = replace(
        plan.rules,
        limited=frozenset(limited),
        retry_delays_ms=retry_delays_ms,
        key_time_ms=key_time_ms,
        has_times=True,
        forgets_leases=forgets,
        lease_grace_ms=lease_grace_ms,
    )


def add_feeder(plan: Plan, chance: Random) -> None:
    """Have a queue that is `fanout_only`."""
    children = [f"{FEEDER}+a", f"{FEEDER}+b"][: chance.choice([1, 2, 2])]
    plan.readers += [FEEDER, *children]
    plan.modes[FEEDER] = Mode(sync_ms=_sync_ms(chance))
    plan.fixed[FEEDER] = {"fanout_only": True}
    plan.reliable += [name for name in children if chance.random() < 0.6]
    plan.wiped += [name for name in (FEEDER, *children[1:]) if chance.random() < 0.2]
    plan.rules = replace(plan.rules, fanout_only=frozenset({FEEDER}))


def add_lists(plan: Plan, chance: Random) -> None:
    """Have clients that lease from lists of queues."""
    plan.clients += ["lister"] * chance.randint(1, 2)


def add_holders(plan: Plan, chance: Random) -> None:
    """Have holders of leases that are present, and maybe a server that does not run for a while."""
    plan.clients += ["holder"] * chance.randint(1, 3)
    plan.halts = chance.random() < 0.5


def _draw_queues(plan: Plan, chance: Random) -> None:
    families = ["work"]
    families += [name for name, share in (("jobs", 0.4), ("tmp", 0.3), ("memo", 0.15)) if chance.random() < share]
    plan.has_imports = chance.random() < 0.15
    if plan.has_imports:
        families.append(IMPORTED)
    children = {"work": ["a", "b"], "tmp": ["x"], IMPORTED: ["kid"], "jobs": ["j"]}
    for family in families:
        plan.readers.append(family)
        plan.readers += [f"{family}+{label}" for label in children.get(family, []) if chance.random() < 0.5]
        plan.modes[family] = Mode(journal=family != "memo", sync_ms=_sync_ms(chance))
    plan.reliable = [name for name in plan.readers if chance.random() < 0.6]
    plan.wiped = [name for name in plan.readers if name.partition("+")[0] == "tmp"]


def _draw_limits(plan: Plan, chance: Random) -> None:
    """Expiry, moves, limits: for some queues, the same all the time."""
    max_age_ms: dict[str, int] = {}
    moves_to: dict[str, str] = {}
    discards: dict[str, None] = {}
    for name in plan.readers:
        fixed: Changes = {}
        if chance.random() < 0.1:
            max_age_ms[name] = fixed["max_age_ms"] = chance.choice([500, 2000])
        if chance.random() < 0.1:
            fixed["max_items"] = chance.choice([3, 10])
            fixed["discard_old_when_full"] = chance.random() < 0.5
            if fixed["discard_old_when_full"]:
                discards[name] = None
        if fixed:
            plan.fixed[name] = fixed
    if "jobs" in plan.readers:
        plan.expiring.append("jobs")
        if chance.random() < 0.6:
            plan.readers.append(LATE)
            plan.modes[LATE] = Mode(sync_ms=_sync_ms(chance))
            moves_to["jobs"] = LATE
            changes: Changes = {"move_expired_to": LATE}
            if chance.random() < 0.4:
                changes |= {"max_retries": 2, "move_failed_to": LATE}
            plan.fixed["jobs"] = {**plan.fixed.get("jobs", {}), **changes}
    drops_expired = frozenset(plan.families) - moves_to.keys()
    max_retries = _draw_retries(plan, chance, moves_to)
    for name in plan.readers:  # a child has what its parent has
        parent = name.partition("+")[0]
        if parent in max_age_ms:
            max_age_ms.setdefault(name, max_age_ms[parent])
        if parent in discards:
            discards[name] = None
    plan.rules = Rules(max_age_ms, moves_to, tuple(discards), max_retries, drops_expired)


def _draw_retries(plan: Plan, chance: Random, moves_to: dict[str, str]) -> dict[str, int]:
    """How often items may come back, by family, where there is a queue for those that have failed too often."""
    if LATE not in plan.readers:
        return {}
    aside = Random(str(chance.getstate()))  # draws nothing from `chance`: seeds stay what they have been
    max_retries = {}
    for family in ("jobs", "work"):
        limit = plan.fixed.get(family, {}).get("max_retries")
        if limit is None and aside.random() < 0.5:
            limit = aside.choice([1, 2])
            plan.fixed[family] = {**plan.fixed.get(family, {}), "max_retries": limit, "move_failed_to": LATE}
            moves_to[family] = LATE
        if isinstance(limit, int):
            max_retries[family] = limit
    return max_retries
