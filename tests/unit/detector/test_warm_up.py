"""What the service runs before its first frame reaches what is compiled, as the service will call it."""

from numba.core.dispatcher import Dispatcher

from evenkeel.services.detector.adapters import frame_codec, frame_columns, run_codec
from evenkeel.services.detector.domain import (
    bank_noise,
    device_bank,
    device_frame,
    device_offsets,
    device_tests,
    frame_centre,
    frame_table,
    job_profile,
    least_squares,
    loss_watch,
    middle,
    noise,
    pipeline_grid,
    recent_iterations,
    reported,
    rolling,
    strays,
    workload,
)
from evenkeel.services.detector.domain.kinds import jitter, periodic_pause, sequence_imbalance, stage_imbalance
from evenkeel.services.detector.warm_up import warm_up

MODULES = (
    *(
        bank_noise,
        device_bank,
        device_frame,
        device_offsets,
        device_tests,
        frame_centre,
        frame_table,
        job_profile,
        least_squares,
        loss_watch,
        middle,
        noise,
        recent_iterations,
    ),
    *(frame_codec, frame_columns, run_codec),
    *(pipeline_grid, reported, rolling, strays, workload),
    *(jitter, periodic_pause, sequence_imbalance, stage_imbalance),
)
# Called by others that are compiled, and so a part of them.
INNER = {
    *("_centre_of", "_log_ratio", "_ninetieth", "_quantile", "range_of", "_scored", "_sizes", "_sizes_of", "_spread"),
    *("_estimate", "_flat", "_leave_out", "_middle", "learn_healthy", "recentre", "renew_and_remember"),
    *("_are_alike", "_count", "_is_news", "_look_at", "_value_of", "_write_range"),
    *("_correlation", "_tip", "advance", "between_ranks", "middle_distance", "place", "radix_sorted", "selected"),
}


def num_compiled() -> dict[str, int]:
    """Of each compiled function, for how many combinations of arguments."""
    return {
        f"{module.__name__}.{name}": len(value.signatures)
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and name not in INNER
    }


def test_after_a_warm_up_everything_of_a_frame_is_compiled_and_a_second_one_compiles_nothing() -> None:
    warm_up()
    first = num_compiled()
    assert len(first) > 15
    assert [name for name, count in first.items() if count == 0] == []
    warm_up()
    assert num_compiled() == first
