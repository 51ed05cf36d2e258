"""Who hangs, and how soon it is said: ``python -m benchmarks.detection.aspects.hangs --traces 200``.

Simulated progress of 4 x 2 x 2 ranks, five times a second, through the telemetry service's own rules on a simulated
clock. Half of the runs hold a hang: a random rank stops in a random operation at a random moment and either goes on
talking or falls silent; its tensor peers wait for it, its pipeline waits stage by stage, the other replica at the
exchange. The other half holds an iteration of up to twice the usual length and must stay quiet. Publication and the
ways through Kafka are not in the seconds.
"""

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detection.traces.score import at_least_percent
from evenkeel.contracts.columns import HAS_FLOPS, ITERATION, PRESENT, tell_process
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.offline.samples.stream import observations_of
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.telemetry.v2.process_pb2 import Progress

TABLE = Path("out/benchmarks/detection/hangs.md")
_BEAT_SECONDS = 0.2
_BAR_SECONDS, _BAR_ITERATIONS = 2.0, 3.0
_FRAMES = 12
_START = 1_700_000_000.0
_OPERATIONS = ("forward", "backward", "optimizer", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangRun:
    """One run.

    Attributes:
        records: What the ranks sent, in order.
        iteration_seconds: Of its usual iterations.
        victim: Who hangs; None in a healthy run.
        hung_at: When, Unix seconds.
    """

    records: list[Batch]
    iteration_seconds: float
    victim: int | None
    hung_at: float


def hang_run(index: int, *, hangs: bool) -> HangRun:
    """One run, drawn by its number."""
    rng = np.random.default_rng(zlib.crc32(f"hang/{hangs}".encode()) * 1_000_000 + index)
    layout = uniform_layout(num_blocks=8, tensor=4, pipeline=2, data=2, num_micro_batches=8)
    usual = float(np.exp(rng.uniform(np.log(0.2), np.log(4.0))))
    victim = int(rng.choice(layout.ranks)) if hangs else None
    records = [record for i in range(_FRAMES) for record in _iteration(layout, i, _START + i * usual, usual)]
    begun = _START + _FRAMES * usual
    if victim is None:
        length = usual * float(rng.uniform(1.2, 2.0))
        records += _beats(layout, begun, length, usual, None, "", rng)
        records += _iteration(layout, _FRAMES, begun, length, with_beats=False)
        return HangRun(records=records, iteration_seconds=usual, victim=None, hung_at=begun)
    hung_at = begun + float(rng.uniform(0.05, 0.9)) * usual
    operation = str(rng.choice(_OPERATIONS))
    records += _beats(
        layout, begun, 4 * usual + 12.0, usual, (victim, hung_at, bool(rng.random() < 0.5)), operation, rng
    )
    return HangRun(records=records, iteration_seconds=usual, victim=victim, hung_at=hung_at)


def _iteration(layout: Layout, i: int, start: float, seconds: float, *, with_beats: bool = True) -> Iterator[Batch]:
    """A finished iteration: progress on the way, then everybody's sample."""
    positions = dict(layout.positions())
    if with_beats:
        for rank in layout.ranks:
            yield _progress(rank, start + 0.5 * seconds, i, 10 * i + 5, "forward", 0.01)
    for rank in layout.ranks:
        at = positions[rank]
        batch = Batch()
        tell_process(
            batch,
            **_who(rank, 2 * i + 1),
            replica=at.replica,
            stage=at.stage,
            shard=at.shard,
            forward_flops_per_token=1e9,
            backward_multiple=2.0,
            num_iterations=1,
        )
        measured = {
            "iteration": i,
            "started_at_unix_seconds": start,
            "wall_seconds": seconds,
            "forward_seconds": 0.25 * seconds,
            "backward_seconds": 0.5 * seconds,
            "wait_vote_seconds": 0.01 * seconds,
            "tokens": 4 * 4096,
            "sum_of_squares": 4e6,
            "num_micro_batches": 4,
            "flags": PRESENT | HAS_FLOPS,
        }
        for column in ITERATION:
            getattr(batch, column.name).append(measured.get(column.name, 0))
        yield batch


def _who(rank: int, sequence: int) -> dict[str, Any]:
    return {"job_id": "job", "rank": rank, "sequence": sequence, "node": "n", "device": f"gpu-{rank}"}


def _beats(
    layout: Layout,
    begun: float,
    length: float,
    usual: float,
    hang: tuple[int, float, bool] | None,
    operation: str,
    rng: np.random.Generator,
) -> list[Batch]:
    """What the ranks say of their progress in an iteration that lasts."""
    phase = rng.uniform(0, _BEAT_SECONDS, len(layout.ranks))
    found = []
    for number in range(int(length / _BEAT_SECONDS)):
        for place, rank in enumerate(layout.ranks):
            now = begun + number * _BEAT_SECONDS + float(phase[place])
            doing, since, waits_for = _doing(layout, rank, now, begun, usual, hang, operation)
            if hang is not None and rank == hang[0] and hang[2] and now > hang[1]:
                continue
            count = 10 * _FRAMES + int((since - begun) / usual * 10) + 1
            found.append(_progress(rank, now, _FRAMES, count, doing, now - since, waits_for))
    return sorted(found, key=lambda record: record.progress[0].at_unix_seconds)


def _doing(
    layout: Layout,
    rank: int,
    now: float,
    begun: float,
    usual: float,
    hang: tuple[int, float, bool] | None,
    operation: str,
) -> tuple[str, float, tuple[int, ...]]:
    """What a rank is in, since when, and for whom it waits."""
    tick = usual / 10
    moving = begun + int((now - begun) / tick) * tick
    if hang is None:
        return ("backward" if int((now - begun) / tick) % 2 else "forward"), moving, ()
    victim, hung_at, _ = hang
    positions = dict(layout.positions())
    mine, his = positions[rank], positions[victim]
    stuck, doing = hung_at, operation
    waits_for: tuple[int, ...] = ()
    if rank != victim:
        group = [r for r, at in positions.items() if (at.replica, at.stage) == (his.replica, his.stage)]
        if rank in group:
            stuck, doing, waits_for = hung_at + 0.05 * usual, "wait:tensor", (victim,)
        elif mine.replica == his.replica:
            stuck, doing, waits_for = hung_at + 0.2 * usual, "wait:pipeline", tuple(group)
        else:
            peers = [r for r, at in positions.items() if (at.stage, at.shard) == (mine.stage, mine.shard) and r != rank]
            stuck, doing, waits_for = max(begun + usual, hung_at), "wait:gradient", tuple(peers)
    if now < stuck:
        return ("backward" if int((now - begun) / tick) % 2 else "forward"), moving, ()
    return doing, stuck, waits_for


def _progress(
    rank: int, now: float, iteration: int, count: int, operation: str, seconds: float, waits_for: tuple[int, ...] = ()
) -> Batch:
    one = Progress(
        at_unix_seconds=now,
        iteration=iteration,
        operation_count=count,
        operation=operation,
        seconds_in_operation=seconds,
        waiting_for=waits_for,
    )
    batch = Batch(progress=[one])
    tell_process(batch, **_who(rank, 2 * iteration), num_progress=1)
    return batch


def first_hang(run: HangRun) -> tuple[set[int], float] | None:
    """Whom the detector names, and how many seconds after the hang; None when it names nobody."""
    detector = JobDetector("job")
    for observation in observations_of(run.records):
        for verdict in detector.observe(observation):
            if isinstance(verdict, Verdict) and verdict.kind is VerdictKind.HANG:
                named = {culprit.rank for culprit in verdict.culprits}
                return named, verdict.decided_at_unix_seconds - run.hung_at
    return None


def main() -> None:
    """Runs all and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=200, help="half of them hang")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    count = max(arguments.traces // 2, 1)
    right, delays, relative, false = 0, [], [], 0
    for index in range(count):
        run = hang_run(index, hangs=True)
        found = first_hang(run)
        if found is not None and found[0] == {run.victim}:
            right += 1
            delays.append(found[1])
            relative.append(found[1] / max(_BAR_SECONDS, _BAR_ITERATIONS * run.iteration_seconds))
        false += first_hang(hang_run(index, hangs=False)) is not None
    share = f"{100 * right / count:.1f} ({at_least_percent(right, count):.1f})"
    seconds = f"{np.median(delays):.2f} ({np.quantile(delays, 0.95):.2f})" if delays else "-"
    over = f"{np.median(relative):.2f} ({np.quantile(relative, 0.95):.2f})" if relative else "-"
    lines = (
        "| hangs | right % (95 %: at least) | seconds, median (p95) | over max(2 s, 3 iterations) | false |",
        "|---|---|---|---|---|",
        f"| {count} | {share} | {seconds} | {over} | {false} of {count} |",
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
