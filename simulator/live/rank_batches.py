"""What processes of a simulated job emit: batches that telemetry makes frames of."""

from collections.abc import Sequence
from typing import Any

from evenkeel.contracts.columns import ITERATION, LISTED, PROCESS, tell_process
from evenkeel.contracts.frames import MEMBER, Frames
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2

_OF_MEMBERS = tuple(column.name for column in MEMBER if column in PROCESS and column.name != "incarnation")


def batch_of(frame: Frames, place: int, *, job_id: str, incarnation: int, sequence: int, mark: int = 0) -> pb.Batch:
    """A batch of one iteration, without channels.

    Args:
        frame: One frame of all ranks.
        place: Which of its members.
        job_id: Its job.
        incarnation: Which process of the rank speaks.
        sequence: Number of its batch.
        mark: What kind of iteration it was.
    """
    members = frame.members
    told: dict[str, Any] = {
        "job_id": job_id,
        "node": members.nodes[place],
        "device": members.devices[place],
        "epoch": frame.epoch,
        "incarnation": incarnation,
        "sequence": sequence,
        "num_iterations": 1,
    }
    told |= {name: getattr(members, name)[place].item() for name in _OF_MEMBERS}
    batch = empty_batch(**told)
    values = {"iteration": frame.iteration[0], "mark": mark, "num_channels": 0}
    for column in ITERATION:
        value = values[column.name] if column.name in values else getattr(frame, column.name)[0, place]
        getattr(batch, column.name).append(value.item() if hasattr(value, "item") else value)
    stop = int(frame.num_listed[0, : place + 1].sum())
    for column in LISTED:
        listed = getattr(frame, column.name)[stop - int(frame.num_listed[0, place]) : stop]
        getattr(batch, column.name).extend(listed.tolist())
    return batch


def empty_batch(**told: Any) -> pb.Batch:
    """A batch that says who speaks, of no iterations unless they are told of; what is not told is zero."""
    batch = pb.Batch()
    tell_process(batch, **told)
    return batch


def add_news(
    batch: pb.Batch,
    *,
    progress: Sequence[process_pb2.Progress] = (),
    events: Sequence[process_pb2.ProcessEvent] = (),
) -> pb.Batch:
    """The batch, with reports and events in it."""
    batch.num_progress[0], batch.num_events[0] = len(progress), len(events)
    batch.progress.extend(progress)
    batch.events.extend(events)
    return batch
