"""Throughputs in columns are the sequence of the ranks' own."""

import numpy as np

from evenkeel.services.detector.adapters.finding_codec import profile_to_proto
from evenkeel.services.detector.domain.expectation.profile.profile import Profile, RankThroughput, RankThroughputs

ONE_BY_ONE = tuple(RankThroughput(rank=rank, throughput=1 - rank / 10, margin=rank / 100) for rank in range(4))
IN_COLUMNS = RankThroughputs(
    np.array([one.rank for one in ONE_BY_ONE]),
    np.array([one.throughput for one in ONE_BY_ONE]),
    np.array([one.margin for one in ONE_BY_ONE]),
)


def profile(throughputs: RankThroughputs | tuple[RankThroughput, ...]) -> Profile:
    return Profile(
        job_id="job",
        iteration=1,
        epoch=0,
        seconds_per_flop=1e-12,
        tokens=1.0,
        sum_of_squares=1.0,
        fixed_seconds=0.0,
        transfer_seconds=0.0,
        iteration_seconds=1.0,
        throughputs=throughputs,
    )


def test_columns_are_equal_to_the_ranks_one_by_one() -> None:
    assert IN_COLUMNS == ONE_BY_ONE
    assert list(IN_COLUMNS) == list(ONE_BY_ONE)
    assert IN_COLUMNS[1:3] == ONE_BY_ONE[1:3]
    assert IN_COLUMNS[-1] == ONE_BY_ONE[-1]
    assert ONE_BY_ONE[:3] != IN_COLUMNS
    assert hash(IN_COLUMNS) == hash(ONE_BY_ONE)


def test_both_forms_are_the_same_on_the_wire() -> None:
    assert profile_to_proto(profile(IN_COLUMNS)) == profile_to_proto(profile(ONE_BY_ONE))
