"""Deciding on an interrupted iteration, for each rank of a large job: ``python -m benchmarks.engine.salvage_planning``.

A model of 126 blocks under TP 8 x PP 16 (2 x 2 for 8 ranks) and however many replicas; all pipelines are full when a
rank dies. Its stage goes on with one shard less, or, in the second case, its replica's stages are cut anew too. The
calls are the engine's own, for one surviving rank; ledgers are made as those ranks would have them. CPU seconds, and
the bytes of all ledgers on their way back down.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.planning.tables import table, write_json
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.ranks.spread import spread_micro_batches
from evenkeel.trainer_sdk.elastic.config import ModelConfig
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import (
    GradientLedger,
    SummedStretch,
    Tally,
    ledger_to_texts,
    ledgers_from_texts,
)
from evenkeel.trainer_sdk.elastic.gradients.salvage import plan_salvage
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.groups.store.texts import join_texts, split_texts

QUOTA = 32
DEAD = 3


def job(num_ranks: int) -> Layout:
    """The job before the death."""
    tensor, pipeline = (2, 2) if num_ranks < 128 else (8, 16)
    data = num_ranks // (tensor * pipeline)
    return uniform_layout(
        num_blocks=126, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=QUOTA * data, schedule="1f1b"
    )


def ledgers_of(layout: Layout, specs: tuple[ParameterSpec, ...]) -> dict[int, GradientLedger]:
    """What everybody has done: half of its micro-batches, earlier stages as many fewer as they are from the end."""
    ownership = OwnershipMap(specs, layout)
    first, where = layout.replicas[0], dict[tuple[int, int], tuple[SummedStretch, ...]]()
    for s, stage in enumerate(first.stages):
        for t, rank in enumerate(stage.ranks):
            held = ownership.held_by(rank)
            where[s, t] = tuple([SummedStretch(name, one.start, one.stop, 0) for name, one in held.items()])
    found = {}
    for rank, position in layout.positions():
        start, last = position.replica * QUOTA, len(first.stages) - 1
        done = QUOTA // 2 - (last - position.stage) % (QUOTA // 2)
        # The losses of what it ran, with all their digits.
        losses = {start + index: 2.5 + (start + index) / 7.0 for index in range(done)} if position.stage == last else {}
        tally = Tally(iteration=1, sets=(frozenset(range(start, start + done)),), losses=losses)
        found[rank] = GradientLedger(where[position.stage, position.shard], tally)
    return found


def without(layout: Layout, *, cut_anew: bool) -> Layout:
    """The layout without the dead rank; with ``cut_anew`` each stage of its replica starts a block later."""
    first = layout.replicas[0]
    stages = [_without(stage) for stage in first.stages]
    if cut_anew:
        borders = [0, *[stage.first_block + 1 for stage in stages[1:]], layout.num_blocks]
        stages = [replace(stage, first_block=borders[s], stop_block=borders[s + 1]) for s, stage in enumerate(stages)]
    changed = Replica(stages=tuple(stages), num_micro_batches=first.num_micro_batches)
    return replace(layout, replicas=(changed, *layout.replicas[1:]))


def _without(stage: Stage) -> Stage:
    ranks = tuple([rank for rank in stage.ranks if rank != DEAD])
    return replace(stage, ranks=ranks, shares=(1,) * len(ranks))


def measure(num_ranks: int, *, cut_anew: bool) -> dict[str, float]:
    """One row."""
    layout, specs = job(num_ranks), parameter_specs(ModelConfig(num_layers=124, num_heads=128, head_dim=128))
    names = [spec.name for spec in specs]
    texts = {rank: ledger_to_texts(one, names) for rank, one in ledgers_of(layout, specs).items()}
    joined = join_texts(texts)
    changed = without(layout, cut_anew=cut_anew)
    started = time.process_time()
    told = ledgers_from_texts(split_texts(joined), names)
    read = time.process_time()
    ledgers = {rank: one for rank, one in told.items() if rank != DEAD}
    plan = plan_salvage(specs, ledgers, changed, iteration=1, rank=0)
    planned = time.process_time()
    shares = spread_micro_batches(changed, plan.again)
    ended = time.process_time()
    assert sum(map(len, shares)) == len(plan.again)
    return {
        "num_ranks": num_ranks,
        "bytes": len(joined),
        "bytes_said": sum(len(text) for said in texts.values() for text in said),
        "read_seconds": read - started,
        "plan_seconds": planned - read,
        "spread_seconds": ended - planned,
        "num_moved": plan.num_moved,
        "again": len(plan.again),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 1024, 16384, 98304])
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/salvage_planning.json"))
    arguments = parser.parse_args()
    found = []
    for cut_anew in (False, True):
        for num_ranks in arguments.ranks:
            row = measure(num_ranks, cut_anew=cut_anew)
            found.append({"cut_anew": cut_anew, **row})
    header = [
        "ranks",
        "stages cut anew",
        "ledgers, KB",
        "said, KB",
        "read, s",
        "plan, s",
        "spread, s",
        "sums that move",
    ]
    lines = [
        [
            f"{row['num_ranks']:,}",
            "yes" if row["cut_anew"] else "no",
            f"{row['bytes'] / 1e3:,.0f}",
            f"{row['bytes_said'] / 1e3:,.0f}",
            *[f"{row[key]:.3f}" for key in ("read_seconds", "plan_seconds", "spread_seconds")],
            f"{row['num_moved']:,}",
        ]
        for row in found
    ]
    print(table(header, lines))
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
