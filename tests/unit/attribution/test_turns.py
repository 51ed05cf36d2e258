"""Recordings of workers that ask for each transfer only when they need it, against what their schedule takes."""

from functools import cache

import numpy as np
import pytest

from evenkeel.attribution import Operations, analyze

STAGES, BATCHES = 4, 8
Seconds = dict[tuple[str, int, int], float]


def schedule(stage: int) -> list[tuple[str, int]]:
    """1F1B: kinds and micro-batches in the order in which a stage computes them."""
    ahead = STAGES - 1 - stage
    forwards, backwards = iter(range(BATCHES)), iter(range(BATCHES))
    found = [("forward", next(forwards)) for _ in range(ahead)]
    for batch in backwards:
        found += [("forward", next_one) for next_one in [next(forwards, -1)] if next_one >= 0]
        found.append(("backward", batch))
    return found


def run(seconds: Seconds) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Start and end of every operation where a receive is asked for after the computation before it."""
    order = [schedule(stage) for stage in range(STAGES)]

    def source(kind: str, stage: int) -> int:
        return stage - 1 if kind == "forward" else stage + 1

    @cache
    def free(stage: int, kind: str, batch: int) -> float:
        place = order[stage].index((kind, batch))
        return computed(stage, *order[stage][place - 1]) if place else 0.0

    @cache
    def arrived(stage: int, kind: str, batch: int) -> float:
        sender = source(kind, stage)
        if not 0 <= sender < STAGES:
            return 0.0
        ready = max(free(stage, kind, batch), computed(sender, kind, batch))
        return ready + seconds[f"{kind}-recv", stage, batch]

    @cache
    def computed(stage: int, kind: str, batch: int) -> float:
        began = max(free(stage, kind, batch), arrived(stage, kind, batch))
        return began + seconds[f"{kind}-compute", stage, batch]

    found = {}
    for stage in range(STAGES):
        for kind, batch in order[stage]:
            end = computed(stage, kind, batch)
            found[f"{kind}-compute", stage, batch] = (end - seconds[f"{kind}-compute", stage, batch], end)
            sender = source(kind, stage)
            if 0 <= sender < STAGES:
                there = arrived(stage, kind, batch)
                found[f"{kind}-recv", stage, batch] = (free(stage, kind, batch), there)
                found[f"{kind}-send", sender, batch] = (computed(sender, kind, batch), there)
    return found


def durations(transfer: float, seed: int) -> Seconds:
    random = np.random.default_rng(seed)
    found = {}
    for kind, usual in (("forward", 0.01), ("backward", 0.02)):
        for stage in range(STAGES):
            for batch in range(BATCHES):
                heavier = 1.6 if stage == 1 else 1.0
                found[f"{kind}-compute", stage, batch] = usual * heavier * random.lognormal(0.0, 0.02)
                found[f"{kind}-recv", stage, batch] = transfer * random.lognormal(0.0, 0.1)
    return found


@pytest.mark.parametrize("transfer", [0.004, 0.02])
def test_transfers_that_were_waited_for_in_turn_are_replayed_so(transfer: float) -> None:
    steps = [durations(transfer, seed) for seed in range(3)]
    recorded = [run(each) for each in steps]
    rows = [
        (step, 0, stage, optype, 10.0 * step + start, end - start, batch)
        for step, course in enumerate(recorded)
        for (optype, stage, batch), (start, end) in course.items()
    ]
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    found = analyze(Operations.from_columns(columns))

    by_kind: dict[str, list[float]] = {}
    for each, course in zip(steps, recorded, strict=True):
        for key in each.keys() & course.keys():
            by_kind.setdefault(key[0], []).append(each[key])
    usual = {kind: np.mean(each) if "compute" in kind else np.median(each) for kind, each in by_kind.items()}
    ideal = max(end for _, end in run({key: float(usual[key[0]]) for key in steps[0]}).values())
    actual = np.mean([max(end for _, end in course.values()) for course in recorded])
    assert found.in_turn
    assert found.slowdown == pytest.approx(actual / ideal, rel=1e-3)
    assert found.launch_slowdown == pytest.approx(1.0, abs=1e-3)
    assert found.heavy_stages == (1,)
