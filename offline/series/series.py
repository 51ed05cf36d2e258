"""A job seen as one series of iteration times: is it slower than it should be? No ranks, so nobody is accused.

The expectation comes from the workload where it is given, else from the series' own recent past. Workloads unlike any
before are learned and not judged. The residual goes through a sequential test: two slow iterations decide nothing, and
where iterations pause now and then, more of them do not. Which spell of slowness is told is :class:`Spells`' to say.
"""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from evenkeel.offline.series.evidence import SeriesEvidence, threshold
from evenkeel.offline.series.expected.expectation import SeriesExpectation
from evenkeel.offline.series.expected.restarts import Restarts
from evenkeel.offline.series.finding import Iteration, SeriesVerdict, SeriesVerdictKind, evidence_of
from evenkeel.offline.series.level import Change, locate_change
from evenkeel.offline.series.noise import Noise, estimate
from evenkeel.offline.series.pauses import Pauses, set_apart
from evenkeel.offline.series.spells import Spells
from evenkeel.offline.series.standing import Standing
from evenkeel.offline.series.strays import Strays, without_trend
from evenkeel.offline.series.window import WINDOW, SeriesWindow

SMALLEST_SLOWDOWN = 0.03
"""Levels below this, in log units of time, are drift."""

_SKIPPED_AT_START = 2
_BASELINE = 24
_PRIOR_SCALE = 0.01
_NOISE_EVERY = 4
_YOUNG_OBSERVATIONS = 96
_NATS_FOR_YOUTH = 8.0
_NATS_TO_RECOVER = 8.0
_NATS_OF_SUSPICION = 2.0
_NATS_PER_RELAPSE = 3.0
_REPUBLISH_AT = 0.05
# What takes so many iterations to show crept in.
_CREEPS = 16
_PRIOR_ODDS = 1e-4
# What is about to be told must be further off than the series strays on average over as many iterations.
_STRAYS = 4.0
# What is this far off for this long is no stray, whatever the first iterations were like.
_LONGEST_STRAY, _LARGEST_STRAY = 64, 0.1
# A rhythm is looked for as often as the window is new, and seldom from then on.
_SETTLED = 8 * WINDOW
# From here on what is remembered says how the series wanders; a trend in the window may be a slowdown that creeps in.
_OLD_ENOUGH = 3 * WINDOW


class SeriesDetector:
    """Watches one job's iteration times; deterministic, not thread-safe.

    Args:
        job_id: The job.
        iterations_per_false_alarm: Healthy iterations per slow verdict that the operator puts up with.
    """

    def __init__(self, job_id: str, *, iterations_per_false_alarm: float = 100_000.0) -> None:
        self.job_id = job_id
        self._limit = threshold(iterations_per_false_alarm)
        self._expectation = SeriesExpectation()
        self._num_seen = 0
        self._num_observed = 0
        self._restarts = Restarts(self.num_to_learn)
        self._early: list[float] = []
        self._standing = Standing()
        self._level = 0.0
        self._published = 1.0
        # What was taken for drift before a slowdown that crept in was told.
        self._crept = 0.0
        self._spells = Spells()
        self._noise = Noise(scale=_PRIOR_SCALE)
        self._pauses = Pauses()
        self._newest = SeriesWindow()
        self._evidence = SeriesEvidence()
        self._strays = Strays()
        # It still stands where its first iterations were.
        self._begun_here = True

    @property
    def slow(self) -> bool:
        """A slow verdict stands."""
        return self._level > 0

    @property
    def ready(self) -> bool:
        """It knows where the series stands and judges."""
        return self._num_observed >= _BASELINE

    @property
    def num_to_learn(self) -> int:
        """Iterations at the start that are not judged; so many may warm up when a run goes back to an earlier one."""
        return _SKIPPED_AT_START + _BASELINE

    def observe(self, one: Iteration) -> list[SeriesVerdict]:
        """Takes the next iteration and says whether the job's speed has changed."""
        self._restarts.look_at_number(one.iteration, slow=self.slow)
        if one.planned or not (math.isfinite(one.seconds) and one.seconds > 0):
            return []
        self._restarts.settle()
        self._num_seen += 1
        if self._num_seen <= _SKIPPED_AT_START:
            return []
        expected = self._expectation.seconds(one)
        base = math.log(one.seconds / expected)
        if self._num_observed < _BASELINE:
            self._begin(one, expected, base)
            return []
        if not self.slow and self._expectation.is_new_ground(one, expected, scale=self._noise.scale):
            self._expectation.learn(one, expected * math.exp(self._standing.centre))
            return []
        self._num_observed += 1
        residual = base - self._standing.centre
        self._restarts.look_at_length(residual - self._level, slow=self.slow)
        self._push(one.iteration, residual)
        decided = self._test(residual - self._level) and not self._strays_so_far()
        verdict = self._change(one, expected) if decided else None
        if not decided:
            self._follow(one, expected, residual)
        return self._told(one, verdict)

    def _strays_so_far(self) -> bool:
        """What the test has decided is no more than how far the mean of as many healthy iterations may be off."""
        if self.slow:
            return False
        columns, change = self._located()
        if change.num_residuals > _LONGEST_STRAY and change.level > _LARGEST_STRAY:
            return False
        before = slice(max(int(columns[change.start]), 1))
        window = self._newest.residuals[before]
        if self._begun_here:
            # The first ones are only known by their scatter.
            window = np.where(np.isfinite(window), window, self._newest.scatter[before])
        window = without_trend(window) if self._num_observed > _OLD_ENOUGH else window
        reach = self._strays.reach(window, change.num_residuals, scale=self._noise.scale, strays=_STRAYS)
        if change.level < 0 and self._num_observed <= _YOUNG_OBSERVATIONS:
            return False
        # Smaller ones are drift, or show what the long run leaves no room for: a slowdown that crept in.
        return SMALLEST_SLOWDOWN <= abs(change.level) < reach < math.inf

    def _located(self) -> tuple[npt.NDArray[np.int64], Change]:
        """The change that was decided on, and the columns of the window that it counts in."""
        residuals = self._newest.residuals
        columns = np.flatnonzero(np.isfinite(residuals))
        age, scale = min(self._evidence.decisive()[1], len(columns)), self._noise.scale
        return columns, locate_change(residuals[columns], before=self._level, scale=scale, age=age)

    def _begin(self, one: Iteration, expected: float, base: float) -> None:
        """The first iterations say where the series stands and how much it scatters."""
        self._num_observed += 1
        if one.tokens is not None:
            self._expectation.learn(one, expected if self._expectation.knows_workloads else one.seconds)
            # While the fit is young its errors are not the noise's.
            if self._num_observed <= _BASELINE // 3:
                return
        self._early.append(base)
        self._push(one.iteration, base)
        if self._num_observed == _BASELINE and one.tokens is None:
            numbers, logs = self._newest.iterations[-_BASELINE:], self._newest.residuals[-_BASELINE:]
            if self._expectation.look_for_turns(numbers, logs):
                self._early = (logs - self._expectation.turns(numbers)).tolist()
        self._standing.begin(float(np.median(self._early)))
        if self._num_observed == _BASELINE:
            self._newest.residuals[:] = np.nan
            scattered = np.array(self._early) - self._standing.centre
            self._newest.scatter[-len(scattered) :] = scattered
            self._noise = self._estimate()
            self._evidence.expect(self._noise, self._pauses)

    def _look_for_turns(self) -> None:
        """A rhythm that the first iterations did not show, or another one than before: all is seen by it from now."""
        known = np.isfinite(self._newest.residuals)
        numbers, logs = self._newest.iterations[known], self._newest.residuals[known]
        logs += self._expectation.turns(numbers)
        if len(numbers) < WINDOW // 2 or not self._expectation.look_for_turns(numbers, logs):
            return
        logs -= self._expectation.turns(numbers)
        middle = float(np.median(logs))
        self._newest.residuals[known] = self._newest.scatter[known] = logs - middle
        self._standing.begin(self._standing.centre + middle)
        self._strays = Strays()
        self._evidence.clear()
        self._noise = self._estimate()
        self._evidence.expect(self._noise, self._pauses)

    def _estimate(self) -> Noise:
        """The noise of what is under no suspicion; what was suspected counts once it is acquitted."""
        known = self._newest.scatter
        if self._evidence.highest > _NATS_OF_SUSPICION:
            known = known[: max(WINDOW - self._evidence.age_of_highest, 0)]
        body, self._pauses = set_apart(known)
        prior_scale = _PRIOR_SCALE
        if self._num_observed <= WINDOW and np.isfinite(body).any():
            prior_scale = max(_PRIOR_SCALE, 1.4826 * float(np.nanmedian(np.abs(body))))
        return estimate(body, prior_scale=prior_scale)

    def _push(self, iteration: int, residual: float) -> None:
        self._newest.push(iteration, residual, residual + self._standing.centre - self._standing.local)

    def _test(self, apart: float) -> bool:
        youth = max(1.0 - self._num_observed / _YOUNG_OBSERVATIONS, 0.0)
        again = _NATS_PER_RELAPSE * min(self._spells.num_told, 5)
        limit = self._limit + _NATS_FOR_YOUTH * youth + again
        back = _NATS_TO_RECOVER + again if self.slow else limit
        return self._evidence.advance(apart, slower=limit, faster=back)

    def _change(self, one: Iteration, expected: float) -> SeriesVerdict | None:
        """Moves to the level that the residuals now stand at; None where that is nobody's business."""
        nats, _ = self._evidence.decisive()
        columns, change = self._located()
        self._evidence.clear()
        self._newest.scatter[columns[change.start] :] -= change.level - self._level
        self._standing.local += change.level - self._level
        since = self._num_observed - (WINDOW - int(columns[change.start]))
        was_slow, room = self.slow, self._standing.room(self._noise.scale)
        # What the long run leaves no room for is no drift, however small the last step was.
        if change.level < max(SMALLEST_SLOWDOWN, self._noise.scale) and (was_slow or change.level <= max(room, 0.0)):
            if not was_slow:
                self._standing.shift(change.level)
                self._newest.residuals -= change.level
                if change.level < 0:
                    self._newest.residuals[: columns[change.start]] = np.nan
                    self._begun_here = False
                return None
            self._level = 0.0
            self._spells.end(since)
            self._newest.residuals[: columns[change.start]] = np.nan
        else:
            if not was_slow:
                self._spells.begin(since, may_warm_up=self._restarts.num_left > 0)
                crept = max(self._standing.centre - self._standing.long_run, 0.0)
                self._crept = crept if change.num_residuals >= _CREEPS else 0.0
            self._level = change.level
        throughput = math.exp(-self._level - (self._crept if self.slow else 0.0))
        if was_slow and self.slow and abs(throughput - self._published) < _REPUBLISH_AT:
            return None
        self._published = throughput
        margin = 2.35 * self._noise.scale / math.sqrt(max(change.num_residuals, 1)) * throughput
        first = int(self._newest.iterations[columns[change.start]])
        return self._verdict(one, expected, first=first, margin=margin, nats=nats, count=change.num_residuals)

    def _told(self, one: Iteration, verdict: SeriesVerdict | None) -> list[SeriesVerdict]:
        """The verdict to tell now, if there is one."""
        if not self.slow:
            told = self._spells.recovery(verdict)
        else:
            told = self._spells.news(
                verdict,
                num_observed=self._num_observed,
                residuals=self._newest.residuals,
                level=self._level,
                scale=self._noise.scale,
                restarts=self._restarts,
            )
        return [] if told is None else [replace(told, decided_iteration=one.iteration)]

    def _follow(self, one: Iteration, expected: float, residual: float) -> None:
        """Learns from an iteration: the noise always, where the series stands from healthy and unsuspected ones."""
        if self._num_observed % _NOISE_EVERY == 0:
            found = self._estimate()
            # Up at once, down slowly: a quiet spell is no promise.
            kept = max(found.scale, 0.8 * self._noise.scale + 0.2 * found.scale)
            self._noise = Noise(scale=kept, freedom=found.freedom, correlation=found.correlation)
            self._evidence.expect(self._noise, self._pauses)
            # What warms up at the start is no stray.
            quiet = not self.slow and self._evidence.highest <= self._limit / 4
            if quiet and self._num_observed > WINDOW + WINDOW // 2:
                self._strays.remember(self._newest.residuals, scale=self._noise.scale, num_new=_NOISE_EVERY)
        every = WINDOW if self._num_observed <= _SETTLED else _SETTLED
        if self._num_observed % every == 0 and one.tokens is None and not self.slow:
            self._look_for_turns()
            return
        self._standing.follow_locally(residual, self._noise.scale)
        if self.slow or self._evidence.highest > self._limit / 4:
            return
        self._standing.follow(residual, self._noise.scale, num_observed=self._num_observed)
        if one.tokens is not None and abs(residual) < 5 * self._noise.scale + 0.1:
            self._expectation.learn(one, expected * math.exp(self._standing.centre))

    def _verdict(
        self, one: Iteration, expected: float, *, first: int, margin: float, nats: float, count: int
    ) -> SeriesVerdict:
        ratio = 1 / self._published
        healthy = expected * math.exp(self._standing.centre + self._level) / ratio
        kind = SeriesVerdictKind.JOB_SLOW if self.slow else SeriesVerdictKind.JOB_RECOVERED
        return SeriesVerdict(
            job_id=self.job_id,
            kind=kind,
            throughput=self._published,
            throughput_margin=margin,
            confidence=1 / (1 + math.exp(-min(nats, 60.0)) / _PRIOR_ODDS),
            first_iteration=first,
            decided_iteration=one.iteration,
            evidence=evidence_of(
                one, healthy_seconds=healthy, ratio=ratio, nats=nats, scale=self._noise.scale, since=first, count=count
            ),
        )
