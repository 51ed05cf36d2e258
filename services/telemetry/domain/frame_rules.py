"""How long frames wait for ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRules:
    """When to stop waiting.

    Attributes:
        least_patience_seconds: A frame is open at least so long, from its first sample, before its time is over.
        patience_iterations: The same in iterations of the job; the longer of the two counts.
        most_patience_seconds: Upper limit of both.
        grace_seconds: How long a frame of an older epoch stays open once a newer epoch has begun.
        max_open_frames: More than so many are not open, except
        max_open_samples: as many as hold so many samples when they are whole: after an outage ranks send what they kept
            one after the other.
        max_missed: A rank that missed so many frames in a row is listed as missing, but no longer waited for.
        lost_iterations: After so many iterations of which every sample is older than the newest closed frame,
        lost_seconds: and so long without any sample in time, the job is taken to have started over (or its numbering
            to have been spoiled): joining begins anew.
    """

    least_patience_seconds: float = 0.5
    patience_iterations: float = 2.0
    most_patience_seconds: float = 120.0
    grace_seconds: float = 0.25
    max_open_frames: int = 8
    max_open_samples: int = 4096
    max_missed: int = 3
    lost_iterations: int = 20
    lost_seconds: float = 10.0
