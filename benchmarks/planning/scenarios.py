"""The published scenarios, each run for every system on the same faults; rows are plain data."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.planning.cases import Case, throughput_for_residual
from benchmarks.planning.published import INTERVALS_SECONDS, SEVERITIES, table_6_fraction
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.detection import DetectorModel
from evenkeel.simulator.fleet.faults import Fault, FaultProcess, Spacing, drawn_faults
from evenkeel.simulator.fleet.result import RunResult
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs
from evenkeel.simulator.fleet.topology import Topology

FAIL_STOP = ("ReCycle", "Oobleck", "NTP", "ResiHP", "Evenkeel", "Evenkeel + sequence mix")
FAIL_SLOW = ("no mitigation", "Adaptra", "Greyhound", "ResiHP", "Evenkeel", "Evenkeel + sequence mix")
MIXED = (
    "ReCycle",
    "strengthened ReCycle",
    "Oobleck",
    "strengthened Oobleck",
    "ResiHP",
    "Evenkeel",
    "Evenkeel + sequence mix",
)
Row = dict[str, Any]


def simulated(
    case: Case, strategy: str, faults: Sequence[Fault], *, seconds: float, seed: int, error: float = 0.0
) -> RunResult:
    """One run; the detector is late as ours is, and estimates with a relative error."""
    return FleetSimulation(
        home=case.home,
        cost=case.cost,
        topology=Topology(num_devices=case.num_devices),
        faults=faults,
        detector=DetectorModel(estimate_error=error),
        costs=Costs(),
        strategy=STRATEGIES[strategy],
        duration_seconds=seconds,
        seed=seed,
    ).run()


def _summary(results: Sequence[RunResult]) -> Row:
    plans = [seconds for result in results for seconds in result.plan_seconds]
    return {
        "throughput": fmean(result.throughput for result in results),
        "of_bound": fmean(result.of_bound for result in results),
        "aborted": sum(result.aborted_at_seconds is not None for result in results) / len(results),
        "plan_seconds_mean": fmean(plans) if plans else 0.0,
        "plan_seconds_max": max(plans, default=0.0),
    }


def fail_stop_rows(cases: Sequence[Case], seeds: Sequence[int], systems: Sequence[str] = FAIL_STOP) -> list[Row]:
    """Table 6: one device dies for good at each interval."""
    rows = []
    for case in cases:
        seconds = case.hours * 3600.0
        for column, interval in enumerate(INTERVALS_SECONDS):
            process = FaultProcess(every_seconds=interval, spacing=Spacing.REGULAR)
            topology = Topology(num_devices=case.num_devices)
            faults = [drawn_faults([process], topology, duration_seconds=seconds, seed=seed) for seed in seeds]
            row: Row = {"model": case.model, "interval_seconds": interval, "systems": {}}
            for system in systems:
                results = [
                    simulated(case, system, drawn, seconds=seconds, seed=seed)
                    for drawn, seed in zip(faults, seeds, strict=True)
                ]
                row["systems"][system] = _summary(results)
                row["bound"] = fmean(result.bound for result in results)
            row["published"] = {
                name: table_6_fraction(name, case.model, column) for name in ("ReCycle", "Oobleck", "ResiHP")
            }
            rows.append(row)
    return rows


def fail_slow_rows(cases: Sequence[Case], num_places: int, systems: Sequence[str] = FAIL_SLOW) -> list[Row]:
    """Fig. 9: one device is slow, for good, for an hour after its verdict; every place in turn."""
    rows = []
    for case in cases:
        places = range(0, case.num_devices, max(1, case.num_devices // num_places))
        for label, residual in SEVERITIES.items():
            row: Row = {"model": case.model, "severity": label, "systems": {}}
            slow = {rank: throughput_for_residual(case, rank, residual) for rank in places}
            row["device_throughput"] = fmean(slow.values())
            for system in systems:
                results = [
                    simulated(
                        case, system, [Fault(at_seconds=0.0, devices=(rank,), throughput=p)], seconds=14400, seed=0
                    )
                    for rank, p in slow.items()
                ]
                row["systems"][system] = _summary(results)
                row["bound"] = fmean(result.bound for result in results)
            rows.append(row)
    return rows


def mixed_rows(cases: Sequence[Case], seeds: Sequence[int], systems: Sequence[str] = MIXED) -> list[Row]:
    """Fig. 10: every hour something, in turn a death and a medium slowdown, nobody repairs."""
    rows = []
    for case in cases:
        seconds = case.hours * 3600.0
        medium = throughput_for_residual(case, 0, SEVERITIES["M"])
        row: Row = {"model": case.model, "systems": {}}
        drawn = []
        for seed in seeds:
            process = FaultProcess(every_seconds=3600.0, spacing=Spacing.REGULAR)
            faults = drawn_faults(
                [process], Topology(num_devices=case.num_devices), duration_seconds=seconds, seed=seed
            )
            drawn.append([replace(fault, throughput=medium * (i % 2)) for i, fault in enumerate(faults)])
        for system in systems:
            results = [
                simulated(case, system, faults, seconds=seconds, seed=seed, error=0.02)
                for faults, seed in zip(drawn, seeds, strict=True)
            ]
            row["systems"][system] = _summary(results)
            row["bound"] = fmean(result.bound for result in results)
        rows.append(row)
    return rows
