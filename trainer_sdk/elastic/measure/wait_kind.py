"""What a rank of an engine waits for."""

from enum import StrEnum


class WaitKind(StrEnum):
    """Each is measured by itself; the progress mark names it after ``wait:``."""

    TENSOR = "tensor"
    PIPELINE = "pipeline"
    GRADIENT = "gradient"
    VOTE = "vote"


BETWEEN_OPERATIONS = "between operations"
"""What the progress mark says once a wait is over and nothing is computed yet."""
