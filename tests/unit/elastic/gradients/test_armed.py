"""Whether everybody who was asked for a probe of a link is ready, from what a vote adds up."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.elastic.gradients.step_vote import Armed


@given(
    named=st.lists(st.integers(0, 12), max_size=8),
    probe_id=st.integers(1, 12),
    num_ranks=st.sampled_from([2, 4, 6]),
)
def test_they_agree_when_so_many_named_the_probe_and_nobody_another_one(
    named: list[int], probe_id: int, num_ranks: int
) -> None:
    armed = Armed(newest=max(named, default=0), total=sum(named), num_ranks=sum(one > 0 for one in named))
    ready = [one for one in named if one]
    assert armed.agree_on(probe_id, num_ranks) == (ready == [probe_id] * num_ranks)
