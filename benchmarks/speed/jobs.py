"""Synthetic jobs of any size: eight stages, a replica's ranks share its micro-batches, every iteration has its own."""

from collections.abc import Iterator

import numpy as np

from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

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

    def samples(self, iteration: int) -> Iterator[pb.Sample]:
        """One sample a rank, ascending."""
        seconds = self._compute_seconds(iteration)
        for rank, each in enumerate(seconds.tolist()):
            if rank % NUM_STAGES == 0:
                tokens = self._random.integers(2000, 6000, _MICRO_BATCHES).tolist()
                micro_batches = [
                    pb.MicroBatch(index=index, tokens=count, sum_of_squares=1000.0 * count)
                    for index, count in enumerate(tokens)
                ]
                work = sum(tokens) / (4000.0 * _MICRO_BATCHES)
            yield pb.Sample(
                iteration=iteration,
                started_at_unix_seconds=1.7e9 + iteration,
                wall_seconds=0.5,
                compute=pb.ComputeSeconds(
                    forward=each * work / 3, backward=each * work * 2 / 3, optimizer=0.01, data=0.001
                ),
                waiting=pb.WaitingSeconds(tensor=0.01, pipeline=0.1, gradient=0.02, vote=0.001),
                micro_batches=micro_batches,
                position=pb.Position(
                    replica=rank // NUM_STAGES,
                    stage=rank % NUM_STAGES,
                    forward_flops_per_token=1e9,
                    backward_multiple=2.0,
                ),
                loss=2.0 if rank % NUM_STAGES == NUM_STAGES - 1 else None,
                peak_memory_bytes=40 << 30,
            )

    def records(self, iterations: range, *, samples_per_record: int = 1) -> Iterator[bytes]:
        """Serialised records in the order in which they would come: all ranks, then again.

        The very first iteration comes alone, as it would.
        """
        firsts = range(iterations.start + (iterations.start == 0), iterations.stop, samples_per_record)
        tolds = [range(first, min(first + samples_per_record, iterations.stop)) for first in firsts]
        if iterations.start == 0:
            tolds.insert(0, range(1))
        for sequence, told in enumerate(tolds):
            first = told.start
            for rank, samples in enumerate(zip(*(self.samples(each) for each in told), strict=True)):
                yield pb.Record(
                    job_id=self.job_id,
                    rank=rank,
                    sequence=iterations.start + sequence,
                    node=f"node-{rank // NUM_STAGES}",
                    device=f"gpu-{rank % NUM_STAGES}",
                    samples=samples,
                    # Ranks report where they are: silence of all of them is then taken for a line that is cut.
                    progress=[pb.Progress(operation="forward", operation_count=1)] if first == 0 else [],
                ).SerializeToString()

    def endings(self) -> Iterator[bytes]:
        """Serialised records of the launcher, which say that all ranks have finished."""
        for sequence, first in enumerate(range(0, self.num_ranks, _MOST_EVENTS)):
            yield pb.Record(
                job_id=self.job_id,
                rank=-1,
                sequence=sequence,
                events=[
                    pb.ProcessEvent(at_unix_seconds=1.7e9, kind=pb.PROCESS_EVENT_KIND_FINISHED, rank=rank)
                    for rank in range(first, min(first + _MOST_EVENTS, self.num_ranks))
                ],
            ).SerializeToString()

    def frames(self, iterations: range) -> Iterator[FrameObservation]:
        """The frames as the detector's domain sees them."""
        ranks, size = np.arange(self.num_ranks), self.num_ranks
        nodes = tuple(f"node-{rank // NUM_STAGES}" for rank in range(size))
        devices = tuple(f"gpu-{rank % NUM_STAGES}" for rank in range(size))
        none, nothing = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
        for iteration in iterations:
            counts = self._random.integers(16_000, 48_000, -(-size // NUM_STAGES))
            tokens = np.repeat(counts, NUM_STAGES)[:size].astype(np.float64)
            yield FrameObservation.of_columns(
                job_id=self.job_id,
                sequence=iteration,
                iteration=iteration,
                epoch=0,
                closed_at_unix_seconds=1.7e9 + iteration,
                ranks=ranks,
                incarnations=none,
                nodes=nodes,
                devices=devices,
                epochs=none,
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
