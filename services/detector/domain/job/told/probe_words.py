"""What a probe found, in the words of a verdict."""

from dataclasses import replace

from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport


def with_probe(verdict: Verdict, probe: ProbeReport | None) -> Verdict:
    """A verdict, with what a probe found in time, if one did."""
    return verdict if probe is None else replace(verdict, evidence=(*verdict.evidence, _evidence(probe)))


def told_again(verdict: Verdict, probe: ProbeReport, culprits: tuple[Culprit, ...], at_unix_seconds: float) -> Verdict:
    """What was called slow before its probe was done: the same accusation, with the probe's figures.

    Args:
        verdict: The accusation.
        probe: The probe.
        culprits: Whom the accusation names, as they are now.
        at_unix_seconds: When the report of the probe came.
    """
    if verdict.kind is VerdictKind.COMPUTE_SLOW:
        who: tuple[object, ...] = (*probe.ranks, *probe.incarnations)
    else:
        who = "-".join(map(str, verdict.ranks)), verdict.first_iteration
    return replace(
        verdict,
        verdict_id=verdict_id(verdict.job_id, verdict.kind, "probe", *who, probe.iteration),
        culprits=culprits,
        decided_iteration=probe.iteration,
        decided_at_unix_seconds=at_unix_seconds,
        evidence=(_evidence(probe),),
    )


def _evidence(probe: ProbeReport) -> Evidence:
    took, peer_took = f"{1000 * probe.seconds:.2f} ms", f"{1000 * probe.peer_seconds:.2f} ms"
    if len(probe.ranks) == 1:
        name, what = "probe against a peer", f"a product of {probe.size} x {probe.size} matrices took {took}"
        beside = f"on rank {probe.peers[0]}"
    else:
        (low, high), (peer_low, peer_high) = probe.ranks, probe.peers
        name = "probe against a healthy link"
        what = f"{probe.size} bytes there and back between ranks {low} and {high} took {took}"
        beside = f"between ranks {peer_low} and {peer_high}"
    text = f"{what}, {peer_took} {beside} at the same time (iteration {probe.iteration})"
    return Evidence(name=name, value=probe.ratio, unit="ratio", text=text)
