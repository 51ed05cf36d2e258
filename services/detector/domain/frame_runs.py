"""Frames that may be taken together: how many of those that are there."""

from collections.abc import Sequence

from evenkeel.services.detector.domain.observation import FrameObservation, Observation

MOST_FRAMES, MOST_SAMPLES = 64, 4096
"""A block of frames is of so many at most, and in each but the first of so many samples together."""


def frames_in_a_row(frame: FrameObservation, observations: Sequence[Observation], place: int) -> list[FrameObservation]:
    """A frame and those that follow it at once, of the same epoch and as many ranks; few enough for one block.

    Args:
        frame: The first of them.
        observations: What is there.
        place: Of the frame.
    """
    count, epoch = len(frame), frame.epoch
    frames, last = [frame], frame
    for other in observations[place + 1 : place + min(MOST_FRAMES, 1 + MOST_SAMPLES // max(count, 1))]:
        if (
            not isinstance(other, FrameObservation)
            or other.epoch != epoch
            or other.iteration <= last.iteration
            or other.sequence <= last.sequence
            or other.missing_ranks
            or len(other) != count
        ):
            break
        frames.append(other)
        last = other
    return frames
