"""Throughput lost against the part of devices that is dead: ``python -m benchmarks.planning.papers.availability``.

NTP's question (arXiv 2504.06095): a tensor group is a scale-up domain of 32 or 64 devices; when one dies, what is lost?
Published, 32 K devices in domains of 32, a 480B model, 16 M tokens: up to 4e-3 dead, dropping loses 12 % at most, NTP
3 %, with power below 1 %; domains of 64 with 1e-3 dead are 94 % available. Dead devices are drawn evenly. All systems
keep what the others of a broken domain could do, or not, as they are described; nobody stops for a change here.
Simulated.
"""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.planning.tables import percent, table, write_json
from evenkeel.layouts.layout import Layout, Stage, uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.levers.balance.tuning import (
    LAYER_SPLIT,
    MICRO_BATCH_QUOTA,
    SEQUENCE_MIX,
    TENSOR_WIDTH,
    Tuner,
)
from evenkeel.planning.repair import repaired
from evenkeel.simulator.baselines.evenkeel import EvenkeelMix, situation_of, with_mix
from evenkeel.simulator.fleet.cost.iteration import fleet_cost
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.scenario.models import MODELS
from evenkeel.simulator.fleet.strategy import Costs, Question

NUM_DEVICES, PIPELINE, SEQUENCES, LENGTH = 32_768, 8, 1024, 16_384.0
FRACTIONS = (5e-4, 1e-3, 2e-3, 4e-3)
POWER_SPEED = 1.156
"""Speed of a device at NTP-PW's 1.3 x power: a quadratic through its 2.8 and 6.5 % less performance per watt at 1.1 and
1.2 x, so extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job whose tensor groups are scale-up domains."""

    home: Layout
    cost: CostModel
    width: int

    @property
    def num_replicas(self) -> int:
        """Replicas of the healthy job."""
        return len(self.home.replicas)

    @property
    def quota(self) -> int:
        """Micro-batches of each replica of the healthy job."""
        return self.home.replicas[0].num_micro_batches

    def with_replicas(self, num_replicas: int) -> "Job":
        """The same batch on another number of replicas; without a mix, quotas are whole micro-batches."""
        home = uniform_layout(
            num_blocks=self.home.num_blocks,
            tensor=self.width,
            pipeline=PIPELINE,
            data=num_replicas,
            num_micro_batches=self.home.num_micro_batches,
        )
        return replace(self, home=home)


def job(width: int, num_devices: int = NUM_DEVICES, *, fine_attention: bool = False) -> Job:
    """The 480B job on domains of a width; the batch is 16 M tokens on 32 K devices.

    B200: 720 GB/s of all-reduce within a domain (of the 900 GB/s of NVLink 5). The exchange of gradients is
    taken to hide behind the backward, for everybody, as in NTP's own figures.

    Args:
        width: Devices of a domain.
        num_devices: Of the job.
        fine_attention: Attention can be cut as finely as feed-forward, not only between heads.
    """
    spec = MODELS["dense-480b"].halved_spec()
    if fine_attention:
        finest = max(block.max_width for block in spec.blocks)
        spec = replace(spec, blocks=tuple(replace(block, max_width=finest) for block in spec.blocks))
    data = num_devices // (width * PIPELINE)
    home = uniform_layout(
        num_blocks=len(spec.blocks),
        tensor=width,
        pipeline=PIPELINE,
        data=data,
        num_micro_batches=SEQUENCES * num_devices // NUM_DEVICES,
    )
    workload = Workload(
        seconds_per_flop=1.0 / 1e15, tokens=LENGTH, sum_of_squares=LENGTH * LENGTH / 4.0, transfer_seconds=0.002
    )
    cost = fleet_cost(
        spec, workload, node_bytes_per_second=720e9, network_bytes_per_second=math.inf, collectives_per_block=2
    )
    return Job(home=home, cost=cost, width=width)


def widths_after(where: Job, rng: np.random.Generator, fraction: float) -> tuple[list[list[int]], list[int]]:
    """Live devices of each domain, ``[replica][stage]``, and who is dead."""
    ranks = where.home.ranks
    dead = sorted(int(rank) for rank in rng.choice(len(ranks), size=round(fraction * len(ranks)), replace=False))
    lost = Counter(rank // where.width for rank in dead)
    return [[where.width - lost[d * PIPELINE + s] for s in range(PIPELINE)] for d in range(where.num_replicas)], dead


def _makespan(where: Job, widths: Sequence[int], quota: int, boost: float = 1.0) -> float:
    """Seconds of a replica whose stages have these widths, its blocks as at home; broken domains run boosted."""
    stages, speeds, first = [], {}, 0
    for like, width in zip(where.home.replicas[0].stages, widths, strict=True):
        ranks = tuple(range(first, first + width))
        first += width
        stages.append(Stage(first_block=like.first_block, stop_block=like.stop_block, ranks=ranks, shares=(1,) * width))
        speeds.update(dict.fromkeys(ranks, boost if width < where.width else 1.0))
    return where.cost.makespan(tuple(stages), quota, speeds, "1f1b")


def packed(where: Job, widths: list[list[int]]) -> list[list[int]]:
    """Broken domains together in as few replicas as can be; every domain may go anywhere."""
    flat = sorted((width for row in widths for width in row), reverse=True)
    return [flat[d * PIPELINE : (d + 1) * PIPELINE] for d in range(where.num_replicas)]


def dropped(where: Job, widths: list[list[int]]) -> float:
    """Throughput when a broken domain is dropped and whole ones are packed into replicas."""
    whole = sum(width == where.width for row in widths for width in row)
    return whole / (where.num_replicas * PIPELINE)


def nonuniform(where: Job, widths: list[list[int]], boost: float = 1.0) -> float:
    """NTP: packed; a replica takes as many micro-batches as it can do while a healthy one does its own."""
    healthy = _makespan(where, [where.width] * PIPELINE, where.quota)
    done = 0
    for row in packed(where, widths):
        quota = where.quota
        if min(row) < where.width:
            while quota and _makespan(where, row, quota, boost) > healthy * 1.001:
                quota -= 1
        done += quota
    return done / (where.quota * where.num_replicas)


def question_of(where: Job, dead: Sequence[int]) -> Question:
    """What a strategy is asked when these are dead."""
    throughputs = dict.fromkeys(where.home.ranks, 1.0)
    for rank in dead:
        del throughputs[rank]
    return Question(
        at_seconds=0.0,
        home=where.home,
        current=operation_of(where.home),
        throughputs=throughputs,
        cost=where.cost,
        topology=Topology(num_devices=len(where.home.ranks), devices_per_node=where.width),
        costs=Costs(device_bytes=192e9),
    )


def tuned(where: Job, dead: Sequence[int]) -> Operation:
    """The planner's tuning levers on the layout without its dead: no rank leaves its stage; with the sequence mix."""
    question = question_of(where, dead)
    situation = situation_of(replace(question, home=with_mix(question.home)))
    base = repaired(situation.layout, question.throughputs.keys())
    assert base is not None
    layout = Tuner(situation).tuned(base, (TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA, SEQUENCE_MIX))
    operation = operation_of(layout)
    return replace(operation, scales=layout.mix.scales(operation.quotas)) if layout.mix is not None else operation


def healthy_seconds(where: Job) -> float:
    """Of an iteration with nobody dead, as it is registered or with its blocks split as the planner would.

    A split that hides the transfers between the last stages gains 2 % here with everybody alive. That is no credit
    to a plan for the dead, so what Evenkeel loses is counted from there.
    """
    everybody = dict.fromkeys(where.home.ranks, 1.0)
    as_registered = Replay(where.cost).seconds(where.home, everybody)
    return min(as_registered, operation_seconds(where.cost, tuned(where, ()), everybody))


def throughput(where: Job, operation: Operation, question: Question, healthy: float) -> float:
    """Of an operation, relative to the healthy job."""
    return healthy / operation_seconds(where.cost, operation, question.throughputs)


def within_domains(where: Job, dead: Sequence[int], healthy: float) -> float:
    """Throughput when no rank leaves its stage."""
    return throughput(where, tuned(where, dead), question_of(where, dead), healthy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the whole solver's plan comes to.

    Attributes:
        throughput: Relative to the healthy job.
        spread: Part of its stages that lie in more than one domain.
    """

    throughput: float
    spread: float


def anywhere(where: Job, dead: Sequence[int], healthy: float) -> Planned:
    """The whole solver's plan."""
    question = question_of(where, dead)
    operation = EvenkeelMix().answer(question).operation
    assert operation is not None
    stages = [stage for replica in operation.replicas for stage in replica if stage]
    spread = sum(len({rank // where.width for rank in stage.ranks}) > 1 for stage in stages)
    return Planned(
        throughput=throughput(where, operation, question, healthy),
        spread=spread / len(stages),
    )


def run(widths: Sequence[int], seeds: int, num_devices: int) -> dict[str, Any]:
    """The curves, printed and as data."""
    found: dict[str, Any] = {"seeds": seeds, "num_devices": num_devices, "curves": {}}
    for width in widths:
        where, fine = job(width, num_devices), job(width, num_devices, fine_attention=True)
        healthy, healthy_fine = healthy_seconds(where), healthy_seconds(fine)
        lines = []
        for fraction in FRACTIONS:
            rows = []
            for seed in range(seeds):
                left, dead = widths_after(where, np.random.default_rng((seed, width)), fraction)
                moved = anywhere(where, dead, healthy)
                rows.append(
                    {
                        "drop": dropped(where, left),
                        "NTP": nonuniform(where, left),
                        "NTP-PW": nonuniform(where, left, POWER_SPEED),
                        "Evenkeel, ranks stay": within_domains(where, dead, healthy),
                        "ranks stay, attention cut finely": within_domains(fine, dead, healthy_fine),
                        "Evenkeel": moved.throughput,
                        "stages over two domains": 1.0 - moved.spread,
                    }
                )
            row = {name: 1.0 - fmean(each[name] for each in rows) for name in rows[0]}
            row["spare in the domain"] = _beyond_spares(where, fraction, width // 8)
            found["curves"].setdefault(str(width), []).append({"fraction": fraction, "bound": fraction, **row})
            lines.append([f"{fraction:g}", *(percent(value, 2) for value in row.values()), percent(fraction, 2)])
        header = ["dead", *row, "bound"]
        print(f"## Domains of {width}: throughput lost, %\n\n{table(header, lines)}\n", flush=True)
    return found


def _beyond_spares(where: Job, fraction: float, num_spares: int) -> float:
    """Part of the domains that have more dead than spares of their own (binomial): what they lose at most."""
    size = where.width + num_spares
    rng = np.random.default_rng((9, where.width))
    lost = np.maximum(0, rng.binomial(size, fraction, 200_000) - num_spares)
    return float((lost > 0).mean())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--devices", type=int, default=NUM_DEVICES)
    parser.add_argument("--json", type=Path, default=Path("out/planning/availability.json"))
    chosen = parser.parse_args()
    write_json(chosen.json, run(chosen.widths, chosen.seeds, chosen.devices))


if __name__ == "__main__":
    main()
