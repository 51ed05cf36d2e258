"""Recordings with a known cause built in: what is named is that cause and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest

from evenkeel.attribution import Attribution, Operations, analyze
from evenkeel.attribution.operations import COMPUTE, OperationType
from tests.unit.attribution.synthetic import pipeline, replayed_with

NUM_STEPS, NUM_DP, NUM_STAGES, NUM_MICRO_BATCHES = 4, 3, 4, 6
Factors = Callable[[Operations], np.ndarray]


@pytest.fixture(scope="module")
def healthy() -> Operations:
    table = pipeline(
        num_steps=NUM_STEPS, num_dp=NUM_DP, num_stages=NUM_STAGES, num_micro_batches=NUM_MICRO_BATCHES, seed=7
    )
    return Operations.from_columns(table)


def computes(operations: Operations) -> np.ndarray:
    return np.isin(operations.optype, list(COMPUTE))


def worker(dp_rank: int, stage: int, times: float) -> Factors:
    return lambda ops: np.where((ops.dp_rank == dp_rank) & (ops.stage == stage) & computes(ops), times, 1.0)


def in_step(factors: Factors, step: int) -> Factors:
    return lambda ops: np.where(ops.step == step, factors(ops), 1.0)


def stage(which: int, times: float) -> Factors:
    return lambda ops: np.where((ops.stage == which) & computes(ops), times, 1.0)


def replica(dp_rank: int, times: float) -> Factors:
    return lambda ops: np.where((ops.dp_rank == dp_rank) & computes(ops), times, 1.0)


def link(dp_rank: int, border: int, times: float) -> Factors:
    forwards, backwards = OperationType.FORWARD_SEND, OperationType.BACKWARD_SEND

    def factors(ops: Operations) -> np.ndarray:
        ends = np.isin(ops.optype, [forwards, OperationType.BACKWARD_RECV]) & (ops.stage == border)
        others = np.isin(ops.optype, [backwards, OperationType.FORWARD_RECV]) & (ops.stage == border + 1)
        return np.where((ops.dp_rank == dp_rank) & (ends | others), times, 1.0)

    return factors


def sequences(spread: float) -> Factors:
    lengths = np.random.default_rng(11).lognormal(0.0, spread, (NUM_STEPS, NUM_DP, NUM_MICRO_BATCHES))

    def factors(ops: Operations) -> np.ndarray:
        return np.where(computes(ops), lengths[ops.step, ops.dp_rank, ops.micro_batch], 1.0)

    return factors


def pause(ops: Operations) -> np.ndarray:
    """Some computation of some worker in each step takes fifteen times as long."""
    hit = (ops.dp_rank == ops.step % NUM_DP) & (ops.stage == (3 * ops.step + 1) % NUM_STAGES) & (ops.micro_batch == 3)
    return np.where(hit & computes(ops), 15.0, 1.0)


def both(one: Factors, other: Factors) -> Factors:
    return lambda ops: one(ops) * other(ops)


def named(found: Attribution) -> dict[str, object]:
    said = {"ill": found.ill_ranks, "heavy": found.heavy_stages, "links": found.slow_links}
    return {"causes": set(found.causes), **{name: what for name, what in said.items() if what}}


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (worker(0, 0, 1.0), {"causes": set()}),
        (worker(1, 2, 1.5), {"causes": {"slow_workers"}, "ill": (6,)}),
        (worker(1, 2, 1.1), {"causes": set(), "ill": (6,)}),
        (worker(2, 3, 1.5), {"causes": {"slow_workers"}, "ill": (11,)}),
        (both(worker(0, 1, 1.5), worker(2, 2, 1.4)), {"causes": {"slow_workers"}, "ill": (1, 10)}),
        (replica(1, 1.4), {"causes": {"slow_workers"}, "ill": (4, 5, 6, 7)}),
        (stage(3, 1.6), {"causes": {"last_stage"}, "heavy": (3,)}),
        (stage(1, 1.6), {"causes": {"heavy_stage"}, "heavy": (1,)}),
        (both(stage(0, 1.6), stage(3, 1.6)), {"causes": {"heavy_stage", "last_stage"}, "heavy": (0, 3)}),
        (
            both(worker(1, 1, 1.5), stage(3, 1.6)),
            {"causes": {"slow_workers", "last_stage"}, "ill": (5,), "heavy": (3,)},
        ),
        (link(1, 2, 30.0), {"causes": {"communication"}, "links": ("6-7",)}),
        (sequences(0.5), {"causes": {"sequences"}}),
        (both(worker(2, 1, 1.8), sequences(0.5)), {"causes": {"slow_workers", "sequences"}, "ill": (9,)}),
        (in_step(worker(1, 1, 3.0), step=2), {"causes": {"pauses"}}),
        (pause, {"causes": {"pauses"}}),
    ],
    ids=[
        *(
            "healthy",
            "worker",
            "worker 10 % slow",
            "worker of the last stage",
            "two workers",
            "replica",
            "last stage",
            "another stage",
        ),
        *("two stages", "worker and last stage", "link", "sequences", "worker and sequences", "one step", "pauses"),
    ],
)
def test_what_was_built_in_is_named_and_nothing_else(healthy: Operations, factors: Factors, expected: dict) -> None:
    assert named(analyze(replayed_with(healthy, factors(healthy)))) == expected


def test_a_stage_of_a_single_replica_has_no_peer_that_would_accuse_its_worker() -> None:
    table = pipeline(num_steps=3, num_dp=1, num_stages=4, num_micro_batches=8)
    alone = Operations.from_columns(table)
    slow = np.where((alone.stage == 1) & computes(alone), 2.0, 1.0)
    assert named(analyze(replayed_with(alone, slow))) == {"causes": {"heavy_stage"}, "heavy": (1,)}


def test_the_shares_of_a_job_small_enough_to_be_worked_out_by_hand() -> None:
    # Two replicas of one stage, two micro-batches each: computations of 1, 1, 1 and 3 s, ideal 1.5 s; exchange 0.5 s.
    rows = [
        *((0, 0, "forward-compute", 0.0, 1.0, 0), (0, 0, "forward-compute", 1.0, 1.0, 1)),
        *((1, 0, "forward-compute", 0.0, 1.0, 0), (1, 0, "forward-compute", 1.0, 3.0, 1)),
        *((0, 0, "grads-reduce-scatter", 2.0, 2.5, -1), (1, 0, "grads-reduce-scatter", 4.0, 0.5, -1)),
    ]
    names = ("dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    found = analyze(Operations.from_columns({"step": np.zeros(len(rows)), **columns}))
    assert (found.observed_seconds, found.replayed_seconds, found.ideal_seconds) == (4.5, 4.5, 3.5)
    assert found.slowdown == pytest.approx(4.5 / 3.5)
    assert found.slowest_workers == (1,)
    assert found.worker_share == pytest.approx(1.0)
    shares = {each.name: (each.slowdown, each.share) for each in found.by_rank}
    # Rank 0's 1 s computations hide nothing; alone they leave the other's ideal 3 s to be waited for.
    assert shares == {"1": pytest.approx((4.5 / 3.5, 1.0)), "0": pytest.approx((1.0, 0.0))}
    assert {each.name: each.share for each in found.by_operation} == {
        "forward-compute": pytest.approx(1.0),
        "grads-reduce-scatter": pytest.approx(0.0),
    }


def test_garbage_collection_that_workers_do_not_do_together_is_named() -> None:
    table = pipeline(num_steps=6, num_dp=4, num_stages=1, num_micro_batches=6)
    rows = [(step, step % 4, 0, "gc", -0.4, 0.4, -1) for step in range(6)]
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    pausing = dict(zip(names, zip(*rows, strict=True), strict=True))
    exchange = [(step, dp, 0, "grads-reduce-scatter", 2.0, 0.01, -1) for step in range(6) for dp in range(4)]
    meeting = dict(zip(names, zip(*exchange, strict=True), strict=True))
    found = analyze(
        Operations.from_columns({name: np.concatenate([table[name], pausing[name], meeting[name]]) for name in names})
    )
    assert found.causes == ("garbage_collection",)
    assert found.ill_ranks == ()
