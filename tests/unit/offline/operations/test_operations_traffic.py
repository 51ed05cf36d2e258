"""Transfers in recorded operations, judged by the detector's own watch over links."""

from dataclasses import replace

import numpy as np
import pytest

from evenkeel.attribution import Operations
from evenkeel.offline.operations.frames import frames_of
from evenkeel.offline.operations.traffic import traffic_of
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.attribution.synthetic import pipeline, replayed_with

STEPS, ONSET = 40, 24


@pytest.fixture(scope="module")
def healthy() -> Operations:
    """Three replicas of three stages whose gradients are exchanged stage by stage."""
    table = pipeline(num_steps=STEPS, num_dp=3, num_stages=3, num_micro_batches=2, seed=3)
    random = np.random.default_rng(3)
    places = [(step, dp, stage) for step in range(STEPS) for dp in range(3) for stage in range(3)]
    lasting = random.uniform(0.02, 0.022, (STEPS, 3))
    exchange = [(*place, "grads-reduce-scatter", 1.0, lasting[place[0], place[2]], -1) for place in places]
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    added = dict(zip(names, zip(*exchange, strict=True), strict=True))
    return Operations.from_columns({name: np.concatenate([table[name], added[name]]) for name in names})


def verdicts(operations: Operations) -> list[Verdict]:
    detector = JobDetector("job")
    traffic = traffic_of(operations)
    frames = frames_of(operations, job_id="job", traffic=traffic.by_step).frames
    return [found for frame in frames for found in detector.observe(frame) if isinstance(found, Verdict)]


def slowed(operations: Operations, rows: np.ndarray, factor: float) -> Operations:
    return replayed_with(operations, np.where(rows & (operations.step >= ONSET), factor, 1.0))


def transfers_between(operations: Operations, dp_rank: int, low: int) -> np.ndarray:
    """Transfers of one replica between a stage and the next; a send and its receive have the same factor."""
    kind, stage = operations.optype, operations.stage
    forward = ((kind == "forward-send") & (stage == low)) | ((kind == "forward-recv") & (stage == low + 1))
    backward = ((kind == "backward-send") & (stage == low + 1)) | ((kind == "backward-recv") & (stage == low))
    return (operations.dp_rank == dp_rank) & (forward | backward)


def test_a_healthy_recording_has_no_slow_link(healthy: Operations) -> None:
    assert verdicts(healthy) == []


@pytest.mark.parametrize(("dp_rank", "low"), [(0, 0), (1, 1), (2, 0)])
def test_a_link_that_became_slow_is_told_and_no_worker(healthy: Operations, dp_rank: int, low: int) -> None:
    first, *more = verdicts(slowed(healthy, transfers_between(healthy, dp_rank, low), 4.0))
    assert first.kind is VerdictKind.COMMUNICATION_SLOW
    assert [one.rank for one in first.culprits] == [3 * dp_rank + low, 3 * dp_rank + low + 1]
    # Its transfers vary by a fifth, and two dozen steps hardly say how far that may go.
    assert ONSET == first.first_iteration < first.decided_iteration < ONSET + 16
    assert first.throughput == pytest.approx(0.25, abs=0.05)
    assert all(one.culprits == first.culprits for one in more)


def test_a_slow_exchange_is_told_of_its_group(healthy: Operations) -> None:
    rows = (healthy.optype == "grads-reduce-scatter") & (healthy.stage == 1)
    first = verdicts(slowed(healthy, rows, 3.0))[0]
    assert first.kind is VerdictKind.COMMUNICATION_SLOW
    assert [one.rank for one in first.culprits] == [1, 4, 7]


def test_who_computes_slowly_makes_others_wait_and_no_link_slow(healthy: Operations) -> None:
    rows = np.char.endswith(healthy.optype, "compute") & (healthy.rank == 4)
    found = verdicts(slowed(healthy, rows, 1.5))
    assert {(one.kind, one.culprits[0].rank) for one in found} == {(VerdictKind.COMPUTE_SLOW, 4)}


def test_input_that_stalls_is_reported(healthy: Operations) -> None:
    first = {int(step): float(healthy.start_seconds[healthy.step == step].min()) for step in range(STEPS)}
    steps = np.arange(ONSET, STEPS)
    table = {name: getattr(healthy, name) for name in ("step", "dp_rank", "stage", "optype")}
    table |= {"start_ts": healthy.start_seconds, "duration": healthy.duration_seconds, "mb_id": healthy.micro_batch}
    stalls = {
        "step": steps,
        "dp_rank": np.full(len(steps), 1),
        "stage": np.zeros(len(steps), dtype=np.int64),
        "optype": np.full(len(steps), "input"),
        "start_ts": np.array([first[int(step)] - 0.5 for step in steps]),
        "duration": np.full(len(steps), 0.5),
        "mb_id": np.full(len(steps), -1),
    }
    joined = Operations.from_columns({name: np.concatenate([table[name], stalls[name]]) for name in stalls})
    found = verdicts(joined)
    assert VerdictKind.INPUT_STALL in {one.kind for one in found}
    assert all(one.kind is not VerdictKind.COMPUTE_SLOW for one in found)


def test_steps_of_which_nobody_can_say_who_meets_whom_are_judged_without_links_and_told(healthy: Operations) -> None:
    lacking = (healthy.step == 5) & (healthy.optype == "forward-recv") & (healthy.rank == 1)
    torn = healthy.select(~lacking)
    traffic = traffic_of(torn)
    assert set(traffic.by_step) == set(range(STEPS)) - {5}
    assert len(traffic.notes) == 1
    assert traffic.notes[0].startswith("links are not judged in 1 of 40 steps: step 5: dp_rank 0 has 2 forward-send")
    assert verdicts(torn) == []


def test_a_recording_without_transfers_has_no_traffic(healthy: Operations) -> None:
    computed = healthy.select(np.char.endswith(healthy.optype, "compute"))
    assert traffic_of(computed).by_step == {}
    assert verdicts(replace(computed, micro_batch=np.full(len(computed), -1))) == []
