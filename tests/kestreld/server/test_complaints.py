"""Lines about others are few, whatever others do."""

from kestreld.server.rate_limited_log import EVERY_MS, SUBJECTS_MAX, RateLimitedLog
from tests.support.clock import FakeClock


def test_the_same_subject_is_complained_of_once_a_minute() -> None:
    clock, said = FakeClock(), list[str]()
    complaints = RateLimitedLog(clock, said.append)
    for _ in range(10):
        complaints.complain("a", "about a")
        complaints.complain("b", "about b")
        clock.advance(EVERY_MS // 5)
    assert said == ["about a", "about b"] * 2


def test_a_crowd_of_subjects_does_not_fill_the_log_nor_memory() -> None:
    clock, said = FakeClock(), list[str]()
    complaints = RateLimitedLog(clock, said.append)
    for number in range(10 * SUBJECTS_MAX):
        complaints.complain(str(number), "again")
    assert len(said) == SUBJECTS_MAX
    clock.advance(EVERY_MS)
    complaints.complain("later", "again")
    assert len(said) == SUBJECTS_MAX + 1
    assert len(complaints._said_at_ms) == 1
