"""Evenkeel's detector as a contender: the very code of the service, fed with the frames that messages become."""

from dataclasses import dataclass

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.frames import frames_of
from benchmarks.detection.traces.traces import Trace
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector


@dataclass(frozen=True, slots=True)
class Evenkeel:
    """Only accusations of devices count as findings; a re-estimate of a known one is not another alarm."""

    iterations_per_false_alarm: float = 100_000.0
    name: str = "Evenkeel"

    def findings(self, trace: Trace) -> list[Finding]:
        """All accusations over the trace, the newest severity of each in the finding that opened it."""
        detector = JobDetector(trace.name, iterations_per_false_alarm=self.iterations_per_false_alarm)
        opened: dict[int, Finding] = {}
        closed: list[Finding] = []
        for frame in frames_of(trace):
            for verdict in detector.observe(frame):
                if not isinstance(verdict, Verdict):
                    continue
                for culprit in verdict.culprits:
                    if verdict.kind is VerdictKind.RECOVERED and culprit.rank in opened:
                        closed.append(opened.pop(culprit.rank))
                    elif verdict.kind is VerdictKind.COMPUTE_SLOW:
                        first = opened.get(culprit.rank)
                        opened[culprit.rank] = Finding(
                            iteration=first.iteration if first else verdict.decided_iteration,
                            ranks=(culprit.rank,),
                            throughput=verdict.throughput,
                        )
        return sorted([*closed, *opened.values()], key=lambda finding: finding.iteration)
