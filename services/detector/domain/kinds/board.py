"""All kinds of :mod:`evenkeel.services.detector.domain.kinds`, found by being there, over one job."""

import importlib
import inspect
import math
import pkgutil
from dataclasses import dataclass, field
from functools import cache

from evenkeel.services.detector.domain import kinds
from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, verdict_id
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.state import GIVEN


@cache
def known_kinds() -> tuple[type[KindWatch], ...]:
    """Every kind that has a file, by name.

    Raises:
        ValueError: Two kinds have one name.
    """
    found: dict[str, type[KindWatch]] = {}
    for module in pkgutil.iter_modules(kinds.__path__):
        loaded = importlib.import_module(f"{kinds.__name__}.{module.name}")
        for _, each in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(each, KindWatch) and each.__module__ == loaded.__name__ and not inspect.isabstract(each):
                if each.name in found:
                    raise ValueError(f"two kinds are called {each.name!r}: rename one")
                found[each.name] = each
    return tuple(found[name] for name in sorted(found))


@dataclass(slots=True, eq=False, kw_only=True)
class KindBoard:
    """Shows each frame to all kinds.

    Attributes:
        iterations_per_false_alarm: The operator's budget; the kinds share one more like that of the devices.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    _watches: dict[str, KindWatch] = field(default_factory=lambda: {kind.name: kind() for kind in known_kinds()})

    def limit(self, num_devices: int) -> float:
        """Nats of evidence for one false report in the operator's budget, of so many devices."""
        kinds = math.log(max(self.iterations_per_false_alarm, 10.0) * len(self._watches))
        return kinds + math.log(max(num_devices, 1))

    def begin_epoch(self) -> None:
        """The layout changed."""
        for watch in self._watches.values():
            watch.begin_epoch()

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before."""
        for watch in self._watches.values():
            watch.go_back(iteration)

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame, and what is known of it."""
        return [finding for watch in self._watches.values() for finding in watch.observe(look)]

    def revise(self, frame: FrameObservation, verdicts: list[Verdict]) -> list[Verdict]:
        """What of the verdicts about devices is to be published now."""
        for watch in self._watches.values():
            verdicts = watch.revise(frame, verdicts)
        return verdicts


def kind_verdict(frame: FrameObservation, finding: KindFinding, culprits: tuple[Culprit, ...]) -> Verdict:
    """A kind's finding in the words of a verdict; the advice is its last piece of evidence."""
    who, what = "-".join(str(rank) for rank in finding.ranks) or "job", finding.evidence[0].name
    advice = Evidence(name="advice", value=0.0, unit="", text=finding.advice)
    return Verdict(
        verdict_id=verdict_id(frame.job_id, finding.kind, who, what, frame.epoch, frame.iteration),
        job_id=frame.job_id,
        kind=finding.kind,
        culprits=culprits,
        throughput=finding.throughput,
        confidence=finding.confidence,
        first_iteration=finding.first_iteration,
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=(*finding.evidence, advice),
    )
