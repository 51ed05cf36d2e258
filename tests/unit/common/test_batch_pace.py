"""How many records are taken at once, whatever they cost."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.common.kafka.pace import FEWEST_RECORDS, MOST_RECORDS, TARGET_SECONDS, BatchPace

BATCHES = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1e4)), max_size=60)


@given(batches=BATCHES, most=st.integers(1, MOST_RECORDS))
def test_it_stays_in_its_bounds_and_moves_by_a_factor_of_two_at_most(
    batches: list[tuple[float, float]], most: int
) -> None:
    pace = BatchPace(most=most)
    for share, seconds in batches:
        before = pace.max_records
        pace.took(round(share * before), seconds)
        assert min(FEWEST_RECORDS, most) <= pace.max_records <= most
        assert before / 2 - 1 <= pace.max_records or pace.max_records == min(FEWEST_RECORDS, most)
        assert pace.max_records <= before * 2 + 1


@given(
    cost_seconds=st.floats(1e-6, 0.1),
    fixed_seconds=st.floats(0.0, 0.05),
    before=BATCHES,
)
def test_full_batches_come_to_last_as_long_as_they_should_whatever_was_before(
    cost_seconds: float, fixed_seconds: float, before: list[tuple[float, float]]
) -> None:
    pace = BatchPace()
    for share, seconds in before:
        pace.took(round(share * pace.max_records), seconds)
    for _ in range(40):
        pace.took(pace.max_records, fixed_seconds + cost_seconds * pace.max_records)
    lasts = fixed_seconds + cost_seconds * pace.max_records
    at_a_bound = pace.max_records in (FEWEST_RECORDS, MOST_RECORDS)
    assert at_a_bound or 0.5 * TARGET_SECONDS <= lasts <= 2.0 * TARGET_SECONDS


@given(slower=st.floats(1.0, 1000.0))
def test_a_service_that_is_starved_of_a_sudden_takes_smaller_bites_at_once(slower: float) -> None:
    cost_seconds = TARGET_SECONDS / MOST_RECORDS
    pace = BatchPace()
    pace.max_records = MOST_RECORDS
    num_long = 0
    while (seconds := slower * cost_seconds * pace.max_records) > 2 * TARGET_SECONDS:
        pace.took(pace.max_records, seconds)
        num_long += 1
        assert num_long <= 10


def test_a_trickle_says_nothing_of_a_flood() -> None:
    pace = BatchPace()
    for _ in range(100):
        pace.took(3, 0.001)
    assert pace.max_records == FEWEST_RECORDS
