"""Frames of jobs whose micro-batches run stages in other replicas: a host is not slow, a relieved device not ill."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.layouts.timeline import timeline_of

HOME = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=3, num_micro_batches=12)
# Rank 1 (replica 0, stage 1) gives two of four away, rank 4 (replica 2, stage 0) one.
ROUTED = replace(
    HOME,
    routes=tuple(Route(micro_batch=m, stage=s, replica=d) for m, s, d in ((0, 1, 1), (2, 1, 2), (9, 0, 1))),
)
_TRANSFER, _OPTIMIZER, _EXCHANGE = 0.004, 0.005, 0.01
_PER_TOKEN, _PER_SQUARE, _SECONDS_PER_FLOP = 2e6, 500.0, 1e-12
_TOKENS, _NOISE, _BLOCKS = 4096, 0.01, 2


def frames(
    layout: Layout, start: int, stop: int, *, epoch: int = 0, speed: Callable[[int], float] = lambda rank: 1.0
) -> Iterator[FrameObservation]:
    """What the ranks of a layout tell, with the waits of its actual programs."""
    rng = np.random.default_rng((start, epoch))
    places, paths = dict(layout.positions()), Paths(layout)
    ranks = sorted(places)
    hosted = {rank: paths.hosted(places[rank].replica, places[rank].stage) for rank in ranks}
    rank_at = {
        (d, s): one.ranks[0] for d, replica in enumerate(layout.replicas) for s, one in enumerate(replica.stages)
    }
    part = {(d, s): layout.replicas[d].stages[s].num_blocks / _BLOCKS for d, s in rank_at}
    work = np.array([sum(part[d, s] for (d, s), other in rank_at.items() if other == rank) for rank in ranks])
    for iteration in range(start, stop):
        squares = _TOKENS * rng.lognormal(6.5, 0.4, layout.num_micro_batches)
        token_flops = _PER_TOKEN * _TOKENS
        flops = token_flops + _PER_SQUARE * squares
        noise = np.exp(rng.normal(0.0, _NOISE, len(ranks)))
        seconds = {
            rank: flops * _SECONDS_PER_FLOP / speed(rank) * factor for rank, factor in zip(ranks, noise, strict=True)
        }

        def seconds_of(d: int, s: int, one: Instruction, seconds: dict[int, np.ndarray] = seconds) -> float:
            whole = float(seconds[rank_at[d, s]][one.micro_batch]) * (1.0 if one.op is Op.FORWARD else 2.0)
            return whole * part[d, s]

        timeline = timeline_of(layout, seconds_of, _TRANSFER)
        wall = timeline.iteration_seconds + _EXCHANGE + _OPTIMIZER
        cells = {rank: layout.replicas[at.replica].cells.index(layout.cell_at(at)) for rank, at in places.items()}
        stages = [timeline.stages[places[rank].replica][cells[rank]] for rank in ranks]
        busy = np.array([one.busy_seconds for one in stages])
        ends = np.array([one.end_seconds for one in stages])
        counts = np.array([len(hosted[rank]) for rank in ranks])
        sums = np.array([squares[list(hosted[rank])].sum() for rank in ranks])
        count = len(ranks)
        yield FrameObservation(
            job_id="job",
            sequence=iteration,
            iteration=iteration,
            epoch=epoch,
            closed_at_unix_seconds=1000.0 + iteration,
            ranks=np.array(ranks),
            incarnations=np.zeros(count, dtype=np.int64),
            nodes=("node-0",) * count,
            devices=tuple(f"device-{rank}" for rank in ranks),
            planned=np.zeros(count, dtype=np.bool_),
            compute_seconds=busy,
            other_seconds=np.full(count, _OPTIMIZER),
            wall_seconds=np.full(count, wall),
            wait_seconds=np.column_stack(
                [np.zeros(count), ends - busy, _EXCHANGE + timeline.iteration_seconds - ends, np.zeros(count)]
            ),
            token_flops=3.0 * token_flops * counts * work,
            square_flops=3.0 * _PER_SQUARE * sums * work,
            has_flops=np.ones(count, dtype=np.bool_),
            num_micro_batches=counts,
            tokens=(_TOKENS * counts).astype(np.float64),
            sums_of_squares=sums,
            work_keys=0.5 * work,
            replicas=np.array([places[rank].replica for rank in ranks]),
            stages=np.array([places[rank].stage for rank in ranks]),
            shards=np.zeros(count, dtype=np.int64),
            losses=np.full(count, 3.0),
            has_loss=np.ones(count, dtype=np.bool_),
            gradient_norms=np.full(count, np.nan),
            has_gradient_norm=np.zeros(count, dtype=np.bool_),
        )


def observed(detector: JobDetector, told: Iterator[FrameObservation]) -> tuple[list[Verdict], list[Profile]]:
    found = [one for frame in told for one in detector.observe(frame)]
    return [one for one in found if isinstance(one, Verdict)], [one for one in found if isinstance(one, Profile)]


def test_in_a_healthy_job_routes_make_nobody_ill_and_no_stage_heavy() -> None:
    detector = JobDetector("job")
    before, _ = observed(detector, frames(HOME, 0, 60))
    after, _ = observed(detector, frames(ROUTED, 60, 260, epoch=1))
    assert before == after == []


def test_a_job_that_begins_with_routes_is_learned_like_any_other() -> None:
    verdicts, _ = observed(JobDetector("job"), frames(ROUTED, 0, 200))
    assert verdicts == []


def test_a_slow_device_is_found_under_routes_whether_it_gives_away_or_hosts() -> None:
    for rank in (1, 3, 4):
        detector = JobDetector("job")
        observed(detector, frames(ROUTED, 0, 60))
        verdicts, _ = observed(
            detector, frames(ROUTED, 60, 120, speed=lambda other, slow=rank: 0.7 if other == slow else 1.0)
        )
        slow = [one for one in verdicts if one.kind is VerdictKind.COMPUTE_SLOW]
        assert {culprit.rank for one in verdicts for culprit in one.culprits} == {rank}
        assert slow[-1].throughput == pytest.approx(0.7, abs=0.03)


def test_a_slow_device_that_was_relieved_stays_slow_until_it_has_recovered() -> None:
    detector = JobDetector("job")

    def slow(rank: int) -> float:
        return 0.6 if rank == 1 else 1.0

    observed(detector, frames(HOME, 0, 60))
    found, _ = observed(detector, frames(HOME, 60, 90, speed=slow))
    assert {(one.kind, one.culprits[0].rank) for one in found} == {(VerdictKind.COMPUTE_SLOW, 1)}
    relieved, profiles = observed(detector, frames(ROUTED, 90, 150, epoch=1, speed=slow))
    assert {culprit.rank for one in relieved for culprit in one.culprits} <= {1}
    assert all(one.kind is VerdictKind.COMPUTE_SLOW for one in relieved)
    assert profiles[-1].throughputs[1].throughput == pytest.approx(0.6, abs=0.03)
    well, _ = observed(detector, frames(ROUTED, 150, 200, epoch=1))
    assert [(one.kind, one.culprits[0].rank) for one in well] == [(VerdictKind.RECOVERED, 1)]


def test_stalls_of_routed_pipelines_are_no_transfers() -> None:
    detector = JobDetector("job")
    _, before = observed(detector, frames(HOME, 0, 60))
    _, after = observed(detector, frames(ROUTED, 60, 120, epoch=1))
    assert _TRANSFER < before[-1].transfer_seconds < 3 * _TRANSFER, "an upper bound"
    assert after[-1].transfer_seconds == pytest.approx(before[-1].transfer_seconds, rel=0.05)
    again = JobDetector("job")
    load(again, dump(detector))
    _, restarted = observed(again, frames(ROUTED, 120, 160, epoch=1))
    assert restarted[-1].transfer_seconds == after[-1].transfer_seconds


def test_where_nothing_was_known_before_a_replica_without_routes_tells_what_a_transfer_takes() -> None:
    one_pair = replace(HOME, routes=(Route(micro_batch=0, stage=1, replica=1),))
    _, profiles = observed(JobDetector("job"), frames(one_pair, 0, 60))
    assert _TRANSFER < profiles[-1].transfer_seconds < 8 * _TRANSFER
    assert profiles[-1].tokens == pytest.approx(_TOKENS)
    assert profiles[-1].fixed_seconds == pytest.approx(_OPTIMIZER, abs=0.004)
    assert profiles[-1].gradient_seconds == pytest.approx(_EXCHANGE, rel=0.05)
