"""Whether more healthy capacity ever makes a plan slower: ``python -m benchmarks.planning.solver.more_capacity``.

Random jobs of up to 27 ranks in random states, half of them under a layout that was planned for an earlier state. Each
is planned twice, with a rank in a worse and in a better condition, and the two plans are compared as the solver judges
them: predicted seconds with the margins for structural risks. Slower is what is so by more than a tie, or, where the
rank makes everybody of the full shape healthy, by more than that shape is preferred then. Prints a table (Markdown),
and writes JSON with every question that was answered so, by its seed.
"""

import argparse
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from benchmarks.planning.tables import percent, table, write_json
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.risks import RISK_MARGIN, judged_seconds
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError, Solution

KINDS = ("held rank lives", "dead rank revived", "slow rank healed", "rank faster", "spare rank")
_FASTER = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One question asked with less and with more capacity.

    Attributes:
        seed: Of the state.
        kind: What the better condition is, of ``KINDS``.
        rank: Whose.
        slower: How much slower the plan with more is judged, relatively; below 0 it is faster.
        allowed: Up to which that is no loss.
    """

    seed: int
    kind: str
    rank: int
    slower: float
    allowed: float

    @property
    def is_loss(self) -> bool:
        """Whether capacity made the plan slower."""
        return self.slower > self.allowed


def home_of(rng: random.Random) -> Layout:
    """A full shape."""
    tensor, pipeline, data = (rng.randint(1, 3) for _ in range(3))
    home = uniform_layout(
        num_blocks=rng.randint(max(1, pipeline - 1), 8) + 2,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=rng.randint(data, 4 * data + 3),
    )
    if rng.random() < 0.5:
        quotas = [replica.num_micro_batches for replica in home.replicas]
        home = replace(home, mix=mix_for(gpt(home.num_blocks - 2), quotas, num_stages=pipeline))
    return replace(home, schedules=("1f1b", "zb-h1")) if rng.random() < 0.5 else home


def speeds_of(rng: random.Random, home: Layout) -> dict[int, float]:
    """Throughputs of the ranks that live; some dead, some slow."""
    dead = rng.sample(home.ranks, rng.randint(0, len(home.ranks) // 3))
    slow = rng.sample(home.ranks, min(len(home.ranks), rng.randint(0, 3)))
    speeds = dict.fromkeys(home.ranks, 1.0) | {rank: rng.uniform(0.2, 1.0) for rank in slow}
    return {rank: p for rank, p in speeds.items() if rank not in dead}


def state_of(seed: int) -> Situation:
    """A random job in a random state.

    Raises:
        NoPlanError: Nothing can be made of its earlier state.
    """
    rng = random.Random(seed)
    home = home_of(rng)
    cost = CostModel(gpt(home.num_blocks - 2), WORKLOAD)
    speeds = speeds_of(rng, home)
    memory = rng.choice([None, None, 8e6, 2e7])
    state = Situation(
        layout=home, home=home, throughputs=speeds, cost=cost, holders=frozenset(speeds), device_bytes=memory
    )
    return with_speeds(state, speeds_of(rng, home), solve(state).layout) if rng.random() < 0.5 else state


def with_speeds(state: Situation, speeds: Mapping[int, float], layout: Layout | None = None) -> Situation:
    """The state with other throughputs, and with another layout in force if one is given."""
    layout = layout or state.layout
    return replace(state, layout=layout, throughputs=speeds, holders=frozenset(layout.ranks) & frozenset(speeds))


def questions(seed: int, state: Situation) -> Iterator[tuple[str, int, Situation, Situation]]:
    """(Kind, rank, state with less, state with more) of a random state, at most one of each kind."""
    rng = random.Random(f"questions {seed}")
    speeds, held = dict(state.throughputs), set(state.layout.ranks)

    def with_rank(rank: int, speed: float) -> Situation:
        others = {r: p for r, p in speeds.items() if r != rank}
        return with_speeds(state, others | ({rank: speed} if speed else {}))

    lives = sorted(held & speeds.keys())
    dead = sorted(held - speeds.keys())
    slow = [rank for rank in lives if speeds[rank] < 1.0]
    newcomer = max(state.home.ranks) + 1
    for kind, ranks, less, more in (
        (KINDS[0], [rank for rank in lives if speeds[rank] == 1.0], 0.0, 1.0),
        (KINDS[1], dead, 0.0, 1.0),
        (KINDS[2], slow, None, 1.0),
        (KINDS[3], lives, None, _FASTER),
        (KINDS[4], [newcomer], 0.0, 1.0),
    ):
        if ranks:
            rank = rng.choice(ranks)
            was = speeds.get(rank, 0.0)
            yield kind, rank, with_rank(rank, was if less is None else less), with_rank(rank, max(was, 1.0) * more)


def compared(seed: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Comparison]:
    """The comparisons of a random state; none where nothing can be planned."""
    try:
        state = state_of(seed)
    except NoPlanError:
        return
    for kind, rank, less, more in questions(seed, state):
        if kind in kinds:
            try:
                before = solve(less)
            except NoPlanError:
                continue
            margin = RISK_MARGIN if more.all_is_well and not less.all_is_well else 0.0
            slower = judged(more, solve(more)) / judged(less, before) - 1.0
            yield Comparison(
                seed=seed, kind=kind, rank=rank, slower=slower, allowed=(1.0 + margin) * (1.0 + TIE) - 1.0 + 1e-9
            )


def judged(state: Situation, solution: Solution) -> float:
    """Seconds of a plan as the solver judges it."""
    return judged_seconds(state, solution.layout)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path, default=Path("out/planning_more_capacity.json"))
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.states)
    found = [each for seed in seeds for each in compared(seed, tuple(arguments.kinds))]
    lines = []
    for kind in arguments.kinds:
        asked = [each for each in found if each.kind == kind]
        losses = [each for each in asked if each.is_loss]
        worst = max([each.slower for each in losses], default=0.0)
        lines.append([kind, str(len(asked)), str(len(losses)), f"{percent(worst, 1)} %"])
    print(table(["more capacity", "questions", "plan slower", "by at most"], lines), flush=True)
    slower = [asdict(each) for each in found if each.is_loss]
    write_json(arguments.json, {"states": arguments.states, "first_seed": arguments.first_seed, "losses": slower})


if __name__ == "__main__":
    main()
