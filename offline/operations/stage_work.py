"""How a stage's work changes in the course of a recording: what befalls all its replicas at once is no ill device.

Each stage's workers are one series with as many values a step as it has replicas. Single steps that stand out in all of
them are taken out, then the rest is cut into stretches of constant level: penalised least squares by dynamic
programming (optimal partitioning, Jackson et al. 2005). What the levels of all workers do together at a cut is the
stage's; devices that fall ill one after the other make cuts of their own, at which only one level moves.
"""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints

_SCALE_OF_MEDIAN = 1.4826
_WINDOW = 9
_LAGS = (1, 2, 3, 4)
_STRAYS = 5.0
_LEAST_NOISE = 2e-4
_LONGEST_STRETCH = 256
_STANDARD_ERRORS = 4.0
_SMALLEST_CHANGE = 0.003
_TOLD_FROM = 0.03
_TOLD_STEPS = 8
_MOST_TOLD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """The work of stages beside what it was in the first steps.

    Attributes:
        factors: One row a step, one column a stage; 1 where it is as it was, and where a stage has one worker only.
        notes: Which stages became heavier for a while or for good.
    """

    factors: Floats
    notes: tuple[str, ...]


def stage_work(seconds: Floats, stages: Ints, steps: Ints, *, num_first: int) -> StageWork:
    """What of the course of computations is the stages'.

    Args:
        seconds: Computation for a usual micro-batch, one row a step, one column a worker; not a number, or 0, where a
            worker ran none.
        stages: Stage of each worker, from 0 without gaps.
        steps: What the steps are called.
        num_first: How many steps at the beginning say what is usual.
    """
    num_stages = int(stages.max()) + 1
    courses = np.zeros((len(steps), num_stages))
    shared = [stage for stage in range(num_stages) if np.count_nonzero(stages == stage) > 1]
    for stage in shared:
        course = _common_course(_logs(seconds[:, stages == stage]))
        courses[:, stage] = course - np.median(course[:num_first])
    if len(shared) == num_stages:
        # What all stages do together is nobody's work in particular.
        least = np.abs(courses).argmin(axis=1)
        alike = (np.sign(courses) == np.sign(courses[:, :1])).all(axis=1)
        courses[alike] -= courses[np.arange(len(steps)), least][alike][:, None]
    notes = [note for stage in shared for note in _notes(stage, int(np.count_nonzero(stages == stage)), courses, steps)]
    return StageWork(factors=np.exp(courses), notes=tuple(notes[:_MOST_TOLD]))


def _logs(seconds: Floats) -> Floats:
    """Logarithms; a step that a worker lacks is like its one before, or the first that it has."""
    known = np.isfinite(seconds) & (seconds > 0)
    found = np.zeros(seconds.shape)
    for worker in range(seconds.shape[1]):
        rows = np.flatnonzero(known[:, worker])
        if len(rows):
            newest = np.maximum(np.searchsorted(rows, np.arange(len(seconds)), side="right") - 1, 0)
            found[:, worker] = np.log(seconds[rows[newest], worker])
    return found


def _common_course(logs: Floats) -> Floats:
    """What all workers of a stage do together, log units of time, one number a step; the first is 0."""
    if len(logs) < _WINDOW:
        return np.zeros(len(logs))
    # Where work goes by turns, steps differ from the next more than from the one after it.
    changes = [np.median(np.abs(logs[lag:] - logs[:-lag]), axis=0) for lag in _LAGS]
    noise = np.maximum(_SCALE_OF_MEDIAN * np.min(changes, axis=0) / np.sqrt(2), _LEAST_NOISE)
    half = _WINDOW // 2
    padded = np.pad(logs, ((half, half), (0, 0)), mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW, axis=0), axis=-1)
    strays = logs - middle
    spikes = np.where((np.abs(strays) > _STRAYS * noise).all(axis=1), _common(strays, noise), 0.0)
    reach = _STRAYS * noise
    levels = middle + np.clip(strays - spikes[:, None], -reach, reach)
    starts = _stretches(levels / noise)
    ends = [*starts[1:], len(logs)]
    means = np.stack([levels[start:end].mean(axis=0) for start, end in zip(starts, ends, strict=True)])
    lengths = np.diff([*starts, len(logs)])[:, None]
    errors = noise * np.sqrt(1 / lengths[1:] + 1 / lengths[:-1])
    jumps = np.concatenate([[0.0], _common(np.diff(means, axis=0), errors)])
    found: Floats = spikes + np.repeat(np.cumsum(jumps), lengths[:, 0])
    return found


def _common(moves: Floats, errors: Floats) -> Floats:
    """The part of moves that all workers make: 0 unless they go the same way, and for certain.

    Args:
        moves: One row a moment, one column a worker, log units.
        errors: Standard errors, of the same shape or one a worker.

    Returns:
        The mean of the smallest move and those that may be the same.
    """
    sizes, errors = np.abs(moves), np.broadcast_to(errors, moves.shape)
    same_way = (moves > 0).all(axis=1) | (moves < 0).all(axis=1)
    near = sizes <= sizes.min(axis=1, keepdims=True) + _STANDARD_ERRORS * errors
    count = near.sum(axis=1)
    size = (sizes * near).sum(axis=1) / count
    error = np.sqrt((errors**2 * near).sum(axis=1)) / count
    certain = same_way & (size > np.maximum(_STANDARD_ERRORS * error, _SMALLEST_CHANGE))
    found: Floats = np.where(certain, np.sign(moves[:, 0]) * size, 0.0)
    return found


def _stretches(values: Floats) -> list[int]:
    """Where the stretches of constant level begin.

    Args:
        values: One row a step, one column a worker, in units of its noise.
    """
    count, num_workers = values.shape
    sums = np.concatenate([np.zeros((1, num_workers)), np.cumsum(values - values.mean(axis=0), axis=0)])
    squares = np.concatenate([[0.0], np.cumsum(((values - values.mean(axis=0)) ** 2).sum(axis=1))])
    # What the best of all cuts of pure noise brings is a chi-square's tail (Laurent and Massart 2000).
    tail = 2 * np.log(count)
    penalty = num_workers + 2 * np.sqrt(num_workers * tail) + 2 * tail
    best, before = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        first = max(0, end - _LONGEST_STRETCH)
        lengths = np.arange(end - first, 0, -1)
        spread = squares[end] - squares[first:end] - ((sums[end] - sums[first:end]) ** 2).sum(axis=1) / lengths
        costs = best[first:end] + spread + penalty
        place = int(np.argmin(costs))
        best[end], before[end] = costs[place], first + place
    starts = [int(before[count])]
    while starts[-1] > 0:
        starts.append(int(before[starts[-1]]))
    return starts[::-1]


def _notes(stage: int, num_replicas: int, courses: Floats, steps: Ints) -> list[str]:
    """The longest time for which a stage was heavier."""
    heavier = np.concatenate([[False], courses[:, stage] > _TOLD_FROM, [False]])
    starts, ends = np.flatnonzero(np.diff(heavier.astype(np.int8)).reshape(-1)).reshape(-1, 2).T
    if not len(starts):
        return []
    longest = int((ends - starts).argmax())
    start, end = int(starts[longest]), int(ends[longest])
    if end - start < _TOLD_STEPS:
        return []
    more = float(np.expm1(np.median(courses[start:end, stage])))
    until = "on" if end == len(steps) else f"to {steps[end - 1]}"
    how = f"computes {more:.0%} longer from step {steps[start]} {until}, in all {num_replicas} replicas at once"
    why = "its work became heavier, or something slows all its devices alike, and none of them is accused"
    return [f"stage {stage} {how}: {why}; move layers to lighter stages, or look at what changed then"]
