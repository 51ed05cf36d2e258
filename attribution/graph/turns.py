"""Did workers wait for each transfer in its turn? Read off a recording: what never began before something had ended.

The paper's graph takes receives to be asked for ahead, and sends to keep nobody waiting. Where a recording takes much
longer than that, and never shows one of them beside what comes next, replays that let it wait are nearer to the truth.
"""

import numpy as np

from evenkeel.attribution.graph.replay import Replay
from evenkeel.attribution.graph.wiring import CLOCK_SECONDS, Turn, Wiring
from evenkeel.attribution.operations import OperationError, Operations

LARGEST_GAP = 1.03
"""Recorded over replayed: up to here gaps between operations are the launches' own, as the paper has it."""

_NEARER = 0.5
_HELD = 0.99
_FEWEST = 8


def fitting_replay(operations: Operations) -> Replay:
    """A recording as the paper's graphs, or with transfers in turn where it shows them and is then told twice as well.

    Raises:
        OperationError: A step's operations form no graph.
    """
    plain = Replay(operations)
    gap = _gap(plain)
    if gap < np.log(LARGEST_GAP):
        return plain
    turns = _kept(plain)
    if not turns:
        return plain
    try:
        in_turn = Replay(operations, turns)
    except OperationError:  # they wait for each other in a circle
        return plain
    return in_turn if abs(_gap(in_turn)) <= _NEARER * gap else plain


def _gap(replay: Replay) -> float:
    """Recorded over replayed time, in log units."""
    return float(np.log(replay.observed_seconds().mean() / replay.step_seconds(replay.actual).mean()))


def _kept(replay: Replay) -> frozenset[Turn]:
    """The turns that the recording never breaks."""
    kept = dict.fromkeys(Turn, 0)
    asked = dict.fromkeys(Turn, 0)
    starts, ends = replay.operations.start_seconds, replay.operations.end_seconds
    for structure in replay.structures:
        wiring = Wiring(replay.operations.select(structure.rows[:, 0]))
        for turn in Turn:
            edges = np.array(wiring.in_turn(turn), dtype=np.int64).reshape(-1, 2)
            before, after = structure.rows[edges[:, 0]], structure.rows[edges[:, 1]]
            asked[turn] += before.size
            kept[turn] += int(np.count_nonzero(ends[before] <= starts[after] + CLOCK_SECONDS))
    return frozenset(turn for turn in Turn if asked[turn] >= _FEWEST and kept[turn] >= _HELD * asked[turn])
