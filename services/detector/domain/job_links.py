"""What a job's frames say of its links: nothing is kept of them where no rank measures transfers."""

from typing import Any

from evenkeel.services.detector.domain.link_watch import LinkWatch
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.services.detector.domain.probing import Probing
from evenkeel.services.detector.domain.suspicion import Suspicion
from evenkeel.services.detector.domain.verdict import Verdict


class JobLinks:
    """Watches links from the first frame on in which somebody measures transfers.

    Args:
        probing: Who asks and tells.
        iterations_per_false_alarm: The operator's budget for the job.
    """

    __slots__ = ("_iterations_per_false_alarm", "_probing", "_watch")

    def __init__(self, probing: Probing, *, iterations_per_false_alarm: float) -> None:
        self._probing = probing
        self._iterations_per_false_alarm = iterations_per_false_alarm
        self._watch: LinkWatch | None = None

    def observe(self, frame: FrameObservation) -> list[Verdict | Suspicion]:
        """Takes the next frame; what is to be told of links, and whom to ask about them."""
        found: list[Verdict | Suspicion] = []
        if frame.traffic is not None:
            if self._watch is None:
                self._watch = self._new_watch()
                self._watch.begin_epoch()
            found += [self._probing.link_verdict(frame, link) for link in self._watch.observe(frame)]
        if self._watch is not None:
            found += self._probing.suspect_link(frame, self._watch)
        return found

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before."""
        if self._watch is not None:
            self._watch.go_back(iteration)

    def begin_epoch(self) -> None:
        """The layout changed."""
        if self._watch is not None:
            self._watch.begin_epoch()

    def to_state(self) -> dict[str, Any]:
        """Everything known of links, as plain values and arrays."""
        return {} if self._watch is None else {"links": self._watch.to_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        if "links" in state:
            self._watch = self._new_watch()
            self._watch.restore(state["links"])

    def _new_watch(self) -> LinkWatch:
        return LinkWatch(iterations_per_false_alarm=self._iterations_per_false_alarm)
