"""Where links and groups stand in their tests, as far as it matters to whom is probed."""

from dataclasses import dataclass

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.ties import Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class TieStanding:
    """Where links between two ranks, and groups of more, stand in their tests; one entry each.

    Attributes:
        ties: What they are.
        evidence: Against each, as a part of what a verdict takes.
        ill: It is slow, or shares what is slow.
        classes: Equal where they are alike, but for the sizes of groups.
        faults: Equal where they share what was told of them; -1 where nothing was.
        endpoints: The rank to whom all of that is put down; -1 where it is the tie's own.
        since: First iteration that showed it; -1 where it is not ill.
        num_bytes: Bytes of a transfer that takes about a millisecond over a healthy link of the class.
    """

    ties: Ties
    evidence: Floats
    ill: Bools
    classes: Ints
    faults: Ints
    endpoints: Ints
    since: Ints
    num_bytes: Ints
