"""Plans of tiny jobs beside CP-SAT: ``python -m benchmarks.planning.solver.constraint``.

States of :mod:`benchmarks.planning.solver.exact`, each asked of the planner and of a constraint solver that knows all
layouts: of every stage its devices, blocks and seconds are a row of a table, quotas are variables, and a pipeline takes
what its closed form says (:mod:`evenkeel.planning.pipelined.pipeline_bound`), which 1F1B never beats. So its optimum is
a bound, and a proof only where a pipeline takes just that. Prints a table (Markdown): CPU seconds of one thread, the
compiler's not counted. Needs the extra ``pipelines`` (ortools).
"""

import argparse
import math
import time
from itertools import pairwise
from statistics import median

from ortools.sat.python import cp_model

from benchmarks.planning.solver.exact import Enumeration, state_of
from benchmarks.planning.tables import percent, table
from evenkeel.planning.costs.risks import RISK_MARGIN, judged_seconds
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError
from evenkeel.planning.warm_up import warm_up

_UNITS = 1e6
"""Of a second: constraint solvers count in whole numbers."""
_MOST, _MOST_RISKS = 10**10, 4


class Layouts:
    """All layouts of a situation under 1F1B as a model for CP-SAT; ``model`` asks for the one that is judged fastest.

    Args:
        situation: Its job has a memory limit, and no mix.
    """

    def __init__(self, situation: Situation) -> None:
        self.model, self._situation, self._all = cp_model.CpModel(), situation, Enumeration(situation)
        home, workload = situation.home, situation.cost.workload
        least, most = situation.cost.forward_parts
        self._parts = round(1000 * most), round(1000 * (1.0 - least))
        self._round_trip = round(2 * _UNITS * workload.transfer_seconds)
        self._depth, self._usual = (
            min(len(situation.throughputs), home.num_blocks),
            len(home.replicas[0].stages[0].ranks),
        )
        self._held: list[list[cp_model.IntVar]] = [[] for _ in self._all.everybody]
        self._wide: list[cp_model.IntVar] = []
        model, used, quotas, ends = self.model, [], [], []
        for _ in home.replicas:
            used.append(model.new_bool_var(""))
            quotas.append(model.new_int_var(0, home.num_micro_batches, ""))
            ends.append(self._replica(used[-1], quotas[-1]))
        model.add(sum(quotas) == home.num_micro_batches)
        for some, number in zip(self._held, self._all.everybody, strict=True):
            model.add(sum(some) <= number)
        for more, less in pairwise(quotas):
            model.add(more >= less)  # replicas are alike
        slowest, judged = self._seconds(), model.new_int_var(0, 200 * _MOST, "")
        model.add_max_equality(slowest, ends)
        for number in range(_MOST_RISKS + 1):
            # Whoever has fewer risks keeps to this too.
            more = model.new_bool_var("")
            risks = len(home.replicas) - sum(used) + sum(self._wide)
            model.add(risks < number).only_enforce_if(~more)
            factor = 100 + number * round(100 * RISK_MARGIN)
            model.add(judged >= factor * (slowest + round(_UNITS * workload.fixed_seconds))).only_enforce_if(more)
        model.minimize(judged)

    def _seconds(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, _MOST, "")

    def _replica(self, used: cp_model.IntVar, quota: cp_model.IntVar) -> cp_model.IntVar:
        """The end of one more replica; its stages are the last ones of as many as there may be."""
        model, depth = self.model, self._depth
        model.add(quota == 0).only_enforce_if(~used)
        model.add(quota >= 1).only_enforce_if(used)
        stages = [self._stage(depth - s) for s in range(depth)]
        model.add(stages[0][0] == 0)
        for (_, stop, _, is_there), (first, _, _, is_next) in pairwise(stages):
            model.add(first == stop).only_enforce_if(is_next)
            model.add(first == 0).only_enforce_if(~is_there)
            model.add_implication(is_there, is_next)
        model.add(stages[-1][3] == used)
        model.add(stages[-1][1] == self._situation.home.num_blocks).only_enforce_if(used)
        end, seconds, there = self._seconds(), [stage[2] for stage in stages], [stage[3] for stage in stages]
        forward, backward = self._parts
        for s, own in enumerate(seconds):
            work, later, idle = self._seconds(), depth - 1 - s, (self._seconds(), self._seconds())
            model.add_multiplication_equality(work, [quota, own])
            before = sum(seconds[:s]) + self._round_trip * sum(there[:s])
            after = 1000 * (sum(seconds[s + 1 :]) + self._round_trip * later)
            is_long = model.new_bool_var("")
            model.add(quota >= later + 2).only_enforce_if(is_long)
            model.add(quota <= later + 1).only_enforce_if(~is_long)
            for wait, part in zip(idle, self._parts, strict=True):
                model.add(1000 * wait >= after - later * part * own).only_enforce_if(is_long, there[s])
            ahead = min(forward, backward) * (work - own)
            model.add(1000 * idle[0] >= after - ahead).only_enforce_if(~is_long, there[s])
            model.add(end >= before + work + sum(idle)).only_enforce_if(there[s])
        return end

    def _stage(self, held: int) -> tuple[cp_model.IntVar, ...]:
        """First block, end of the blocks, seconds and whether it is there at all, of one more stage.

        Args:
            held: Micro-batches whose activations it holds at a time.
        """
        model, num_blocks, groups = self.model, self._situation.home.num_blocks, self._all.groups()
        first, stop = (model.new_int_var(0, num_blocks, "") for _ in range(2))
        seconds, is_there, is_wide = self._seconds(), model.new_bool_var(""), model.new_bool_var("")
        counts = [model.new_int_var(0, number, "") for number in self._all.everybody]
        rows: list[tuple[int, ...]] = [(0,) * (5 + len(counts))]
        for group in groups:
            for i in range(num_blocks):
                for j in range(i + 1, num_blocks + 1):
                    parts = self._all.fastest_cut(group, i, j, held)
                    if parts is not None:
                        rows.append((i, j, round(_UNITS * sum(parts)), 1, int(sum(group) > self._usual), *group))
        model.add_allowed_assignments([first, stop, seconds, is_there, is_wide, *counts], rows)
        for some, count in zip(self._held, counts, strict=True):
            some.append(count)
        self._wide.append(is_wide)
        return first, stop, seconds, is_there


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CP-SAT, deterministic, a state")
    arguments = parser.parse_args()
    warm_up()
    gaps, own, theirs, is_proof = [], [], [], []
    for seed in range(arguments.states):
        state = state_of(seed)
        begun = time.process_time()
        try:
            judged = judged_seconds(state, solve(state).layout)
        except NoPlanError:
            continue
        own.append(time.process_time() - begun)
        begun = time.process_time()
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = arguments.seconds
        status = solver.solve(Layouts(state).model)
        theirs.append(time.process_time() - begun)
        bound = solver.best_objective_bound / 100 / _UNITS
        is_proof.append(status == cp_model.OPTIMAL)
        gaps.append(judged / bound - 1.0 if bound > 0.0 else math.inf)
    proofs = [gap for gap, proven in zip(gaps, is_proof, strict=True) if proven]
    lines = [
        ["states, of these solved to the end", f"{len(gaps)}, {len(proofs)}"],
        *[[f"plan within {percent(most)} % of the bound", str(sum(g <= most for g in proofs))] for most in (1e-4, TIE)],
        ["worst", f"{percent(max(proofs))} %"],
        ["seconds of a plan: median, worst", f"{median(own):.3f}, {max(own):.3f}"],
        ["seconds of CP-SAT: median, worst", f"{median(theirs):.2f}, {max(theirs):.2f}"],
    ]
    print(table(["", ""], lines))


if __name__ == "__main__":
    main()
