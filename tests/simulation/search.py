"""Runs seeds, and makes a failing one small: ``python -m tests.simulation.search --runs 200``."""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from tests.simulation.faults import Fault, Outcome, Scenario, drawn
from tests.simulation.run import run

_MOST_AT_ONCE = 100
_MOST_RERUNS = 150
_LAST_LINES = 40


def shrunk(scenario: Scenario, faults: Sequence[Fault]) -> tuple[Scenario, tuple[Fault, ...]]:
    """The fewest of the faults and of the jobs that still break something (Zeller, Hildebrandt: ddmin, 2002)."""
    left, parts, reruns = list(faults), 2, 0
    while len(left) > 1 and reruns < _MOST_RERUNS:
        size = max(1, len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        for chunk in chunks:
            fewer = [fault for fault in left if fault not in chunk]
            reruns += 1
            if fewer and run(scenario, fewer).broken:
                left, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(left), 2 * parts)
    for smaller in _smaller(scenario, left):
        if run(smaller, left).broken:
            scenario = smaller
            break
    return scenario, tuple(left)


def _smaller(scenario: Scenario, faults: Sequence[Fault]) -> Iterator[Scenario]:
    """The same with less in it, the smallest first."""
    needed = 1 + max(fault.job for fault in faults)
    for num_schedulers in (1, scenario.num_schedulers):
        fewer = replace(scenario, num_schedulers=num_schedulers)
        for calmer in (replace(fewer, messages_lost=0.0, messages_doubled=0.0), fewer):
            yield replace(calmer, jobs=scenario.jobs[:needed])
            yield calmer


def first_broken(seeds: Sequence[int]) -> tuple[Scenario, tuple[Fault, ...], Outcome] | None:
    """The first of the seeds that breaks an invariant; None when none does."""
    for seed in seeds:
        scenario, faults = drawn(seed)
        outcome = run(scenario, faults)
        if outcome.broken:
            return scenario, faults, outcome
    return None


def quiet() -> None:
    """The services' own log lines are thousands: only what is broken is told."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _broken_seed(seeds: Sequence[int]) -> tuple[int | None, float]:
    """In a process of its own: the first broken one, and the seconds of a processor that it took."""
    quiet()
    began = time.process_time()
    found = first_broken(seeds)
    return None if found is None else found[0].seed, time.process_time() - began


def main() -> int:
    """Runs the seeds; returns 1 when one of them broke something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=200, help="how many seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    arguments = parser.parse_args()
    quiet()
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    size = max(1, min(_MOST_AT_ONCE, arguments.runs // arguments.processes))
    chunks = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    seconds, broken = 0.0, None
    with multiprocessing.get_context("spawn").Pool(min(arguments.processes, len(chunks))) as pool:
        for chunk, (broken, took_seconds) in zip(chunks, pool.imap(_broken_seed, chunks), strict=True):
            seconds += took_seconds
            if broken is not None:
                break
            print(f"seeds {chunk[0]} to {chunk[-1]}: nothing broken", file=sys.stderr, flush=True)
    if broken is None:
        print(f"{len(seeds)} seeds from {seeds[0]}: nothing broken, {seconds / len(seeds):.3f} s of a processor each")
        return 0
    scenario, least = shrunk(*drawn(broken))
    outcome = run(scenario, least)
    print(f"SEED={scenario.seed}", *outcome.broken, scenario, *least, *outcome.trace[-_LAST_LINES:], sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
