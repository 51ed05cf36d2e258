"""Observations one by one, for those who read few: a run of frames is as many of them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

ONCE = (
    *("names", "ranks", "incarnations", "node_of", "device_of", "replicas", "stages", "shards"),
    *("forward_flops_per_token", "forward_flops_per_squared_length", "backward_multiple"),
)
"""Columns that a run tells once for all of its frames: who an entry is."""

_SIZES, _NAMED = "workload_sizes", ("micro_batch_indexes", "micro_batch_tokens", "micro_batch_sums_of_squares")
_OTHERS = tuple(
    name for name in pb.FrameColumns.DESCRIPTOR.fields_by_name if name not in (*ONCE, _SIZES, *_NAMED, "traffic")
)


def unrolled(observation: pb.Observation) -> Iterator[pb.Observation]:
    """The observation itself; of a run one observation a frame, numbered from that of the run on.

    Raises:
        ValueError: What the run says does not fit together.
    """
    if observation.WhichOneof("observed") != "run":
        yield observation
        return
    run, columns = observation.run, observation.run.columns
    num_frames, sizes = len(run.iterations), columns.workload_sizes
    if not num_frames or {len(run.closed_at_unix_seconds), len(run.last_sample_at_unix_seconds)} != {num_frames}:
        raise ValueError(f"a run of {num_frames} frames that does not say of each when it closed")
    if len(sizes) % num_frames or min(sizes, default=0) < 0:
        raise ValueError(f"{len(sizes)} lists of micro-batches for {num_frames} frames, or less than empty ones")
    num_lists, ends = len(sizes) // num_frames, [0, *accumulate(sizes)]
    for place, iteration in enumerate(run.iterations):
        one = pb.Observation(job_id=observation.job_id, sequence=observation.sequence + place)
        one.frame.iteration, one.frame.epoch = iteration, run.epoch
        one.frame.closed_at_unix_seconds = run.closed_at_unix_seconds[place]
        one.frame.last_sample_at_unix_seconds = run.last_sample_at_unix_seconds[place]
        first, stop = place * num_lists, (place + 1) * num_lists
        parts = {name: getattr(columns, name) for name in ONCE}
        parts |= {name: _of_frame(columns, name, place, num_frames) for name in _OTHERS}
        parts |= {name: getattr(columns, name)[ends[first] : ends[stop]] for name in _NAMED}
        parts[_SIZES] = sizes[first:stop]
        for name, values in parts.items():
            getattr(one.frame.columns, name).extend(values)
        yield one


def _of_frame(columns: pb.FrameColumns, name: str, place: int, num_frames: int) -> Sequence[Any]:
    values, num_entries = getattr(columns, name), len(columns.ranks)
    if len(values) == num_frames * num_entries:
        return values[place * num_entries : (place + 1) * num_entries]  # type: ignore[no-any-return] # by its name
    if len(values) not in (0, num_entries):
        raise ValueError(f"{name} has {len(values)} values, not {num_entries} for each of {num_frames} frames")
    return values  # type: ignore[no-any-return] # the same
