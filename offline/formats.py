"""What a recording may hold."""

from enum import StrEnum


class RecordingFormat(StrEnum):
    """What a recording holds: the recorded topic, operations, iterations of ranks, or one series of iteration times."""

    SAMPLES = "samples"
    OPS = "ops"
    ITERATIONS = "iterations"
    SERIES = "series"
