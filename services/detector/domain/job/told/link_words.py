"""Slow communication in the words of a verdict."""

from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.probe_reports import LinkProbeReport
from evenkeel.services.detector.domain.job.told.words import confidence_of, distance_evidence
from evenkeel.services.detector.domain.links.complaint import LinkFinding
from evenkeel.services.detector.domain.probes.link_probes import LinkAccusation


def link_probe_evidence(probe: LinkProbeReport) -> Evidence:
    """What a probe of a link found."""
    (low, high), (peer_low, peer_high) = probe.ends, probe.peer_ends
    text = (
        f"{probe.num_bytes} bytes there and back between ranks {low} and {high} took {1000 * probe.seconds:.2f} ms, "
        f"{1000 * probe.peer_seconds:.2f} ms between ranks {peer_low} and {peer_high} at the same time "
        f"(iteration {probe.iteration})"
    )
    return Evidence(
        name="probe against a healthy link", value=probe.seconds / probe.peer_seconds, unit="ratio", text=text
    )


def link_probe_verdict(
    job_id: str, probe: LinkProbeReport, accusation: LinkAccusation, culprits: tuple[Culprit, ...], at: float
) -> Verdict:
    """What was called slow before the probe of its link was done: the same accusation, with the probe's figures."""
    kind = VerdictKind.COMMUNICATION_SLOW
    who = _who(accusation.ranks)
    return Verdict(
        verdict_id=verdict_id(job_id, kind, "probe", who, accusation.first_iteration, probe.iteration),
        job_id=job_id,
        kind=kind,
        culprits=culprits,
        throughput=accusation.throughput,
        throughput_margin=accusation.margin,
        confidence=accusation.confidence,
        first_iteration=accusation.first_iteration,
        decided_iteration=probe.iteration,
        decided_at_unix_seconds=at,
        evidence=(link_probe_evidence(probe),),
    )


def link_verdict(
    frame: FrameObservation,
    finding: LinkFinding,
    culprits: tuple[Culprit, ...],
    probe: LinkProbeReport | None = None,
) -> Verdict:
    """A link, an endpoint or a group became slow, changed its speed, or recovered.

    Args:
        frame: The frame that decided it.
        finding: What was found.
        culprits: Its ranks.
        probe: What a probe of one of its links found in time.
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
        *((link_probe_evidence(probe),) if probe is not None else ()),
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
