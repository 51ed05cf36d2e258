"""The rows of a frame's three tables, one column an entry: what its ranks report, as compiled code takes it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints

REPORTED = (
    *("compute_seconds", "token_flops", "square_flops", "other_seconds", "wall_seconds"),
    *("tensor_wait", "pipeline_wait", "gradient_wait", "vote_wait", "tokens", "sums_of_squares"),
    *("losses", "gradient_norms", "work_keys", "data_seconds"),
)
"""Numbers."""
COMPUTE_SECONDS, FLOPS_OF_TOKENS, FLOPS_OF_SQUARES, OTHER_SECONDS, WALL_SECONDS = range(5)
FIRST_WAIT, TOKEN_SUMS, SQUARE_SUMS, LOSS_VALUES, NORM_VALUES, WORK_KEYS, DATA_SECONDS = 5, *range(9, len(REPORTED))
NUM_WAITS = 4
"""Tensor, pipeline, gradient and vote, from ``FIRST_WAIT`` on."""

WHOLE = ("ranks", "incarnations", "replicas", "stages", "shards", "num_micro_batches", "epochs")
"""Whole numbers: who an entry is, and from ``FIRST_OF_LAYOUT`` on what seldom changes."""
RANKS, INCARNATIONS, FIRST_OF_LAYOUT = 0, 1, 2
COUNTS, EPOCHS = WHOLE.index("num_micro_batches"), WHOLE.index("epochs")

FLAGS = ("planned", "has_flops", "has_loss", "has_gradient_norm", "has_data_seconds")
"""What is true or not."""
PLANNED, HAS_FLOPS, HAS_LOSS, HAS_NORM, HAS_DATA = range(len(FLAGS))

_WAITS = REPORTED[FIRST_WAIT : FIRST_WAIT + NUM_WAITS]


def empty_tables(count: int, *num_frames: int) -> tuple[Floats, Ints, Bools]:
    """Tables of so many entries, to be written: ``REPORTED``, ``WHOLE`` and ``FLAGS`` by entries; of so many frames."""
    return (
        np.empty((*num_frames, len(REPORTED), count)),
        np.empty((*num_frames, len(WHOLE), count), dtype=np.int64),
        np.empty((*num_frames, len(FLAGS), count), dtype=np.bool_),
    )


def write_columns(
    tables: tuple[Floats, Ints, Bools], columns: Mapping[str, npt.NDArray[Any] | None]
) -> tuple[Floats, Ints, Bools]:
    """Writes columns into tables; returns these.

    Args:
        tables: As :func:`empty_tables` makes them.
        columns: By name: a row of a table; ``wait_seconds``, one row an entry; ``data_seconds`` may be None.

    Raises:
        KeyError: There is no such column.
    """
    for name, column in columns.items():
        if name == "wait_seconds":
            assert column is not None
            tables[0][FIRST_WAIT : FIRST_WAIT + NUM_WAITS] = column.T
            continue
        if name == "data_seconds":
            tables[2][HAS_DATA] = column is not None
        table, row = _PLACES[name]
        tables[table][row] = np.nan if column is None else column
    return tables


def _placed(names: Iterable[str], table: int) -> dict[str, tuple[int, int]]:
    return {name: (table, row) for row, name in enumerate(names) if name not in _WAITS}


_PLACES = _placed(REPORTED, 0) | _placed(WHOLE, 1) | _placed(FLAGS[:HAS_DATA], 2)
NUM_COLUMNS = len(_PLACES)
"""Columns that every frame has: those of the tables, with ``wait_seconds`` and without ``data_seconds``."""
