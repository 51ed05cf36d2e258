"""Samples, events and progress with only what a test cares about."""

from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress, ArrivedSample, EventKind


def sample(
    rank: int, iteration: int, *, epoch: int = 0, incarnation: int = 0, wall_seconds: float = 0.1, offset: int = 0
) -> ArrivedSample:
    return ArrivedSample(
        rank, incarnation, f"node-{rank // 4}", f"device-{rank}", epoch, iteration, wall_seconds, offset, None
    )


def progress(rank: int, operation_count: int, *, incarnation: int = 0, seconds: float = 0.0) -> ArrivedProgress:
    return ArrivedProgress(rank, incarnation, operation_count, seconds, f"payload-{rank}-{operation_count}")


def event(kind: EventKind, rank: int, *, incarnation: int = 0, at_seconds: float = 1.0) -> ArrivedEvent:
    return ArrivedEvent(at_seconds, kind, rank, incarnation, None)
