"""A device that is slow on and off is one illness with a duty cycle, not a row of illnesses and recoveries.

From the third time it falls ill within short spells (the second, when they are very short) its recoveries are held
back until it has stayed healthy for much longer than between its spells. Its throughput is that of its mean time. Each
verdict names the onset of the newest spell; the ones before it are evidence. A spell that outlasts those before by far
is no spell any more: the device is as slow as it is then.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.services.detector.domain.findings.verdict import Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.kinds.spell_course import SpellCourse

_TOLD = 8
_REPUBLISH_AT = 0.1


@dataclass(eq=False)
class Intermittent(KindWatch):
    """Follows the spells of each device through its verdicts."""

    name = "intermittent"

    _courses: dict[int, SpellCourse] = field(default_factory=dict)

    def go_back(self, iteration: int) -> None:
        """Spells, and recoveries that are held back, began and ended by then."""
        for course in self._courses.values():
            course.spells = [[min(at, float(iteration)) for at in spell[:2]] + spell[2:] for spell in course.spells]
            if course.held is not None:
                course.held = replace(course.held, first_iteration=min(course.held.first_iteration, iteration))

    def observe(self, look: Look) -> list[KindFinding]:
        """Frames say nothing that the verdicts about devices do not."""
        del look
        return []

    def revise(self, frame: FrameObservation, verdicts: list[Verdict]) -> list[Verdict]:
        """Holds recoveries back while a device comes and goes; one verdict then says how often it is slow."""
        if not verdicts and not self._courses:
            return verdicts
        found: list[Verdict] = []
        for verdict in verdicts:
            if verdict.kind in (VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED) and len(verdict.culprits) == 1:
                found += self._take(verdict)
            else:
                found.append(verdict)
        for rank, course in list(self._courses.items()):
            incarnation = _incarnation_in(frame, rank)
            if incarnation is None:
                continue  # late, or gone
            if incarnation != course.incarnation:
                del self._courses[rank]  # whose process it was has ended
            elif course.held is not None:
                if frame.iteration - course.spells[-1][1] >= course.quiet_iterations:
                    found.append(_released(course.held, frame))
                    del self._courses[rank]
            elif course.is_over:
                if course.is_forgotten(frame.iteration):
                    del self._courses[rank]
            elif course.intermittent and course.newest is not None and course.outlasts(frame.iteration):
                course.intermittent = False
                if abs(course.spells[-1][2] - course.published) >= _REPUBLISH_AT:
                    found.append(_lasting(course.newest, course, frame))
        return found

    def _take(self, verdict: Verdict) -> list[Verdict]:
        culprit, iteration = verdict.culprits[0], verdict.decided_iteration
        course = self._courses.get(culprit.rank)
        if course is None or course.incarnation != culprit.incarnation:
            course = self._courses[culprit.rank] = SpellCourse(culprit.incarnation)
        well = course.is_over
        if verdict.kind is VerdictKind.RECOVERED:
            if well:
                return [verdict]
            course.spells[-1][1] = float(max(verdict.first_iteration, course.spells[-1][0] + 1))
            if not course.intermittent:
                return [verdict]
            course.held = verdict
            return self._changed(course, verdict, iteration)
        if well and course.is_forgotten(verdict.first_iteration):
            course.spells, course.intermittent = [], False
        if well:
            course.begin(verdict.first_iteration, verdict.throughput)
        else:
            course.spells[-1][2] = verdict.throughput
        course.newest = verdict
        if not course.intermittent and (course.outlasts(iteration) or not course.comes_and_goes()):
            return [verdict]
        newly, course.intermittent = not course.intermittent, True
        if newly:
            course.published = course.duty(iteration)[1]
            return [_with_duty(verdict, course, iteration)]
        return self._changed(course, verdict, iteration)

    def _changed(self, course: SpellCourse, verdict: Verdict, iteration: int) -> list[Verdict]:
        """The same illness again, when its mean has moved enough to matter."""
        throughput = course.duty(iteration)[1]
        if abs(throughput - course.published) < _REPUBLISH_AT or verdict.kind is VerdictKind.RECOVERED:
            return []
        course.published = throughput
        return [_with_duty(verdict, course, iteration)]


def _incarnation_in(frame: FrameObservation, rank: int) -> int | None:
    entries = np.flatnonzero(frame.ranks == rank)
    return int(frame.incarnations[entries[0]]) if len(entries) else None


def _with_duty(verdict: Verdict, course: SpellCourse, iteration: int) -> Verdict:
    share, throughput = course.duty(iteration)
    newest = course.spells[-1]
    told = ", ".join(f"{start:.0f}-{stop - 1:.0f}" for start, stop, _ in course.spells[-_TOLD:] if stop >= 0)
    fact = Evidence(
        name="duty cycle",
        value=share,
        unit="share",
        text=f"slow in {100 * share:.0f} % of the iterations since {course.spells[0][0]:.0f}, in {len(course.spells)} "
        f"spells ({told}, now from {newest[0]:.0f} on); throughput {newest[2]:.2f} while slow, {throughput:.2f} by "
        "mean time",
    )
    return replace(verdict, throughput=throughput, first_iteration=int(newest[0]), evidence=(fact, *verdict.evidence))


def _released(held: Verdict, frame: FrameObservation) -> Verdict:
    """The recovery that was held back, now that it has lasted."""
    lasted = frame.iteration - held.first_iteration
    fact = Evidence(
        name="healthy", value=float(lasted), unit="iterations", text="in a row, much longer than its spells"
    )
    return replace(
        held,
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=(fact, *held.evidence),
    )


def _lasting(newest: Verdict, course: SpellCourse, frame: FrameObservation) -> Verdict:
    """That a device which came and went is slow for good, and how slow."""
    start, _, throughput = course.spells[-1]
    fact = Evidence(
        name="lasting",
        value=frame.iteration + 1 - start,
        unit="iterations",
        text=f"slow without a break since {start:.0f}, much longer than in any spell before: throughput as it is now",
    )
    culprit = newest.culprits[0]
    return replace(
        newest,
        verdict_id=verdict_id(
            newest.job_id, newest.kind, culprit.rank, culprit.incarnation, frame.epoch, frame.iteration
        ),
        throughput=throughput,
        first_iteration=int(start),
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=(fact, *newest.evidence),
    )
