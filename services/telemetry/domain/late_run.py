"""Tells a job that started over, or whose numbering was spoiled, from one with a few late samples. Pure."""

from evenkeel.services.telemetry.domain.frame_rules import FrameRules


class LateRun:
    """Iterations of which every sample was older than the newest closed frame, since the last sample in time."""

    def __init__(self) -> None:
        """Starts with none."""
        self._num_iterations = 0
        self._newest = (-1, -1)
        self._joined_at_seconds = 0.0

    def joined(self, now_seconds: float) -> None:
        """A sample came in time."""
        self._num_iterations = 0
        self._newest = (-1, -1)
        self._joined_at_seconds = now_seconds

    def late(self, key: tuple[int, int]) -> None:
        """A sample of this (epoch, iteration) came too late."""
        if key > self._newest:  # the same one over and over is a repetition, not a job that goes on
            self._newest = key
            self._num_iterations += 1

    def is_lost(self, rules: FrameRules, now_seconds: float) -> bool:
        """Whether so many came, and for so long, that the frames must begin anew."""
        in_time = self._num_iterations < rules.lost_iterations
        return not in_time and now_seconds - self._joined_at_seconds >= rules.lost_seconds
