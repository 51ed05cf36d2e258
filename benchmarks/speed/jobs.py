"""Synthetic jobs of any size: eight stages, a replica's ranks share its micro-batches, every iteration has its own."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from evenkeel.contracts.columns import HAS_FLOPS, HAS_INPUT, HAS_LOSS, ITERATION, PRESENT, PROCESS
from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.simulator.live.rank_batches import add_news, empty_batch
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2

NUM_STAGES = 8
_MICRO_BATCHES = 8
_NOISE = 0.02
_MOST_EVENTS = 4000


class SyntheticJob:
    """Ranks that compute for about 0.3 s an iteration, with two per cent noise; some are slow from an iteration on.

    Args:
        job_id: Its name.
        num_ranks: How many.
        seed: Of noise and lengths.
        slow_from: Iteration from which a rank computes at half speed, by rank.
    """

    def __init__(self, job_id: str, num_ranks: int, *, seed: int = 0, slow_from: dict[int, int] | None = None) -> None:
        self.job_id = job_id
        self.num_ranks = num_ranks
        self._random = np.random.default_rng(seed)
        self._slow_from = np.full(num_ranks, 1 << 60)
        for rank, iteration in (slow_from or {}).items():
            self._slow_from[rank] = iteration

    def records(self, iterations: range, *, samples_per_record: int = 1) -> Iterator[bytes]:
        """Serialised batches in the order in which they would come: all ranks, then again.

        The very first iteration comes alone, as it would.
        """
        firsts = range(iterations.start + (iterations.start == 0), iterations.stop, samples_per_record)
        tolds = [range(first, min(first + samples_per_record, iterations.stop)) for first in firsts]
        if iterations.start == 0:
            tolds.insert(0, range(1))
        for sequence, told in enumerate(tolds):
            seconds = np.stack([self._compute_seconds(each) for each in told])
            tokens = self._random.integers(2000, 6000, (len(told), -(-self.num_ranks // NUM_STAGES), _MICRO_BATCHES))
            for rank in range(self.num_ranks):
                yield self._batch(
                    rank, iterations.start + sequence, told, seconds[:, rank], tokens[:, rank // NUM_STAGES]
                ).SerializeToString()

    def _batch(self, rank: int, sequence: int, told: range, seconds: Floats, tokens: Ints) -> pb.Batch:
        count, last = len(told), rank % NUM_STAGES == NUM_STAGES - 1
        work = seconds * tokens.sum(axis=1) / (4000.0 * _MICRO_BATCHES)
        # Ranks report where they are: silence of all of them is then taken for a line that is cut.
        reports = [process_pb2.Progress(operation="forward", operation_count=1)] if told.start == 0 else []
        who: dict[str, Any] = {
            "job_id": self.job_id,
            "node": f"node-{rank // NUM_STAGES}",
            "device": f"gpu-{rank % NUM_STAGES}",
            "rank": rank,
            "replica": rank // NUM_STAGES,
            "stage": rank % NUM_STAGES,
            "sequence": sequence,
            "forward_flops_per_token": 1e9,
            "backward_multiple": 2.0,
            "num_iterations": count,
            "num_progress": len(reports),
        }
        measured: dict[str, Any] = {
            "iteration": told,
            "started_at_unix_seconds": [1.7e9 + each for each in told],
            "wall_seconds": [0.5] * count,
            "forward_seconds": (work / 3).tolist(),
            "backward_seconds": (work * 2 / 3).tolist(),
            "optimizer_seconds": [0.01] * count,
            "input_seconds": [0.001] * count,
            "wait_tensor_seconds": [0.01] * count,
            "wait_pipeline_seconds": [0.1] * count,
            "wait_gradient_seconds": [0.02] * count,
            "wait_vote_seconds": [0.001] * count,
            "tokens": tokens.sum(axis=1).tolist(),
            "sum_of_squares": (1000.0 * tokens.sum(axis=1)).tolist(),
            "num_micro_batches": [_MICRO_BATCHES] * count,
            "loss": [2.0 * last] * count,
            "peak_memory_bytes": [40 << 30] * count,
            "flags": [PRESENT | HAS_FLOPS | HAS_INPUT | HAS_LOSS * last] * count,
            "num_listed": [_MICRO_BATCHES] * count,
        }
        batch = pb.Batch(progress=reports)
        for column in PROCESS:
            getattr(batch, column.name).append(who.get(column.name, 0))
        for column in ITERATION:
            getattr(batch, column.name).extend(measured.get(column.name, [0] * count))
        batch.listed_index.extend([*range(_MICRO_BATCHES)] * count)
        batch.listed_tokens.extend(tokens.ravel().tolist())
        batch.listed_squares.extend((1000.0 * tokens).ravel().tolist())
        batch.listed_kept.extend([False] * tokens.size)
        return batch

    def endings(self) -> Iterator[bytes]:
        """Serialised batches of the launcher, which say that all ranks have finished."""
        for sequence, first in enumerate(range(0, self.num_ranks, _MOST_EVENTS)):
            events = [
                process_pb2.ProcessEvent(at_unix_seconds=1.7e9, kind=process_pb2.PROCESS_EVENT_KIND_FINISHED, rank=rank)
                for rank in range(first, min(first + _MOST_EVENTS, self.num_ranks))
            ]
            batch = empty_batch(job_id=self.job_id, rank=-1, sequence=sequence)
            yield add_news(batch, events=events).SerializeToString()

    def frames(self, iterations: range) -> Iterator[FrameObservation]:
        """The frames as the detector's domain sees them."""
        ranks, size = np.arange(self.num_ranks), self.num_ranks
        nodes = tuple(f"node-{rank // NUM_STAGES}" for rank in range(size))
        devices = tuple(f"gpu-{rank % NUM_STAGES}" for rank in range(size))
        none, nothing = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
        for iteration in iterations:
            counts = self._random.integers(16_000, 48_000, -(-size // NUM_STAGES))
            tokens = np.repeat(counts, NUM_STAGES)[:size].astype(np.float64)
            yield FrameObservation(
                job_id=self.job_id,
                sequence=iteration,
                iteration=iteration,
                epoch=0,
                closed_at_unix_seconds=1.7e9 + iteration,
                ranks=ranks,
                incarnations=none,
                nodes=nodes,
                devices=devices,
                planned=nothing,
                compute_seconds=self._compute_seconds(iteration) * tokens / 32_000,
                other_seconds=np.full(size, 0.011),
                wall_seconds=np.full(size, 0.5),
                wait_seconds=np.tile([0.01, 0.1, 0.02, 0.001], (size, 1)),
                token_flops=tokens * 3e9,
                square_flops=np.zeros(size),
                has_flops=~nothing,
                num_micro_batches=none + _MICRO_BATCHES,
                tokens=tokens,
                sums_of_squares=tokens * 1000,
                work_keys=np.full(size, 3e9),
                replicas=ranks // NUM_STAGES,
                stages=ranks % NUM_STAGES,
                shards=none,
                losses=np.where(ranks % NUM_STAGES == NUM_STAGES - 1, 2.0, np.nan),
                has_loss=ranks % NUM_STAGES == NUM_STAGES - 1,
                gradient_norms=np.full(size, np.nan),
                has_gradient_norm=nothing,
            )

    def _compute_seconds(self, iteration: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        noise = np.exp(_NOISE * self._random.standard_normal(self.num_ranks))
        seconds: np.ndarray[tuple[int], np.dtype[np.float64]] = (
            0.3 * noise * np.where(self._slow_from <= iteration, 2.0, 1.0)
        )
        return seconds
