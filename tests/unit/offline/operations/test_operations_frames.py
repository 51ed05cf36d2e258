"""Operations as frames: long sequences are a worker's work, a slow device is not."""

import numpy as np
import pytest

from evenkeel.attribution import Operations
from evenkeel.offline.operations.frames import frames_of
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.attribution.synthetic import pipeline, replayed_with

_STEPS = 50
_ONSET = 25


def recording(*, spread: float, noise: float, slow: float, num_stages: int = 4) -> Operations:
    """Micro-batches as different as ``spread`` (log units), the same on all stages; worker 5 slow from a step on."""
    operations = Operations.from_columns(
        pipeline(num_steps=_STEPS, num_dp=2, num_stages=num_stages, num_micro_batches=4, seed=4)
    )
    random = np.random.default_rng(6)
    lengths = np.exp(spread * random.standard_normal((_STEPS, 2, 4)))
    computes = np.char.endswith(operations.optype, "compute")
    factors = np.where(computes, np.exp(noise * random.standard_normal(len(operations))), 1.0)
    batches = lengths[operations.step, operations.dp_rank, operations.micro_batch]
    factors *= np.where(computes, batches, 1.0)
    victim = computes & (operations.rank == 5) & (operations.step >= _ONSET)
    return replayed_with(operations, np.where(victim, slow * factors, factors))


def verdicts(operations: Operations) -> list[Verdict]:
    detector = JobDetector("job", iterations_per_false_alarm=100_000.0)
    frames = frames_of(operations, job_id="job", traffic={}).frames
    return [one for frame in frames for one in detector.observe(frame) if isinstance(one, Verdict)]


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.6])
def test_long_sequences_accuse_nobody(spread: float) -> None:
    assert verdicts(recording(spread=spread, noise=0.01, slow=1.0)) == []


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.6])
@pytest.mark.parametrize(("slow", "within"), [(1.2, 10), (1.25, 8)])
def test_a_slow_device_is_found_whatever_the_sequences(spread: float, slow: float, within: int) -> None:
    first = verdicts(recording(spread=spread, noise=0.01, slow=slow))[0]
    assert [culprit.rank for culprit in first.culprits] == [5]
    assert _ONSET <= first.decided_iteration < _ONSET + within
    assert 1 / first.throughput == pytest.approx(slow, abs=0.06)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_is_nobodys_work(noise: float) -> None:
    operations = recording(spread=0.0, noise=noise, slow=1.0)
    frames = list(frames_of(operations, job_id="job", traffic={}).frames)
    work = np.stack([frame.token_flops for frame in frames])
    assert (work == work[0]).all()
