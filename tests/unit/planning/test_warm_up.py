import subprocess
import sys

_SCRIPT = """
from benchmarks.planning.solver.plan_time import FLEETS, random_state
from evenkeel.pipelines.search import tables
from evenkeel.pipelines.search.starts import balance
from evenkeel.pipelines.search.climbing import changes
from evenkeel.pipelines.search.climbing import climb
from evenkeel.pipelines.search.dispatching import dispatch
from evenkeel.pipelines.search.climbing import improve
from benchmarks.planning.solver.exact import state_of
from evenkeel.planning.exact import cell_table, every_replica, group_deal
from evenkeel.planning.pipelined import pipeline_bound
from evenkeel.planning.levers.balance import cuts, splits, tensor_width
from evenkeel.planning.pipelined import makespan
from evenkeel.planning.situation import Situation
from evenkeel.planning.search.solver import solve
from evenkeel.planning.warm_up import warm_up


def compiled():
    return {
        (name, tuple(each.signatures))
        for module in (
            cell_table, cuts, every_replica, group_deal, makespan, pipeline_bound, splits, tensor_width,
            balance, changes, climb, dispatch, improve, tables,
        )
        for name, each in vars(module).items()
        if hasattr(each, "signatures")
    }


first, again = warm_up(), warm_up()
before = compiled()
for fleet in (FLEETS[0], FLEETS[4]):
    case = fleet.case(schedules=True)
    speeds = random_state(case, fleet.max_ill, 1, num_spares=1)
    solve(Situation(layout=case.home, home=case.home, throughputs=speeds, cost=case.cost, holders=frozenset(speeds)))
for seed in (2001, 2004, 2005):
    solve(state_of(seed))
print(again < first, len(before) > 8, compiled() - before)
"""


def test_after_it_no_plan_waits_for_a_compiler_and_a_second_call_takes_no_time() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True set()\n", "")
