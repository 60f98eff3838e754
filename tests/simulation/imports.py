"""A spool that the original Kestrel left behind, with items that nobody may lose."""

from collections.abc import Iterator
from random import Random

from kestreld.files import FileLayer
from kestreld.journal.kestrel.ops import ADDX, REMOVE, Op, encode
from tests.simulation.history import START_WALL_MS, History, Put
from tests.simulation.plan import IMPORTED, SPOOL, Plan
from tests.simulation.requests import data_of


def kestrel_files(files: FileLayer, plan: Plan, history: History, puts: Iterator[int], chance: Random) -> None:
    """Write a journal of Kestrel's for each queue to be imported, and note its items as put long ago."""
    for name in plan.readers:
        if name.partition("+")[0] != IMPORTED:
            continue
        ops = []
        for _ in range(chance.randint(1, 8)):
            number = next(puts)
            put = Put(number, name, data_of(number, 30), 0, 0, 0, None, 0, "stored")
            ops.append(encode(Op(ADDX, 0, START_WALL_MS, 0, put.data)))
            if chance.random() < 0.2:
                ops.append(encode(Op(REMOVE)))
                removed = min((one for one in history.puts.values() if one.name == name), default=put, key=_number)
                history.puts.pop(removed.number, None)
                if removed is put:
                    continue
            history.puts[number] = put
        path = f"{SPOOL}/{name}"
        fd = files.create(path)
        files.write(fd, b"".join(ops))
        files.sync(fd)
        files.close(fd)
    files.sync_dir(SPOOL)


def _number(put: Put) -> int:
    return put.number
