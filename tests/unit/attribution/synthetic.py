"""Recordings made from a schedule, or from another recording with some durations changed."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.graph.replay import Replay
from evenkeel.attribution.operations import Operations


def replayed_with(operations: Operations, factors: npt.NDArray[np.float64]) -> Operations:
    """The recording that would have been made, had each operation itself taken ``factors`` times as long."""
    replay = Replay(operations)
    own = replay.actual * factors
    start, duration = np.zeros(len(operations)), np.zeros(len(operations))
    for structure in replay.structures:
        for rows in structure.rows.T:
            ends = structure.graph.ends(own[rows][:, None])[:, 0]
            ready = np.zeros(len(rows))
            for level in structure.graph.levels:
                for member in level.members:
                    ready[member] = ends[member] - own[rows][member]
            start[rows], duration[rows] = ready, own[rows]
    return replace(operations, start_seconds=start, duration_seconds=duration)


def pipeline(
    *, num_steps: int = 3, num_dp: int = 2, num_stages: int = 3, num_micro_batches: int = 4, seed: int = 0
) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of a GPipe recording with random durations: all forwards, then all backwards; no gaps."""
    random = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, str, float, float, int]] = []
    for step in range(num_steps):
        for dp in range(num_dp):
            done: dict[tuple[str, int, int], float] = {}
            busy = [0.0] * num_stages

            def run(
                kind: str, stage: int, batch: int, peer: int, *, step=step, dp=dp, done=done, busy=busy, rows=rows
            ) -> None:
                ready = busy[stage]
                if (kind, peer, batch) in done:
                    sent = done[kind, peer, batch]
                    began, transfer = max(busy[stage], sent), float(random.uniform(0.001, 0.003))
                    rows.append((step, dp, stage, f"{kind}-recv", busy[stage], began + transfer - busy[stage], -1))
                    rows.append((step, dp, peer, f"{kind}-send", sent, began + transfer - sent, -1))
                    ready = began + transfer
                seconds = float(random.uniform(0.05, 0.06))
                rows.append((step, dp, stage, f"{kind}-compute", ready, seconds, batch))
                busy[stage] = done[kind, stage, batch] = ready + seconds

            for batch in range(num_micro_batches):
                for stage in range(num_stages):
                    run("forward", stage, batch, stage - 1)
            for batch in range(num_micro_batches):
                for stage in reversed(range(num_stages)):
                    run("backward", stage, batch, stage + 1)
            rows += [(step, dp, stage, "optimizer", busy[stage], 0.01, -1) for stage in range(num_stages)]
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
