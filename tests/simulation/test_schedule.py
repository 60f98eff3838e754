"""The time of the simulation."""

from tests.simulation.schedule import Schedule


def test_what_was_due_while_no_server_ran_happens_late_and_time_does_not_go_back() -> None:
    schedule, seen = Schedule(), []
    schedule.after(10, lambda: seen.append(schedule.now_us))
    schedule.now_us += 100  # as between two lives of a server
    schedule.run(200)
    assert seen == [100]
