"""Nodes of these tests are small."""

from collections.abc import Iterator

import pytest

from tests.support.job_net import small_tables


@pytest.fixture(autouse=True)
def _small_tables() -> Iterator[None]:
    with small_tables():
        yield
