"""Which is it: one link, everything of one rank (its endpoint), or one group? Asked when something became slow.

Each explanation says which rows share one slowdown and that all others have none. The better one is that under which
the residuals since the change are more likely: (sum of w z)^2 / (2 sum of w) in nats, with z the middle residual of a
row and w its iterations over the square of its scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.frames.ties import Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What would explain a slow row.

    Attributes:
        ranks: One is an endpoint, two are a link, more are a group.
        rows: Rows that share the slowdown, ascending.
        level: The slowdown they share, log units of time.
        lead_nats: How much likelier it is than the best one that accuses others.
    """

    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    level: float
    lead_nats: float


def explain(
    row: int, *, ties: Ties, residuals: Floats, scales: Floats, rows_of_rank: Mapping[int, Sequence[int]]
) -> Explanation:
    """The likeliest explanation of a row that became slow.

    Args:
        row: It.
        ties: What each row is.
        residuals: Of all rows since it became slow, one column an iteration; NaN where there is none.
        scales: By which the mean of so many iterations strays, times their root; NaN where that is not known.
        rows_of_rank: Rows that each rank takes part in.
    """
    scored = []
    known: dict[int, tuple[float, float]] = {}
    for ranks, rows in _candidates(ties, row, rows_of_rank):
        total = weights = 0.0
        for one in rows:
            if one not in known:
                known[one] = _evidence(residuals[one], float(scales[one]))
            mean, weight = known[one]
            total += weight * mean
            weights += weight
        level = total / weights if weights > 0 else 0.0
        scored.append((max(level, 0.0) * total / 2, ranks, rows, level))
    gain, ranks, rows, level = max(scored, key=lambda one: one[0])
    others = [one[0] for one in scored if one[1] != ranks]
    return Explanation(ranks=ranks, rows=rows, level=level, lead_nats=gain - max(others, default=0.0))


def _candidates(
    ties: Ties, row: int, rows_of_rank: Mapping[int, Sequence[int]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The row's own link or group, and the endpoint of each of its ranks: all of it, or its part on or off the node."""
    own = ties[row].ranks
    same = [other for other in rows_of_rank[own[0]] if ties[other].ranks == own]
    found = [(own, tuple(sorted(same)))]
    for rank in own:
        mine = sorted(rows_of_rank[rank])
        crossing = [one for one in mine if ties[one].crosses == ties[row].crosses]
        for rows in (mine, crossing):
            # An endpoint shows with at least two others; with one it is that link.
            if len({ties[one].ranks for one in rows}) > 1 and ((rank,), tuple(rows)) not in found:
                found.append(((rank,), tuple(rows)))
    return found


def _evidence(residuals: Floats, scale: float) -> tuple[float, float]:
    """Middle residual, as lone transfers may take several times as long, and its weight."""
    known = residuals[np.isfinite(residuals)]
    return (float(np.median(known)), len(known) / scale**2) if len(known) and np.isfinite(scale) else (0.0, 0.0)
