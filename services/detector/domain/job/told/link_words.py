"""Slow communication in the words of a verdict."""

from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.told.words import confidence_of, distance_evidence
from evenkeel.services.detector.domain.links.complaint import LinkFinding


def link_verdict(frame: FrameObservation, finding: LinkFinding, culprits: tuple[Culprit, ...]) -> Verdict:
    """A link, an endpoint or a group became slow, changed its speed, or recovered.

    Args:
        frame: The frame that decided it.
        finding: What was found.
        culprits: Its ranks.
    """
    kind = VerdictKind.COMMUNICATION_RECOVERED if finding.recovered else VerdictKind.COMMUNICATION_SLOW
    ratio = 1 / finding.throughput
    count = finding.num_observations
    evidence = (
        Evidence(
            name="transfer seconds against the past and the class",
            value=ratio,
            unit="ratio",
            text=f"{_whose(finding.ranks)}: {ratio:.3f} times what it was, over {count} iterations",
        ),
        Evidence(
            name="measured transfer seconds",
            value=finding.measured_seconds,
            unit="s",
            text=f"of one operation in iteration {frame.iteration}, counted from when the last participant entered it",
        ),
        Evidence(
            name="expected transfer seconds",
            value=finding.expected_seconds,
            unit="s",
            text="of the same bytes over the same link or in the same group, as it was before",
        ),
        Evidence(
            name="peers",
            value=finding.peers,
            unit="ratio",
            text="median of the others of its class against their own past, in the same iteration",
        ),
        Evidence(
            name="links and groups that share it",
            value=float(finding.num_links),
            unit="",
            text="measured one by one and slow together",
        ),
        distance_evidence(finding.distance, finding.scale),
    )
    return Verdict(
        verdict_id=verdict_id(frame.job_id, kind, _who(finding.ranks), frame.epoch, frame.iteration),
        job_id=frame.job_id,
        kind=kind,
        culprits=culprits,
        throughput=finding.throughput,
        throughput_margin=finding.margin,
        confidence=confidence_of(finding.distance),
        first_iteration=finding.first_iteration,
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=evidence,
    )


def _who(ranks: tuple[int, ...]) -> str:
    return "-".join(str(rank) for rank in ranks)


def _whose(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"all links of rank {ranks[0]}"
    if len(ranks) == 2:
        return f"the link between rank {ranks[0]} and rank {ranks[1]}"
    shown = ", ".join(str(rank) for rank in ranks[:16])
    return f"the group of ranks {shown}{', ...' if len(ranks) > 16 else ''}"
