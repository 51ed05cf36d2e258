"""Frames as the rules look at them: those who reported, with nothing in their numbers that cannot be a measurement."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from evenkeel.contracts.columns import HAS_CPU, HAS_FLOPS, HAS_INPUT, HAS_LOSS, HAS_NORM, HAS_QUEUED
from evenkeel.contracts.frames import Frames
from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.traffic import ChannelKind, TrafficObservation

_MICROSECOND = 1e-6
# Beyond any seconds or operations there are, and far from where their products overflow.
_LARGEST_NUMBER = 1e40
_OF_THREADS = ("core_seconds", "queued_seconds")
_WAITS = ("wait_tensor_seconds", "wait_pipeline_seconds", "wait_gradient_seconds", "wait_vote_seconds")


def observations_of(job_id: str, sequence: int, frames: Frames) -> Iterator[FrameObservation]:
    """Each frame of its own.

    Args:
        job_id: Their job.
        sequence: Number of the first one.
        frames: The frames.
    """
    members = frames.members
    whose: dict[str, Any] = {
        "ranks": members.rank,
        "incarnations": members.incarnation,
        "replicas": members.replica,
        "stages": members.stage,
        "shards": members.shard,
    }
    columns: dict[str, Any] = {
        "planned": frames.mark != 0,
        "losses": np.where(frames.has(HAS_LOSS), frames.loss, np.nan),
        "has_loss": frames.has(HAS_LOSS),
        "gradient_norms": np.where(frames.has(HAS_NORM), frames.gradient_norm, np.nan),
        "has_gradient_norm": frames.has(HAS_NORM),
        **_seconds(frames),
        **_work(frames),
    }
    nodes, devices, has_input = members.nodes, members.devices, frames.has(HAS_INPUT)
    for place, frame in enumerate(frames.each()):
        here = np.flatnonzero(frame.present[0])
        whole = len(here) == len(members)
        told = {name: values[place] for name, values in columns.items()} | whose
        told = told if whole else {name: values[here] for name, values in told.items()}
        data_seconds = told.pop("data_seconds")
        threads = {name: told.pop(name) for name in _OF_THREADS}
        has_threads = bool((np.isfinite(threads["core_seconds"]) | (told["compute_seconds"] <= 0)).all())
        yield FrameObservation(
            job_id=job_id,
            sequence=sequence + place,
            iteration=int(frame.iteration[0]),
            epoch=frame.epoch,
            closed_at_unix_seconds=float(frame.closed_at_unix_seconds[0]),
            missing_ranks=() if whole else tuple(members.rank[~frame.present[0]].tolist()),
            nodes=nodes if whole else tuple(nodes[one] for one in here.tolist()),
            devices=devices if whole else tuple(devices[one] for one in here.tolist()),
            data_seconds=data_seconds if has_input[place][here].any() else None,
            micro_batches=_micro_batches(frame),
            readings=_readings(frame),
            traffic=_traffic(frame, here),
            **(threads if has_threads else {}),
            **told,
        )


def _seconds(frames: Frames) -> dict[str, Floats]:
    """Seconds, NaN where they cannot be: one rank's nonsense must not spoil its frame."""
    has_threads = frames.has(HAS_CPU) & frames.has(HAS_QUEUED)
    columns = {
        "compute_seconds": frames.forward_seconds + frames.backward_seconds,
        "other_seconds": frames.optimizer_seconds + frames.input_seconds,
        "wall_seconds": frames.wall_seconds,
        "data_seconds": frames.input_seconds,
        "core_seconds": np.where(has_threads, frames.cpu_seconds, np.nan),
        "queued_seconds": np.where(has_threads, frames.queued_seconds, np.nan),
        "wait_seconds": np.stack([getattr(frames, name) for name in _WAITS], axis=-1),
    }
    return {
        name: np.where((values >= 0.0) & (values < _LARGEST_NUMBER), values, np.nan) for name, values in columns.items()
    }


def _work(frames: Frames) -> dict[str, Any]:
    """Work, all 0 where a part of it cannot be.

    A loop that does not say what its model costs has tokens in place of operations; where it does not say those either,
    each of its iterations is like any other.
    """
    members, tokens, squares = frames.members, frames.tokens.astype(np.float64), frames.sum_of_squares
    passes = 1.0 + members.backward_multiple
    price = members.forward_flops_per_token + math.pi * members.forward_flops_per_squared_length
    known = frames.has(HAS_FLOPS) & (price > 0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond numbers is thrown out
        of_tokens = np.where(
            known, members.forward_flops_per_token * tokens * passes, np.where(tokens > 0, tokens, 1.0)
        )
        of_squares = np.where(known, members.forward_flops_per_squared_length * squares * passes, 0.0)
        keys = np.where(known, passes * price, -1.0 - members.stage)
    columns = {
        "token_flops": of_tokens,
        "square_flops": of_squares,
        "tokens": tokens,
        "sums_of_squares": squares,
        "work_keys": keys,
    }
    can_be = np.ones(known.shape, dtype=np.bool_)
    for values in columns.values():
        can_be &= np.abs(values) < _LARGEST_NUMBER
    counts = np.where(known | (tokens > 0), frames.num_micro_batches, np.maximum(frames.num_micro_batches, 1))
    return {
        **{name: np.where(can_be, values, 0.0) for name, values in columns.items()},
        "num_micro_batches": np.where(can_be, counts, 0),
        "has_flops": can_be & known,
    }


def _micro_batches(frame: Frames) -> Floats | None:
    """Index, tokens and sum of squares, one row each time that somebody names one of the iteration."""
    run = frame.listed_kept == 0
    named: Floats = np.column_stack((frame.listed_index[run], frame.listed_tokens[run], frame.listed_squares[run]))
    return named


def _readings(frame: Frames) -> Floats | None:
    """Rank and seconds throttled so far, one row a reading of a host."""
    if not len(frame.reading_of):
        return None
    ranks = frame.members.rank[frame.reading_of]
    return np.column_stack((ranks, frame.throttled_seconds))


def _traffic(frame: Frames, here: Ints) -> TrafficObservation | None:
    """Operations between those who reported; None where nobody measures them."""
    if not len(frame.channel_kind):
        return None
    kinds, stamped = frame.channel_kind, frame.channel_num_stamped
    of_stamps = np.repeat(kinds, stamped)
    enters = of_stamps != ChannelKind.COLLECTIVE
    takes = (of_stamps != ChannelKind.ACTIVATION_SENT) & (of_stamps != ChannelKind.GRADIENT_SENT)
    return TrafficObservation(
        started_at_unix_seconds=frame.started_at_unix_seconds[0][here],
        owners=np.repeat(np.arange(len(here)), frame.num_channels[0][here]),
        kinds=kinds,
        parties=frame.channel_party,
        num_members=frame.channel_num_members,
        num_operations=frame.channel_num_operations,
        num_stamped=stamped,
        entered_seconds=frame.stamp_entered_microseconds[enters] * _MICROSECOND,
        took_seconds=frame.stamp_took_microseconds[takes] * _MICROSECOND,
        num_bytes=frame.stamp_bytes[takes].astype(np.float64),
    )
