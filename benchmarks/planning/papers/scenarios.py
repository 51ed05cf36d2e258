"""The published scenarios, each run for every system on the same faults; rows are plain data.

What no paper says is the same for everybody and named: whom failures hit (:mod:`.placements`), and
the *stall*, seconds from a death until everybody trains again (verdict, groups, restart, catch-up), without the bytes
that a system moves.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.planning.papers.placements import deaths
from benchmarks.planning.papers.published import INTERVALS_SECONDS, SEVERITIES
from benchmarks.planning.solver.cases import Case, throughput_for_residual
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.detection import DetectorModel
from evenkeel.simulator.fleet.faults.faults import Fault
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.result import RunResult
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs

OURS = ("Evenkeel", "Evenkeel + sequence mix")
FAIL_STOP = ("ReCycle", "Oobleck", "NTP", "ResiHP", *OURS)
FAIL_SLOW = ("no mitigation", "Greyhound", "ResiHP", *OURS)
MIXED = ("ReCycle", "strengthened ReCycle", "Oobleck", "strengthened Oobleck", "ResiHP", *OURS)
STALL_SECONDS = 2.0
STALLS_SECONDS = (2.0, 15.0, 60.0, 180.0)
_ESTIMATE_ERROR = 0.02
Row = dict[str, Any]


def simulated(
    case: Case, system: str, faults: Sequence[Fault], *, seconds: float, stall: float = STALL_SECONDS, error: float = 0
) -> RunResult:
    """One run; slow devices are noticed after 30 s, with a relative error of their speed."""
    return FleetSimulation(
        home=case.home,
        cost=case.cost,
        topology=Topology(num_devices=case.num_devices),
        faults=faults,
        detector=DetectorModel(stop_seconds=0.0, estimate_error=error),
        costs=Costs(transition=TransitionCosts(group_seconds=stall, bytes_per_second=1e10), restart_seconds=stall),
        strategy=STRATEGIES[system],
        duration_seconds=seconds,
    ).run()


def _row(row: Row, results: dict[str, list[RunResult]]) -> Row:
    """The row with the mean of each system's runs."""
    systems = {
        system: {
            "throughput": fmean(run.throughput for run in runs),
            "of_bound": fmean(run.of_bound for run in runs),
            "ended": sum(run.aborted_at_seconds is not None for run in runs) / len(runs),
        }
        for system, runs in results.items()
    }
    return row | {"bound": fmean(run.bound for runs in results.values() for run in runs), "systems": systems}


def fail_stop_rows(
    case: Case,
    placement: str,
    seed: int,
    systems: Sequence[str] = FAIL_STOP,
    intervals: Sequence[float] = INTERVALS_SECONDS,
    stall: float = STALL_SECONDS,
) -> list[Row]:
    """Table 6: one device dies for good at each interval."""
    seconds, topology, rows = case.hours * 3600.0, Topology(num_devices=case.num_devices), []
    for interval in intervals:
        faults = deaths(placement, case.home, topology, every_seconds=interval, duration_seconds=seconds, seed=seed)
        key = {
            "model": case.model,
            "interval_seconds": interval,
            "placement": placement,
            "seed": seed,
            "stall_seconds": stall,
        }
        rows.append(
            _row(key, {name: [simulated(case, name, faults, seconds=seconds, stall=stall)] for name in systems})
        )
    return rows


def fail_slow_rows(case: Case, num_places: int, systems: Sequence[str] = FAIL_SLOW) -> list[Row]:
    """Fig. 9: one device is slow for four hours, at the published loss of throughput; every place in turn."""
    places, rows = range(0, case.num_devices, max(1, case.num_devices // num_places)), []
    for severity, residual in SEVERITIES.items():
        slow = {rank: throughput_for_residual(case, rank, residual) for rank in places}
        results = {
            system: [
                simulated(case, system, [Fault(at_seconds=0.0, devices=(rank,), throughput=speed)], seconds=14_400.0)
                for rank, speed in slow.items()
            ]
            for system in systems
        }
        key = {"model": case.model, "severity": severity, "device_throughput": fmean(slow.values())}
        rows.append(_row(key, results))
    return rows


def mixed_rows(case: Case, placement: str, seed: int, systems: Sequence[str] = MIXED) -> list[Row]:
    """Fig. 10: every hour something, in turn a death and a medium slowdown, nobody repairs."""
    seconds = case.hours * 3600.0
    faults = deaths(
        placement,
        case.home,
        Topology(num_devices=case.num_devices),
        every_seconds=3600.0,
        duration_seconds=seconds,
        seed=seed,
        throughputs=(0.0, throughput_for_residual(case, 0, SEVERITIES["M"])),
    )
    results = {name: [simulated(case, name, faults, seconds=seconds, error=_ESTIMATE_ERROR)] for name in systems}
    return [_row({"model": case.model, "placement": placement, "seed": seed}, results)]
