from evenkeel.services.common.kafka.assignment_pace import MOST_IN_WINDOW, WINDOW_SECONDS, AssignmentPace


def warnings(times: list[float]) -> int:
    pace = AssignmentPace()
    return sum([pace.too_many(each) for each in times])


def test_two_processes_that_take_the_place_from_each_other_are_told_some_times_a_minute() -> None:
    assert warnings([float(second) for second in range(60)]) == 60 // (MOST_IN_WINDOW + 1)


def test_a_rolling_restart_is_none_of_that() -> None:
    assert warnings([float(second) for second in range(MOST_IN_WINDOW)]) == 0


def test_what_happens_now_and_then_never_adds_up() -> None:
    assert warnings([each * WINDOW_SECONDS / MOST_IN_WINDOW * 1.01 for each in range(1_000)]) == 0
