import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.schedules import one_f_one_b, zero_bubble_h1
from evenkeel.layouts.sizes.taper import one_f_one_b_seconds, taper

THIRDS = {Op.FORWARD: 1, Op.BACKWARD: 2, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 1}


def longest_path(schedule, sizes, num_stages):
    def seconds_of(_: int, instruction: Instruction) -> float:
        return sizes[instruction.micro_batch] * THIRDS[instruction.op] / 3

    programs = [schedule(stage, num_stages, range(len(sizes))) for stage in range(num_stages)]
    return max(stage.end_seconds for stage in times(programs, seconds_of))


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20), st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_the_time_of_micro_batches_that_differ_is_that_of_the_programs(sizes, fill):
    assert one_f_one_b_seconds(sizes, fill) == pytest.approx(longest_path(one_f_one_b, sizes, fill + 1))


@given(st.integers(1, 64), st.integers(0, 15))
@settings(max_examples=100, deadline=None)
def test_a_taper_does_the_same_work_and_never_takes_longer_than_equal_micro_batches(num, fill):
    sizes = taper(num, fill)
    assert len(sizes) == num
    assert sum(sizes) == pytest.approx(num)
    assert min(sizes) > 0.0
    assert one_f_one_b_seconds(sizes, fill) <= num + fill + 1e-9


# Optima of a linear program over sizes of at most 1.5 and the moments of all operations.
@pytest.mark.parametrize(
    ("stages", "num", "optimum"), [(2, 8, 4.273), (4, 8, 2.548), (4, 16, 4.434), (8, 16, 2.631), (16, 32, 2.668)]
)
def test_a_taper_is_within_two_percent_of_the_optimum(stages, num, optimum):
    assert one_f_one_b_seconds(taper(num, stages - 1), stages - 1) / stages < 1.02 * optimum


@pytest.mark.parametrize(("stages", "num"), [(2, 4), (4, 8), (8, 32)])
def test_a_schedule_that_hides_weight_gradients_is_not_slower_for_it(stages, num):
    even = longest_path(zero_bubble_h1, (1.0,) * num, stages)
    assert longest_path(zero_bubble_h1, taper(num, stages - 1), stages) <= even
