import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.scheduler.plans.outlook import FLIP_MEMORY_SECONDS, PRIOR_EVENTS_PER_DEVICE_SECOND, Outlook

PRIOR = 600.0


def horizon(outlook, now=0.0, num_devices=8, observed=0.0):
    return outlook.horizon_seconds(
        now_unix_seconds=now, prior_seconds=PRIOR, num_devices=num_devices, observed_seconds=observed
    )


def test_a_small_job_that_has_seen_nothing_reckons_with_the_prior():
    assert horizon(Outlook().after_slowdown(3, 0.0)) == pytest.approx(PRIOR, rel=1e-3)


def test_a_large_job_is_interrupted_before_a_slowdown_passes():
    hours = 1.0 / (PRIOR_EVENTS_PER_DEVICE_SECOND * 16384) / 3600
    assert hours == pytest.approx(3.09, abs=0.01)
    assert horizon(Outlook(), num_devices=1_000_000) < 0.3 * PRIOR


def test_a_fault_that_has_lasted_is_expected_to_last():
    slow = Outlook().after_slowdown(3, 0.0)
    assert horizon(slow, now=3600.0) > 6.0 * horizon(slow)


def test_a_job_whose_faults_pass_in_seconds_expects_the_next_to_pass_as_well():
    outlook, seen = Outlook(), []
    for start in range(0, 1000, 100):
        outlook = outlook.after_slowdown(3, float(start))
        seen.append(horizon(outlook, now=float(start)))
        outlook = outlook.after_recovery(3, start + 10.0)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.15 * PRIOR


def test_many_deaths_make_the_next_one_come_soon():
    outlook = Outlook()
    for rank in range(50):
        outlook = outlook.after_death(rank)

    def seconds(of):
        return of.seconds_to_next_event(num_devices=1000, observed_seconds=50_000.0)

    assert seconds(outlook) < 0.1 * seconds(Outlook())


def test_a_newer_estimate_of_a_slow_rank_is_no_new_fault_and_a_death_ends_no_slowdown():
    outlook = Outlook().after_slowdown(3, 0.0)
    assert outlook.after_slowdown(3, 50.0) == outlook
    assert outlook.after_recovery(4, 50.0) == outlook
    gone = outlook.after_death(3)
    assert (gone.num_events, gone.num_ended, gone.slow_since) == (2, 0, {})


def test_what_slowdowns_and_flips_leave_behind():
    once = Outlook().after_slowdown(3, 10.0).after_slowdown(4, 11.0).after_recovery(3, 14.0)
    assert once == Outlook(
        num_events=2, num_ended=1, ended_seconds=4.0, slow_since={4: 11.0}, flips={3: (10.0, 14.0), 4: (11.0,)}
    )
    later = once.after_slowdown(3, 10.0 + FLIP_MEMORY_SECONDS).after_recovery(3, 0.0)
    assert (later.num_ended, later.ended_seconds) == (2, 4.0), "a clock that was set back adds nothing"
    assert later.flips[3] == (14.0, 10.0 + FLIP_MEMORY_SECONDS, 0.0)


def test_the_horizon_is_the_harmonic_sum_of_the_next_fault_and_the_rest_of_the_youngest_slowdown():
    outlook = Outlook(num_events=3, num_ended=1, ended_seconds=20.0, slow_since={1: 50.0, 2: 90.0})
    rest, following = (PRIOR + 20.0 + 10.0) / 2.0, (1.0 / (PRIOR_EVENTS_PER_DEVICE_SECOND * 1e7) + 40.0) / 4.0
    assert horizon(outlook, now=100.0, num_devices=10**7, observed=40.0) == pytest.approx(
        1 / (1 / rest + 1 / following)
    )
    assert horizon(outlook, now=0.0, num_devices=10**7, observed=-1.0) == pytest.approx(
        1 / (1 / ((PRIOR + 20.0) / 2.0) + PRIOR_EVENTS_PER_DEVICE_SECOND * 1e7 * 4.0)
    )


@given(st.lists(st.tuples(st.sampled_from("dsr"), st.integers(0, 3), st.floats(0.0, 1e4)), max_size=20))
def test_a_horizon_is_always_above_zero_and_never_above_what_was_seen_or_assumed(events):
    outlook, now = Outlook(), 0.0
    for kind, rank, later in events:
        now += later
        if kind == "d":
            outlook = outlook.after_death(rank)
        elif kind == "s":
            outlook = outlook.after_slowdown(rank, now)
        else:
            outlook = outlook.after_recovery(rank, now)
    assert 0.0 < horizon(outlook, now=now, observed=now) <= PRIOR + now
