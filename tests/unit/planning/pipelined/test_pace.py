"""What is known of how fast replicas are: how much in which time, and what a further shard would do."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.levers.standby import Standby
from evenkeel.planning.pipelined.pace import Pace
from evenkeel.planning.situation import Situation
from tests.unit.planning.planning_cases import situation_of


@st.composite
def questions(draw: st.DrawFn) -> tuple[Situation, Layout]:
    """A pipeline of one replica with slow devices, and a spare rank beside it."""
    tensor, pipeline = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    home = uniform_layout(
        num_blocks=draw(st.integers(pipeline, 10)) + 2, tensor=tensor, pipeline=pipeline, data=1, num_micro_batches=8
    )
    speeds = draw(st.dictionaries(st.sampled_from(home.ranks), st.floats(0.2, 1.0), max_size=3))
    home = replace(home, standbys=(len(home.ranks),))
    return situation_of(home, speeds=speeds | {len(home.ranks): draw(st.floats(0.3, 1.5))}), home


@given(questions(), st.sampled_from(["1f1b", "zb-h1"]), st.floats(0.0, 60.0))
def test_the_largest_quota_within_some_seconds_is_found(question, schedule, slopes):
    situation, home = question
    pace = Pace(situation, home.replicas[0].stages, schedule)
    seconds = slopes * pace.slope
    quota = pace.within(seconds)
    assert pace.seconds(quota + 1) > seconds
    if quota:
        assert pace.seconds(quota) <= seconds


@given(questions(), st.integers(1, 12))
def test_a_further_shard_gains_in_every_stage_and_a_faster_one_no_less(question, quota):
    situation, home = question
    pace, speed = Pace(situation, home.replicas[0].stages, "1f1b"), situation.throughputs[home.standbys[0]]
    slower, faster = pace.gains(quota, speed), pace.gains(quota, 2.0 * speed)
    assert len(slower) == len(home.replicas[0].stages)
    assert all(0.0 < one <= other for one, other in zip(slower, faster, strict=True))


@given(questions())
def test_what_a_question_with_more_spares_found_is_what_is_found_alone(question):
    situation, home = question
    alone = [layout.replicas for layout in Standby().propose(situation, home)]
    second = home.standbys[0] + 1
    more = replace(situation, throughputs={**situation.throughputs, second: situation.throughputs[second - 1]})
    list(Standby().propose(more, replace(home, standbys=(*home.standbys, second))))
    assert [layout.replicas for layout in Standby().propose(more.without({second}), home)] == alone
