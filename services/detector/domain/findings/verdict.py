"""What the detector finds: verdicts with culprits and evidence.

A verdict's id is a pure function of what it says about whom, so a finding published again after a restart is the same
verdict and readers drop the second one.
"""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.contracts import verdict_ids


class VerdictKind(StrEnum):
    """Kinds of verdicts that this detector reaches."""

    FAIL_STOP = "fail_stop"
    HANG = "hang"
    COMPUTE_SLOW = "compute_slow"
    NOT_FINITE = "not_finite"
    SPIKE = "spike"
    RECOVERED = "recovered"
    REJOINED = "rejoined"
    COMMUNICATION_SLOW = "communication_slow"
    COMMUNICATION_RECOVERED = "communication_recovered"
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    JITTER = "jitter"
    SUSPECTED_CORRUPTION = "suspected_corruption"
    INPUT_STALL = "input_stall"
    PERIODIC_PAUSE = "periodic_pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One process accused or cleared, and where it runs; node and device are empty when they were never heard of."""

    rank: int
    incarnation: int
    node: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact behind a verdict that a person can check."""

    name: str
    value: float
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One finding.

    Attributes:
        verdict_id: See :func:`verdict_id`.
        job_id: Job.
        kind: What.
        culprits: Who.
        throughput: The culprit's throughput: 1 = healthy, 0 = dead.
        throughput_margin: Half-width of its 95 % interval.
        confidence: Probability that the verdict is right, 0 to 1.
        first_iteration: First iteration that showed it.
        decided_iteration: Iteration at which it was decided.
        decided_at_unix_seconds: When, on the clock of the data.
        evidence: What it rests on.
    """

    verdict_id: str
    job_id: str
    kind: VerdictKind
    culprits: tuple[Culprit, ...]
    throughput: float
    throughput_margin: float = 0.0
    confidence: float
    first_iteration: int
    decided_iteration: int
    decided_at_unix_seconds: float
    evidence: tuple[Evidence, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of its culprits."""
        return tuple(culprit.rank for culprit in self.culprits)


def verdict_id(job_id: str, kind: VerdictKind, *what: object) -> str:
    """The id of a finding: the same job, kind and particulars always give the same id."""
    return verdict_ids.verdict_id(job_id, kind.value, *what)
