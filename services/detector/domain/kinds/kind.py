"""What a kind of finding is: a watch over frames that says what it found, with facts and advice.

Each kind is a file in :mod:`evenkeel.services.detector.domain.kinds`; a new one is found by being there. Kinds see
every frame
and what is known of its devices, take what concerns them, remember what they need, and report. They accuse no hardware:
a sick device or link is found by its own test, and only those lead to a plan.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.findings.verdict import Evidence, Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A frame, and what is known of it; one entry a rank in every array.

    Attributes:
        frame: The frame.
        layout: Its layout; the same object as long as that stays the same.
        usable: Entries whose times count; none in an iteration with a planned pause.
        expected_seconds: What the work of each entry should take to compute; None while that is learned.
        residuals: Newest residuals of each entry's device, log units of time, newest last; NaN where there was none.
        ill: A slow verdict stands against the entry's device.
        limit: Nats of evidence for one false report in the operator's budget of iterations.
    """

    frame: FrameObservation
    layout: FrameLayout
    usable: Bools
    expected_seconds: Floats | None
    residuals: Floats
    ill: Bools
    limit: float

    @property
    def plain(self) -> bool:
        """An iteration like others: no planned pause, no reshape, the first ones of a job over."""
        return self.expected_seconds is not None and bool(self.usable.all())

    @property
    def some_ill(self) -> bool:
        """A slow verdict stands against somebody."""
        return bool(self.ill.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFinding:
    """What a kind found.

    Attributes:
        kind: What.
        ranks: Whom it concerns; empty for the job as a whole.
        throughput: Speed of the job, or of the rank, relative to what it would be without this.
        confidence: Probability that it is right.
        first_iteration: First iteration that showed it.
        evidence: Facts that a person can check.
        advice: What a person can do about it.
    """

    kind: VerdictKind
    ranks: tuple[int, ...] = ()
    throughput: float
    confidence: float
    first_iteration: int
    evidence: tuple[Evidence, ...]
    advice: str


class KindWatch(ABC):
    """Looks for one kind, frame by frame; deterministic, a dataclass whose fields are its state.

    Attributes:
        name: Names its state in snapshots; unique among kinds.
    """

    name: ClassVar[str]

    @abstractmethod
    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame: each that somebody reported in, once and in order, also planned and partial ones."""

    def revise(self, frame: FrameObservation, verdicts: list[Verdict]) -> list[Verdict]:
        """Takes what was found about devices in a frame whose times count; says what of it is to be published."""
        del frame
        return verdicts

    def begin_epoch(self) -> None:  # noqa: B027 - most kinds have nothing to forget
        """The layout changed."""

    def go_back(self, iteration: int) -> None:  # noqa: B027 - most kinds remember no iterations
        """The job goes on from this iteration, which it has done before: nothing remembered may be later than that."""
