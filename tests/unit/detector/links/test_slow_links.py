"""Slow links, endpoints and groups in simulated jobs: who is named, and who is not."""

from functools import cache

import numpy as np
import pytest

from benchmarks.detection.traces.link_traces import Victim, make_link_trace
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.ties import Tie, Ties
from evenkeel.services.detector.domain.links.complaint import LinkFinding
from evenkeel.services.detector.domain.links.rows import LinkRows
from evenkeel.services.detector.domain.links.watch import LinkWatch

ITERATIONS = 130


@cache
def frames(seed: int, victim: Victim, percent: float) -> tuple[tuple[FrameObservation, ...], tuple[int, ...], int]:
    """The frames of a run, the victim's ranks and the onset."""
    trace = make_link_trace(seed, shape="4x2x2", victim=victim, slowdown_percent=percent, num_iterations=ITERATIONS)
    observed = tuple(trace.observations())
    fault = trace.fault
    return observed, fault.ranks if fault else (), fault.onset if fault else ITERATIONS


def found_in(observed: tuple[FrameObservation, ...], watch: LinkWatch | None = None) -> list[tuple[int, LinkFinding]]:
    watch = watch or LinkWatch(iterations_per_false_alarm=100_000.0)
    return [(frame.iteration, found) for frame in observed for found in watch.observe(frame)]


@pytest.mark.parametrize("victim", [Victim.LINK, Victim.ENDPOINT, Victim.GROUP])
def test_what_is_slow_is_named_with_its_measure(victim: Victim) -> None:
    observed, ranks, onset = frames(5, victim, 50.0)
    found = [one for one in found_in(observed) if not one[1].recovered]
    assert {finding.ranks for _, finding in found} == {ranks}
    assert onset <= found[0][0] <= onset + 12
    assert found[-1][1].throughput == pytest.approx(1 / 1.5, abs=0.05)
    first = found[0][1]
    assert first.measured_seconds / first.expected_seconds == pytest.approx(1.5, rel=0.25)
    assert first.peers == pytest.approx(1.0, abs=0.1)


def slow_links(seed: int, slowdown: float) -> list[int]:
    """Twelve links with noise of 2 %; the fourth becomes slow in iteration 100 of 160."""
    rng, links = np.random.default_rng(seed), LinkRows(1e5)
    ties = Ties.of(Tie(group=None, ranks=(rank, rank + 1), crosses=False) for rank in range(12))
    rows = links.locate(ties)
    for iteration in range(160):
        log_ratios = rng.normal(0, 0.02, len(rows))
        log_ratios[3] += np.log1p(slowdown) * (iteration >= 100)
        links.observe(iteration, rows, log_ratios)
    return np.flatnonzero(links.slow).tolist()


def test_a_link_just_above_what_is_told_is_told_as_soon_as_it_is_clear_and_one_below_is_not() -> None:
    """Seen once: every tenth was taken into the baseline, as its first iterations happened to stand below."""
    assert [slow_links(seed, 0.1) for seed in range(10)] == [[3]] * 10
    assert [slow_links(seed, 0.05) for seed in range(5)] == [[]] * 5


def test_an_endpoint_is_over_soon_after_most_that_shares_it_is_though_one_of_its_links_is_noisy() -> None:
    trace = make_link_trace(6, shape="4x2x4", victim=Victim.ENDPOINT, slowdown_percent=25.0)
    fault = trace.fault
    assert fault is not None
    observed = tuple(one for one in trace.observations() if one.sequence < fault.stop + 8)
    found = found_in(observed)
    assert [(finding.ranks, finding.recovered) for _, finding in found] == [(fault.ranks, False), (fault.ranks, True)]
    assert found[-1][1].first_iteration >= fault.stop


def test_a_straggler_is_no_slow_link() -> None:
    observed, _, _ = frames(6, Victim.COMPUTE, 100.0)
    assert found_in(observed) == []


def test_a_healthy_job_is_left_alone() -> None:
    observed, _, _ = frames(7, Victim.NONE, 0.0)
    assert found_in(observed) == []


@pytest.mark.parametrize("stop", [20, 71, 90])
def test_a_watch_that_is_restored_says_what_one_that_ran_through_says(stop: int) -> None:
    observed, _, _ = frames(5, Victim.ENDPOINT, 50.0)
    killed = LinkWatch(iterations_per_false_alarm=100_000.0)
    before = found_in(observed[:stop], killed)
    again = LinkWatch(iterations_per_false_alarm=100_000.0)
    load(again, dump(killed))
    assert before + found_in(observed[stop:], again) == found_in(observed)


def test_a_new_layout_begins_anew_and_forgets_what_it_no_longer_uses() -> None:
    observed, _, _ = frames(7, Victim.NONE, 0.0)
    watch = LinkWatch(iterations_per_false_alarm=100_000.0)
    assert found_in(observed[:40], watch) == []
    watch.begin_epoch()
    assert found_in(observed[40:], watch) == []


def test_a_link_whose_end_moved_to_another_node_is_another_link() -> None:
    links = LinkRows(1e5)
    links.locate(Ties.of([Tie(group=None, ranks=(1, 2), crosses=False)]))
    for iteration in range(60):
        links.observe(iteration, np.zeros(1, dtype=np.int64), np.array([0.01 * (iteration % 3) + (iteration >= 40)]))
    assert links.slow.tolist() == [True]
    rows = links.locate(Ties.of([Tie(group=None, ranks=(1, 2), crosses=True)]))
    assert links.slow[rows].tolist() == [False]
