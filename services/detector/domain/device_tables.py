"""The tables of a device bank: which row of them is what.

Tables have one column a device. Residuals, levels, offsets and scales are in log units of time, sums and heights in
nats.
"""

NUMBERS = ("work_key", "shared_offset", "own_offset", "level", "published", "scale")
"""Rows of the table of numbers; the sums of the tests follow, test by test, towards slower before towards faster."""

COUNTS = (
    *("rank", "incarnation", "num_to_baseline", "num_to_skip", "num_relapses"),
    *("num_observed", "num_since_change", "num_settled"),
)
"""Rows of the table of counts."""

FLAGS = ("has_offset", "suspected", "ill")
"""Rows of the table of flags."""

WORK_KEY, SHARED, OWN, LEVEL, SCALE = (
    NUMBERS.index(name) for name in ("work_key", "shared_offset", "own_offset", "level", "scale")
)
SUMS = len(NUMBERS)
TO_BASELINE, RELAPSES, OBSERVED, SINCE_CHANGE, SETTLED = (
    COUNTS.index(name)
    for name in ("num_to_baseline", "num_relapses", "num_observed", "num_since_change", "num_settled")
)
HAS_OFFSET, ILL = FLAGS.index("has_offset"), FLAGS.index("ill")
