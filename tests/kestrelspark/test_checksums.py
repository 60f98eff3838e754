"""Many checksums at once beside the xxhash package's, one by one."""

import random

import pytest

pytest.importorskip("numpy", reason="numpy is not installed: make test-spark installs it")

import numpy as np
from xxhash import xxh3_64_intdigest

from kestrelspark.checksums import FEW
from kestrelspark.scanning import Scan, scans

SIZES = [*range(300), 1000, 5000]


@pytest.mark.parametrize("scan", scans(), ids=lambda scan: scan.name)
def test_checksums_are_those_of_xxhash_whatever_the_size_and_seed(scan: Scan) -> None:
    chance = random.Random(1)
    buffer = chance.randbytes(20_000)
    for size in SIZES:
        starts = [0, len(buffer) - size, *(chance.randrange(len(buffer) - size) for _ in range(FEW))]
        seeds = [0, (1 << 64) - 1, *(chance.getrandbits(64) for _ in range(FEW))]
        found = scan.digests(buffer, np.array(starts), np.array(starts) + size, np.array(seeds, np.uint64))
        for start, seed, digest in zip(starts, seeds, found.tolist(), strict=True):
            assert digest == xxh3_64_intdigest(buffer[start : start + size], seed), (size, start, seed)


@pytest.mark.parametrize("scan", scans(), ids=lambda scan: scan.name)
def test_stretches_of_all_sizes_may_be_mixed(scan: Scan) -> None:
    chance = random.Random(2)
    buffer = chance.randbytes(20_000)
    starts = [chance.randrange(10_000) for _ in range(5000)]
    ends = [start + chance.choice([0, 8, 16, 17, 40, 64, 90, 128, 129, 240, 241, 1000]) for start in starts]
    seeds = [chance.getrandbits(64) for _ in starts]
    found = scan.digests(buffer, np.array(starts), np.array(ends), np.array(seeds, np.uint64))
    assert found.tolist() == [
        xxh3_64_intdigest(buffer[start:end], seed) for start, end, seed in zip(starts, ends, seeds, strict=True)
    ]
