"""A plan on the wire, as a scheduler sends it."""

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.layouts.codec import layout_to_proto
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

_MODES = {ApplyMode.BOUNDARY: pb.APPLY_MODE_BOUNDARY, ApplyMode.RECOVER: pb.APPLY_MODE_RECOVER}


def reshape_to_proto(reshape: Reshape) -> pb.Reshape:
    return pb.Reshape(
        job_id=reshape.job_id,
        plan_id=reshape.plan_id,
        epoch=reshape.epoch,
        mode=_MODES[reshape.mode],
        to_layout=layout_to_proto(reshape.to_layout),
        term=reshape.term,
    )


def commit_to_proto(commit: Commit) -> pb.CommitRequest:
    return pb.CommitRequest(
        reshape=reshape_to_proto(commit.reshape),
        from_epoch=commit.from_epoch,
        from_layout=layout_to_proto(commit.from_layout),
        sources=commit.sources,
        steps_applied=commit.steps_applied,
        stand_ins=[pb.StandIn(owner=one.owner, keeper=one.keeper) for one in commit.stand_ins],
        from_checkpoint=commit.from_checkpoint,
    )
