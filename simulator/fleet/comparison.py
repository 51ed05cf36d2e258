"""Runs every system of a scenario on the same faults."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from evenkeel.simulator.fleet.result import RunResult
from evenkeel.simulator.fleet.scenario.scenario import Scenario
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Strategy

_COLUMNS = (
    "strategy",
    "throughput",
    "bound",
    "of_bound",
    "fault_free_iteration_seconds",
    "duration_seconds",
    "paused_seconds",
    "stopped_seconds",
    "num_answers",
    "aborted_at_seconds",
)


def run_scenario(
    scenario: Scenario,
    strategies: Sequence[Strategy],
    *,
    seed: int | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[RunResult]:
    """One result per system.

    Args:
        scenario: What to simulate.
        strategies: Who competes.
        seed: Instead of the scenario's own.
        on_progress: Called with the system's name and the part of its run that is done, 0 to 1.
    """
    chosen = scenario.seed if seed is None else seed
    faults = scenario.all_faults(chosen)
    results = []
    for strategy in strategies:

        def tell(done_seconds: float, name: str = strategy.name) -> None:
            if on_progress:
                on_progress(name, done_seconds / scenario.duration_seconds)

        results.append(
            FleetSimulation(
                home=scenario.home,
                cost=scenario.cost,
                topology=scenario.topology,
                faults=faults,
                detector=scenario.detector,
                costs=scenario.costs,
                strategy=strategy,
                duration_seconds=scenario.duration_seconds,
                seed=chosen,
                on_progress=tell,
                link_faults=scenario.link_faults,
                noise=scenario.noise,
            ).run()
        )
    return results


def result_row(result: RunResult, *, segments: bool = False) -> dict[str, Any]:
    """A result as plain data.

    Args:
        result: The result.
        segments: With the whole course of the run.
    """
    row: dict[str, Any] = {name: getattr(result, name) for name in _COLUMNS}
    row["plan_seconds_max"] = max(result.plan_seconds, default=0.0)
    if segments:
        row["segments"] = [asdict(each) for each in result.segments]
    return row
