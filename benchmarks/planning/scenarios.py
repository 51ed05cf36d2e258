"""The published scenarios, each run for every system on the same faults; rows are plain data."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.planning.cases import Case, throughput_for_residual
from benchmarks.planning.published import INTERVALS_SECONDS, SEVERITIES, table_6_fraction
from services.scheduler.planning.cost_model import block_slowness, replica_makespan
from services.scheduler.planning.levers.tensor_width import best_widths
from simulator.baselines import STRATEGIES
from simulator.fleet.detection import DetectorModel
from simulator.fleet.faults import Fault, FaultProcess, Spacing, drawn_faults
from simulator.fleet.operation import operation_of
from simulator.fleet.result import RunResult
from simulator.fleet.simulation import FleetSimulation
from simulator.fleet.strategy import Costs, Question
from simulator.fleet.topology import Topology

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


INTENSITIES = {"light": (3600.0, 7200.0, 10800.0), "heavy": (1200.0, 2400.0, 14400.0)}
"""Seconds between deaths, between slowdowns, and to repair (means), fleet-wide; the paper does not name its own."""


def large_row(case: Case, seed: int, num_iterations: int, intensity: str, systems: Sequence[str] = MIXED) -> Row:
    """256 devices with recurring deaths and slowdowns, each repaired after a while."""
    fault_free = case.cost.iteration_seconds(case.home, case.healthy)
    seconds = num_iterations * fault_free
    deaths, slowdowns, repair = INTENSITIES[intensity]
    processes = [
        FaultProcess(every_seconds=deaths, mean_repair_seconds=repair),
        FaultProcess(every_seconds=slowdowns, mean_repair_seconds=repair, throughputs=(0.65, 0.45, 0.3)),
    ]
    faults = drawn_faults(processes, Topology(num_devices=case.num_devices), duration_seconds=seconds, seed=seed)
    row: Row = {"model": case.model, "intensity": intensity, "iterations": num_iterations, "num_faults": len(faults)}
    row["systems"] = {}
    for system in systems:
        result = simulated(case, system, faults, seconds=seconds, seed=seed, error=0.02)
        row["systems"][system] = _summary([result])
        row["bound"] = result.bound
    return row


def plan_time_rows(cases: Sequence[Case], num_tries: int) -> list[Row]:
    """CPU seconds of one answer of ours, nothing cached: one death, one slowdown, and an eighth of the devices ill."""
    rows = []
    for case in cases:
        for label, num_dead, num_slow in (("one dead", 1, 0), ("one slow", 0, 1), ("1 of 8 ill", None, None)):
            dead = case.num_devices // 16 if num_dead is None else num_dead
            slow = case.num_devices // 16 if num_slow is None else num_slow
            seconds = sorted(_plan_seconds(case, dead, slow, seed) for seed in range(num_tries))
            rows.append(
                {
                    "num_devices": case.num_devices,
                    "situation": label,
                    "median_seconds": seconds[len(seconds) // 2],
                    "max_seconds": seconds[-1],
                }
            )
    return rows


def _plan_seconds(case: Case, num_dead: int, num_slow: int, seed: int) -> float:
    rng = random.Random(seed)
    ill = rng.sample(case.home.ranks, num_dead + num_slow)
    speeds = case.healthy
    for rank in ill[:num_dead]:
        del speeds[rank]
    speeds.update({rank: rng.uniform(0.3, 0.8) for rank in ill[num_dead:]})
    question = Question(
        at_seconds=0.0,
        home=case.home,
        current=operation_of(case.home),
        throughputs=speeds,
        cost=case.cost,
        topology=Topology(num_devices=case.num_devices),
        costs=Costs(),
    )
    for cached in (replica_makespan, block_slowness, best_widths):
        cached.cache_clear()
    started = time.process_time()
    STRATEGIES["Evenkeel"].answer(question)
    return time.process_time() - started
