"""Batches out of the records of the version before: as many as a record has epochs and positions."""

from itertools import groupby

from evenkeel.contracts.columns import HAS_FLOPS, HAS_INPUT, HAS_LOSS, HAS_NORM, ITERATION, PRESENT
from evenkeel.telemetry.v1 import telemetry_pb2 as old
from evenkeel.telemetry.v2 import batch_pb2, process_pb2


def batches_of(record: old.Record) -> list[batch_pb2.Batch]:
    """The same in batches, at least one."""
    batches = []
    for _, samples in groupby(record.samples, key=lambda each: (each.epoch, each.position.SerializeToString())):
        batches.append(_batch(record, list(samples)))
    batches = batches or [_batch(record, [])]
    first = batches[0]
    first.num_progress[0], first.num_events[0] = len(record.progress), len(record.events)
    first.progress.extend(process_pb2.Progress.FromString(each.SerializeToString()) for each in record.progress)
    first.events.extend(process_pb2.ProcessEvent.FromString(each.SerializeToString()) for each in record.events)
    return batches


def _batch(record: old.Record, samples: list[old.Sample]) -> batch_pb2.Batch:
    position = samples[0].position if samples else old.Position()
    batch = batch_pb2.Batch(
        job_id=[record.job_id],
        node=[record.node],
        device=[record.device],
        rank=[record.rank],
        incarnation=[record.incarnation],
        epoch=[samples[0].epoch if samples else 0],
        replica=[position.replica],
        stage=[position.stage],
        shard=[position.shard],
        sequence=[record.sequence],
        num_dropped=[record.num_dropped],
        forward_flops_per_token=[position.forward_flops_per_token],
        forward_flops_per_squared_length=[position.forward_flops_per_squared_length],
        backward_multiple=[position.backward_multiple],
        num_iterations=[len(samples)],
        num_readings=[0],
        num_progress=[0],
        num_events=[0],
    )
    for sample in samples:
        _add(batch, sample)
    return batch


def _add(batch: batch_pb2.Batch, sample: old.Sample) -> None:
    listed = [(each, False) for each in sample.micro_batches] + [(each, True) for each in sample.kept_micro_batches]
    flags = PRESENT | HAS_INPUT
    flags |= HAS_LOSS if sample.HasField("loss") else 0
    flags |= HAS_NORM if sample.HasField("gradient_norm") else 0
    price = sample.position.forward_flops_per_token + sample.position.forward_flops_per_squared_length
    flags |= HAS_FLOPS if price > 0 else 0
    traffic = sample.traffic
    values: dict[str, float] = {
        "iteration": sample.iteration,
        "started_at_unix_seconds": sample.started_at_unix_seconds,
        "wall_seconds": sample.wall_seconds,
        "forward_seconds": sample.compute.forward,
        "backward_seconds": sample.compute.backward,
        "optimizer_seconds": sample.compute.optimizer,
        "input_seconds": sample.compute.data,
        "wait_tensor_seconds": sample.waiting.tensor,
        "wait_pipeline_seconds": sample.waiting.pipeline,
        "wait_gradient_seconds": sample.waiting.gradient,
        "wait_vote_seconds": sample.waiting.vote,
        "tokens": sum(each.tokens for each in sample.micro_batches),
        "sum_of_squares": sum(each.sum_of_squares for each in sample.micro_batches),
        "num_micro_batches": len(sample.micro_batches),
        "loss": sample.loss,
        "gradient_norm": sample.gradient_norm,
        "peak_memory_bytes": sample.peak_memory_bytes,
        "mark": sample.mark,
        "flags": flags,
        "num_listed": len(listed),
        "num_channels": len(traffic.kinds),
    }
    for column in ITERATION:
        getattr(batch, column.name).append(values.get(column.name, 0))
    for each, kept in listed:
        batch.listed_index.append(each.index)
        batch.listed_tokens.append(each.tokens)
        batch.listed_squares.append(each.sum_of_squares)
        batch.listed_kept.append(kept)
    batch.channel_kind.extend(batch_pb2.ChannelKind.ValueType(kind) for kind in traffic.kinds)
    batch.channel_party.extend(traffic.parties)
    batch.channel_num_members.extend(traffic.num_members)
    batch.channel_num_operations.extend(traffic.num_operations)
    batch.channel_bytes.extend(traffic.num_bytes)
    batch.channel_wait_microseconds.extend([0] * len(traffic.kinds))
    batch.channel_num_stamped.extend(traffic.num_stamped)
    entered, took, sizes = (
        iter(traffic.entered_microseconds),
        iter(traffic.took_microseconds),
        iter(traffic.stamped_bytes),
    )
    for kind, count in zip(traffic.kinds, traffic.num_stamped, strict=True):
        sends = kind in (old.CHANNEL_KIND_ACTIVATION_SENT, old.CHANNEL_KIND_GRADIENT_SENT)
        for _ in range(count):
            batch.stamp_entered_microseconds.append(0 if kind == old.CHANNEL_KIND_COLLECTIVE else next(entered))
            batch.stamp_took_microseconds.append(0 if sends else next(took))
            batch.stamp_bytes.append(0 if sends else next(sizes))
