"""`compat: kestrel-1` against what a real Kestrel 1.3 answered, byte for byte (tests/golden/kestrel1)."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import running_daemon
from tests.support.transcripts import ANSWER_MS, Late, play
from tests.support.waiting import PATIENCE_S

RECORDED: Final = {path.stem: path for path in sorted((Path(__file__).parents[1] / "golden/kestrel1").glob("*.json"))}
# Where kestreld answers otherwise on purpose: docs/compatibility.md says what, and test_differences.py tests it.
DIFFERENT: Final = frozenset(
    {
        "dot_name_13",
        "dump_config",
        "fanout_parent_full",
        "get_no_key",
        "set_negative_size_minus1",
        "set_nonnumeric_size",
        "set_size_too_small",
        "set_terminator_unchecked",
        "space_only_line",
    }
)
TRIES: Final = 10  # for an answer that comes later than it may: on a busy machine any may, but not each time
DIFFERENCE_MS: Final = 300  # how long to wait for an answer that does not come
FOR_ALL_QUEUES: Final = frozenset({"flush_all", "flush_all_expired"})
CONFIG: Final = """
listen: {admin: null}
compat: kestrel-1
queues:
  gq_maxitems: {max_items: 3}
  gq_maxsize: {max_size: 10}
  gq_maxitemsize: {max_item_size: 5}
  gq_discard: {max_items: 3, discard_old_when_full: true}
  gq_discardsize: {max_size: 10, discard_old_when_full: true}
  gq_maxage: {max_age: 1000}
  gq_expto: {move_expired_to: gq_expdest}
  gq_nojournal: {journal: false}
  gq_fanlim: {max_items: 2}
"""

Outcomes = dict[str, "Future[None]"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """How each conversation goes. Most of their time is waiting, so they go on side by side."""
    folder = tmp_path_factory.mktemp("kestreld")
    with (
        running_daemon(folder / "shared", config=CONFIG) as shared,
        running_daemon(folder / "own", config=CONFIG) as own,
        ThreadPoolExecutor(16) as many,
        ThreadPoolExecutor(1) as one_by_one,
    ):
        yield {
            name: one_by_one.submit(converse, path, own.port)
            if name in FOR_ALL_QUEUES
            else many.submit(converse, path, shared.port)
            for name, path in RECORDED.items()
        }


def converse(path: Path, port: int) -> None:
    """Play a conversation; again, with another queue, when an answer that is right comes late."""
    for number in range(TRIES):
        with suppress(Late):
            return play(path, port, f"{path.stem}{number}", DIFFERENCE_MS if path.stem in DIFFERENT else ANSWER_MS)
    raise AssertionError(f"{path.stem}: an answer comes late each time")


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in DIFFERENT])
def test_answers_are_those_of_kestrel_1(outcomes: Outcomes, name: str) -> None:
    outcomes[name].result(PATIENCE_S)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_what_differs_on_purpose_does_differ(outcomes: Outcomes, name: str) -> None:
    with pytest.raises(AssertionError, match=name):
        outcomes[name].result(PATIENCE_S)
