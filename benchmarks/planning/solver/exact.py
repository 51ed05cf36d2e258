"""Plans beside the best layout there is, found by looking at all: ``python -m benchmarks.planning.solver.exact``.

Random jobs of up to eight devices and six layers in random states, memory limits known, 1F1B. All layouts are looked
at that have no more replicas than the full shape: any devices side by side in any order, any cut of the heads,
any split, any quotas. Devices of one speed are interchangeable, and a replica that cannot be part of anything better
than the plan is not looked at any closer, so this takes seconds. Prints a table (Markdown), and writes JSON with the
gap of each state: how much slower the plan is judged than the best layout, relatively. Not looked at: shares that are
no whole heads, which cut the vocabulary of the head elsewhere, and replicas that hold a copy and do nothing; so a gap
may be below 0.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from benchmarks.planning.tables import percent, table, write_json
from evenkeel.layouts.layout import Replica, Stage, uniform_layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD, live_activations
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import RISK_MARGIN, judged_seconds
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError

HEADS = 6
MAX_DEVICES, MAX_LAYERS = 8, 6
_CLOSER = 1e-6
_MAX_WIDE = 2
_Group = tuple[int, ...]
"""How many devices of each speed."""

_Told = tuple[int, tuple[tuple[tuple[float, ...], int], ...]]
_Parts = tuple[float, float, float]
"""Seconds of a micro-batch as :meth:`CostModel.parts` has them."""

_Stage = tuple[_Group, int, _Parts]
"""Devices, end of the blocks, seconds."""

_Able = tuple[int, float, tuple[_Stage, ...]]
"""Quota of a replica, seconds for it, stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One state.

    Attributes:
        seed: Of it.
        shape: Shards, stages and replicas of the full shape.
        gap: How much slower the plan is judged than the best layout, relatively.
        levers: Of the plan.
        best: The best layout where that is another one: of each replica its quota, and speeds of devices and number of
            blocks of each stage.
    """

    seed: int
    shape: tuple[int, int, int]
    gap: float
    levers: tuple[str, ...]
    best: tuple["_Told", ...]


def state_of(seed: int) -> Situation:
    """A random small job with one to three ill devices, half of them where memory is short."""
    rng = random.Random(seed)
    shapes = [each for each in product((1, 2, 3, 4), repeat=3) if 2 <= math.prod(each) <= MAX_DEVICES]
    tensor, pipeline, data = rng.choice(shapes)
    model = model_with_activations(rng.randint(max(1, pipeline - 1), MAX_LAYERS))
    home = uniform_layout(
        num_blocks=len(model.blocks),
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=data * rng.randint(1, 4) + rng.randint(0, 1),
    )
    speeds = dict.fromkeys(home.ranks, 1.0)
    for rank in rng.sample(home.ranks, rng.randint(1, min(3, len(speeds) - 1))):
        if rng.random() < 0.5:
            del speeds[rank]
        else:
            speeds[rank] = round(rng.uniform(0.2, 0.95), 2)
    filled = max(max(replica_peaks(model, replica)) for replica in home.replicas)
    return Situation(
        layout=home,
        home=home,
        throughputs=speeds,
        cost=CostModel(model, WORKLOAD),
        holders=frozenset(speeds),
        device_bytes=1e12 if rng.random() < 0.5 else filled * rng.uniform(1.0, 2.0),
    )


def model_with_activations(num_layers: int) -> ModelSpec:
    """A small model of few heads whose activations take memory."""
    blocks = [
        replace(block, max_width=HEADS, activation_bytes=200_000) if block.max_width == 12 else block
        for block in gpt(num_layers).blocks
    ]
    return ModelSpec(blocks=tuple(blocks))


class Enumeration:
    """All layouts of one situation.

    Args:
        situation: Its job has no mix and a memory limit.
        schedule: Under which they are.

    Attributes:
        everybody: Devices of each speed.
        fastest_cut: Seconds of blocks on some devices with the fastest cut that fits, by (devices, first block, end of
            the blocks, micro-batches whose activations are held at a time); None = none does.
    """

    def __init__(self, situation: Situation, schedule: str = "1f1b") -> None:
        self._situation, self._cost, self._schedule = situation, situation.wary.cost, schedule
        counts = Counter(situation.throughputs.values())
        self._speeds = tuple(sorted(counts, reverse=True))
        self.everybody: _Group = tuple([counts[speed] for speed in self._speeds])
        self._usual = max([len(stage.ranks) for stage in situation.home.replicas[0].stages])
        self._most = len(situation.home.replicas)
        self.fastest_cut = lru_cache(maxsize=None)(self._fastest_cut)

    def best(self, known: float) -> tuple[float, tuple[_Told, ...]]:
        """Judged seconds of the best layout, and which that is; those of a known one when none is better."""
        told: tuple[_Told, ...] = ()
        while (found := self._below(known * (1.0 - _CLOSER))) is not None:
            known, replicas = found
            told = tuple([self._told(quota, stages) for quota, _, stages in replicas])
        return known, told

    def _told(self, quota: int, stages: tuple[_Stage, ...]) -> _Told:
        stops = [0, *[stop for _, stop, _ in stages]]
        return quota, tuple(
            [(self._speeds_of(cell), stop - start) for (cell, stop, _), start in zip(stages, stops[:-1], strict=True)]
        )

    def _below(self, limit: float) -> tuple[float, tuple[_Able, ...]] | None:
        """Judged seconds of some layout below a limit, and its replicas; None when there is none."""
        for count in range(self._most, 0, -1):
            for num_wide in range(_MAX_WIDE + 1):
                factor = 1.0 + RISK_MARGIN * (self._most - count + num_wide)
                within = limit / factor / self._cost.correction - self._cost.workload.fixed_seconds
                found = self._done(within, count, num_wide)
                if found is not None:
                    return self._cost.total(max([seconds for _, seconds, _ in found])) * factor, found
        return None

    def _done(self, within: float, count: int, num_wide: int) -> tuple[_Able, ...] | None:
        """So many replicas with that many wide stages that are done with the iteration within some seconds."""
        most = self._situation.home.num_micro_batches
        groups = self.groups()
        # Of each group and number of wide stages: (quota, seconds) of the replica that does most in time.
        able = {(g, w): self._most_done(g, w, within, most) for g in groups for w in range(num_wide + 1)}
        # Of each rest the replicas so far that do most micro-batches, and how many that is.
        states: dict[tuple[_Group, int], tuple[int, tuple[_Able, ...]]] = {(self.everybody, num_wide): (0, ())}
        for _ in range(count):
            following: dict[tuple[_Group, int], tuple[int, tuple[_Able, ...]]] = {}
            for (rest, wide), (done, replicas) in states.items():
                for group in self._parts(rest):
                    for own in range(wide + 1) if any(group) else ():
                        one = able[group, own]
                        if one[0]:
                            key = tuple([a - b for a, b in zip(rest, group, strict=True)]), wide - own
                            if key not in following or following[key][0] < done + one[0]:
                                following[key] = done + one[0], (*replicas, one)
            states = following
        return next((replicas for done, replicas in states.values() if done >= most), None)

    def groups(self) -> list[_Group]:
        """All that some devices can be."""
        return [group for group in self._parts(self.everybody) if any(group)]

    @staticmethod
    def _parts(group: _Group) -> Iterator[_Group]:
        yield from product(*[range(number + 1) for number in group])

    def _most_done(self, group: _Group, num_wide: int, within: float, most: int) -> _Able:
        """The replica of these devices that does most in time; a quota of 0 when none does anything."""
        best: _Able = (0, 0.0, ())
        num_blocks = self._situation.home.num_blocks
        for depth in range(1, min(sum(group), num_blocks) + 1):
            for held in range(1, depth + 1):  # activations at a time hang on the quota where that is small
                limit = most if held == depth else held
                lives = [min(live_activations(self._schedule, s, depth, most), held) for s in range(depth)]
                for stages in self._replicas(group, lives, 0, num_wide, within, best[0], 0.0):
                    parts = np.array([each for _, _, each in stages])
                    while best[0] < limit:
                        border_seconds = self._cost.border_seconds(depth)
                        seconds = pipeline_makespan(parts, best[0] + 1, border_seconds)
                        if seconds > within:
                            break
                        best = best[0] + 1, seconds, stages
        return best

    def _replicas(
        self,
        group: _Group,
        lives: list[int],
        first: int,
        num_wide: int,
        within: float,
        beaten: int,
        before: float,
    ) -> Iterator[tuple[_Stage, ...]]:
        """Pipelines of a group that may do more than ``beaten`` micro-batches in time."""
        num_blocks = self._situation.home.num_blocks
        later = len(lives) - 1
        for cell in self._parts(group):
            if not any(cell) or sum(group) - sum(cell) < later:
                continue
            wide = sum(cell) > self._usual
            if wide > num_wide:
                continue
            for stop in range(num_blocks, num_blocks + 1) if not later else range(first + 1, num_blocks - later + 1):
                parts = self.fastest_cut(cell, first, stop, lives[0])
                if parts is None:
                    break  # more blocks take more memory
                # Its first micro-batch comes through the stages before it, and its last goes back through them. With
                # a split backward there may be other work to do meanwhile.
                if before + (beaten + 1) * sum(parts) > within:
                    break
                if not later:
                    yield ((cell, stop, parts),)
                    continue
                rest = tuple([a - b for a, b in zip(group, cell, strict=True)])
                own = parts[0] if self._schedule in SPLIT_BACKWARD else parts[0] + parts[1]
                for others in self._replicas(rest, lives[1:], stop, num_wide - wide, within, beaten, before + own):
                    yield ((cell, stop, parts), *others)

    def _fastest_cut(self, cell: _Group, first: int, stop: int, live: int) -> _Parts | None:
        """Seconds of blocks on some devices with the fastest cut that fits; None = none does."""
        speeds = self._speeds_of(cell)
        best: _Parts | None = None
        blocks = self._situation.cost.model.blocks[first:stop]
        part = ModelSpec(blocks=blocks)
        for shares in whole_shares(HEADS, len(speeds)):
            stage = Stage(first_block=first, stop_block=stop, ranks=tuple(range(len(speeds))), shares=shares)
            seconds = self._cost.parts(stage, dict(enumerate(speeds)), self._schedule)
            if best is not None and sum(seconds) >= sum(best):
                continue
            stage = replace(stage, first_block=0, stop_block=len(blocks))
            held = replica_peaks(part, Replica(stages=(stage,), num_micro_batches=1), live_at=(live,))[0]
            if held <= (self._situation.device_bytes or math.inf):
                best = seconds
        return best

    def _speeds_of(self, cell: _Group) -> tuple[float, ...]:
        return tuple([speed for speed, number in zip(self._speeds, cell, strict=True) for _ in range(number)])


@cache
def whole_shares(total: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Ways to deal so many heads to shards, each at least one.

    >>> whole_shares(3, 2)
    ((1, 2), (2, 1))
    """
    if count == 1:
        return ((total,),) if total else ()
    return tuple([(n, *rest) for n in range(1, total - count + 2) for rest in whole_shares(total - n, count - 1)])


def gap_of(seed: int) -> Gap | None:
    """How far the plan for a random state is from the best layout; None where there is no plan."""
    state = state_of(seed)
    try:
        solution = solve(state)
    except NoPlanError:
        return None
    judged = judged_seconds(state, solution.layout)
    replicas = state.home.replicas
    seconds, best = Enumeration(state).best(judged)
    return Gap(
        seed=seed,
        shape=(len(replicas[0].stages[0].ranks), len(replicas[0].stages), len(replicas)),
        gap=judged / seconds - 1.0,
        levers=tuple([action.lever for action in solution.actions]),
        best=best,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning_exact.json"))
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.states)
    gaps = [gap for seed in seeds if (gap := gap_of(seed)) is not None]
    lines = []
    for name, some in (("all", gaps), *[(f"{d} replicas", [g for g in gaps if g.shape[2] == d]) for d in (1, 2, 3, 4)]):
        if some:
            shares = [sum(each.gap <= most for each in some) / len(some) for most in (1e-4, TIE, 0.02)]
            worst = max(each.gap for each in some)
            lines.append([name, str(len(some)), *[f"{percent(share)} %" for share in shares], f"{percent(worst)} %"])
    header = ["full shape", "states", "best there is", "within 0.5 %", "within 2 %", "worst gap"]
    print(table(header, lines), flush=True)
    write_json(arguments.json, [asdict(gap) for gap in gaps])


if __name__ == "__main__":
    main()
