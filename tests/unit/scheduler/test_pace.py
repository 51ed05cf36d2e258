"""What is known of how fast replicas are: how much in which time, and no place dismissed where a shard would help."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.levers.balance.tensor_width import best_stage
from evenkeel.planning.levers.standby import Standby
from evenkeel.planning.pipelined.pace import Pace
from evenkeel.planning.situation import Situation
from tests.unit.scheduler.planning_cases import situation_of


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
    if quota:
        assert pace.seconds(quota) <= seconds
        assert pace.is_within(quota, seconds)
    if quota < int(seconds / pace.slope):
        assert pace.seconds(quota + 1) > seconds
        assert not pace.is_within(quota + 1, seconds)


@given(questions(), st.sampled_from(["1f1b", "zb-h1"]), st.integers(1, 12), st.floats(0.7, 1.1))
def test_no_stage_is_dismissed_in_which_a_further_shard_would_do(question, schedule, quota, part):
    situation, home = question
    stages, rank = home.replicas[0].stages, home.standbys[0]
    pace = Pace(situation, stages, schedule)
    seconds = part * pace.seconds(quota)
    least = pace.least_seconds(quota, seconds, situation.throughputs[rank])
    for s, stage in enumerate(stages):
        wider = best_stage(situation, replace(stage, ranks=(*stage.ranks, rank), shares=(*stage.shares, 1)))
        helped = Pace(situation, (*stages[:s], wider, *stages[s + 1 :]), schedule)
        assert least[s] <= seconds or not helped.is_within(quota, seconds)


@given(questions())
def test_what_a_question_with_more_spares_found_is_what_is_found_alone(question):
    situation, home = question
    alone = [layout.replicas for layout in Standby().propose(situation, home)]
    second = home.standbys[0] + 1
    more = replace(situation, throughputs={**situation.throughputs, second: situation.throughputs[second - 1]})
    list(Standby().propose(more, replace(home, standbys=(*home.standbys, second))))
    assert [layout.replicas for layout in Standby().propose(more.without({second}), home)] == alone
