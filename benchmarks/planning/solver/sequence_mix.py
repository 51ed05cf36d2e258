"""Long-tailed lengths, nothing broken: ``python -m benchmarks.planning.solver.sequence_mix HISTOGRAM.csv``.

Documents are drawn from a histogram of lengths (columns ``length_tokens, count``) and packed into micro-batches in the
order in which they come, until the next one does not fit; then the same documents of each iteration are dealt out by
the rule that the engine follows (:func:`evenkeel.layouts.sizes.mix.mixed`). An iteration lasts as long as the longest
path of its slowest replica under 1F1B, with the cost of every micro-batch as it is: N and the sum of squared lengths.
Simulated; what a document costs follows from the published shape of the model.
"""

import argparse
import csv
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.schedules import one_f_one_b
from evenkeel.layouts.sizes.mix import Mix, mix_for, mixed
from evenkeel.simulator.fleet.scenario.models import MODELS

_BACKWARD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One job.

    Attributes:
        model: Key of the published models.
        pipeline: Stages.
        data: Replicas.
        quota: Micro-batches per replica.
        longest: Tokens that the longest document of the histogram has; all lengths are scaled alike.
        budget: Tokens of a micro-batch.
    """

    model: str
    pipeline: int
    data: int
    quota: int
    longest: int
    budget: int


SETTINGS = (
    Setting(model="llama2-7b", pipeline=1, data=8, quota=4, longest=384, budget=1536),
    Setting(model="llama2-7b", pipeline=4, data=4, quota=8, longest=384, budget=384),
    Setting(model="llama2-7b", pipeline=4, data=4, quota=8, longest=32768, budget=32768),
    Setting(model="llama2-7b", pipeline=4, data=16, quota=8, longest=32768, budget=32768),
    Setting(model="llama2-7b", pipeline=4, data=64, quota=8, longest=32768, budget=32768),
    Setting(model="llama2-70b", pipeline=8, data=8, quota=16, longest=32768, budget=32768),
    Setting(model="llama2-70b", pipeline=8, data=32, quota=16, longest=32768, budget=32768),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of a setting: mean seconds per iteration in units of a perfectly even iteration without bubbles."""

    setting: Setting
    num_iterations: int
    drawn: float
    dealt: float
    even: float
    documents_per_micro_batch: float

    @property
    def speedup(self) -> float:
        """Throughput over that without rebalancing."""
        return self.drawn / self.dealt


def read_histogram(path: Path) -> tuple[list[int], list[int]]:
    """Lengths and how often each occurs."""
    with path.open(newline="") as file:
        rows = [(int(row["length_tokens"]), int(row["count"])) for row in csv.DictReader(file)]
    return [length for length, count in rows if count], [count for _, count in rows if count]


def drawn_packs(draw: partial[list[int]], setting: Setting, scale: float) -> list[list[int]]:
    """Lengths of the documents of each micro-batch, packed in the order in which they come."""
    packs: list[list[int]] = []
    waiting: list[int] = []
    for _ in range(setting.data * setting.quota):
        pack: list[int] = []
        while True:
            if not waiting:
                waiting = [max(1, round(scale * length)) for length in draw(k=64)]
            if sum(pack) + waiting[-1] > setting.budget:
                break
            pack.append(waiting.pop())
        packs.append(pack)
    return packs


def iteration_seconds(costs: Sequence[float], setting: Setting) -> float:
    """Longest path of the slowest replica; stages are equal parts of the model."""
    slowest = 0.0
    for d in range(setting.data):
        own = costs[d * setting.quota : (d + 1) * setting.quota]
        programs = [one_f_one_b(s, setting.pipeline, range(setting.quota)) for s in range(setting.pipeline)]

        def seconds_of(_: int, instruction: Instruction, own: Sequence[float] = own) -> float:
            forward = own[instruction.micro_batch] / (1.0 + _BACKWARD) / setting.pipeline
            return forward if instruction.op is Op.FORWARD else forward * _BACKWARD

        slowest = max(slowest, *(stage.end_seconds for stage in times(programs, seconds_of)))
    return slowest


def row_of(setting: Setting, lengths: list[int], counts: list[int], num_iterations: int, seed: int) -> Row:
    """One setting over some iterations."""
    model: ModelSpec = MODELS[setting.model].spec()
    rule: Mix = mix_for(model, (setting.quota,) * setting.data, num_stages=setting.pipeline)
    draw = partial(random.Random(seed).choices, lengths, counts)
    drawn: list[float] = []
    dealt: list[float] = []
    even: list[float] = []
    documents: list[float] = []
    for _ in range(num_iterations):
        packs = drawn_packs(draw, setting, setting.longest / max(lengths))
        everything = [length for pack in packs for length in pack]
        found = mixed(rule, everything, round(setting.budget * rule.max_scale))
        if found is None:
            raise RuntimeError("the documents do not fit: allow larger micro-batches")
        again = [[everything[number] for number in pack] for pack in found]
        mean = sum(map(rule.cost, everything)) / len(packs)
        for seconds, shown in ((drawn, packs), (dealt, again)):
            seconds.append(iteration_seconds([sum(map(rule.cost, pack)) / mean for pack in shown], setting))
        even.append(iteration_seconds([1.0] * len(packs), setting))
        documents.append(len(everything) / len(packs))
    return Row(
        setting=setting,
        num_iterations=num_iterations,
        drawn=fmean(drawn),
        dealt=fmean(dealt),
        even=fmean(even),
        documents_per_micro_batch=fmean(documents),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    titles = ("model", "PP x DP x micro-batches", "longest document", "token budget", "documents each")
    results = ("no rebalancing", "mix", "all alike", "speedup", "all alike would give")
    lines = ["| " + " | ".join((*titles, *results)) + " |", "| " + " | ".join(["---"] * 10) + " |"]
    for row in rows:
        s = row.setting
        lines.append(
            f"| {s.model} | {s.pipeline} x {s.data} x {s.quota} | {s.longest:,} | {s.budget:,} | "
            f"{row.documents_per_micro_batch:.1f} | {row.drawn:.2f} | {row.dealt:.2f} | {row.even:.2f} | "
            f"{row.speedup:.3f} x | {row.drawn / row.even:.3f} x |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histogram", type=Path, help="CSV with the columns length_tokens and count")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/sequence_mix.json"), help="where the rows go")
    chosen = parser.parse_args()
    lengths, counts = read_histogram(chosen.histogram)
    rows = [row_of(setting, lengths, counts, chosen.iterations, chosen.seed) for setting in SETTINGS]
    print(table(rows))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps([asdict(row) | {"speedup": row.speedup} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
