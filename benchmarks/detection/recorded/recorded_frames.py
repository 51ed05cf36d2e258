"""A recording of iterations as the frames that the live detector sees of such a job."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from evenkeel.offline.iterations.clocks import ClockChoice, RecordedClocks, clocks_of
from evenkeel.offline.iterations.file import RecordedIterations
from evenkeel.services.detector.domain.frames.observation import FrameObservation


def recorded_frames(job_id: str, recording: RecordedIterations, choice: ClockChoice) -> Iterator[FrameObservation]:
    """One frame an iteration, of ranks that are replicas of one another.

    Args:
        job_id: What to call the job.
        recording: The recording.
        choice: With all clocks frames tell what became of the ranks' threads, as those of the SDK do.
    """
    count, columns = len(recording.ranks), recording.columns
    clocks = clocks_of(recording, choice)
    nothing, zeros, no = np.full(count, np.nan), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    tokens = columns.get("tokens", np.ones_like(columns["compute_seconds"]))
    tokens = np.where(tokens > 0, tokens, 1.0)
    fixed: dict[str, Any] = {
        "job_id": job_id,
        "epoch": 0,
        "nodes": ("node",) * count,
        "devices": tuple(f"cpu-{rank}" for rank in recording.ranks.tolist()),
        "ranks": recording.ranks,
        "work_keys": np.full(count, -1.0),
        "replicas": np.arange(count),
        "num_micro_batches": np.ones(count, dtype=np.int64),
        "wait_seconds": np.zeros((count, 4)),
        **dict.fromkeys(("incarnations", "stages", "shards"), zeros),
        **dict.fromkeys(("losses", "gradient_norms"), nothing),
        **dict.fromkeys(("has_flops", "has_loss", "has_gradient_norm"), no),
        **dict.fromkeys(("other_seconds", "square_flops", "sums_of_squares"), np.zeros(count)),
    }
    for row, iteration in enumerate(recording.iterations.tolist()):
        seconds = columns["compute_seconds"][row]
        yield FrameObservation(
            sequence=row,
            iteration=iteration,
            closed_at_unix_seconds=float(row),
            planned=np.full(count, bool(recording.planned[row])),
            compute_seconds=seconds if clocks.blocked is None else clocks.work[row] + clocks.blocked[row],
            **({} if clocks.blocked is None else _threads(clocks, row)),
            wall_seconds=columns["wall_seconds"][row] if "wall_seconds" in columns else seconds,
            token_flops=tokens[row],
            tokens=tokens[row],
            **fixed,
        )


def _threads(clocks: RecordedClocks, row: int) -> dict[str, Any]:
    return {"core_seconds": clocks.work[row], "queued_seconds": np.zeros_like(clocks.work[row])}
