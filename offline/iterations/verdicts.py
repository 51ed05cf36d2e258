"""The detector's scan of devices, run over a recording of iterations."""

import math
from collections.abc import Iterator

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.offline.iterations.clocks import ClockChoice, RecordedClocks, clocks_of
from evenkeel.offline.iterations.file import RecordedIterations
from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares
from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.job.compute_watch import REACH
from evenkeel.services.detector.domain.job.told.words import clock_evidence, confidence_of
from evenkeel.services.detector.domain.scan.devices import DeviceScan
from evenkeel.services.detector.domain.scan.residual.clocks import Clock, smallest_scales
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange

SKIPPED_AT_START = 2
"""Iterations that warm up and are not judged."""

_GROWN = 16.0


class RecordedDevices:
    """Judges the ranks of one recording.

    Args:
        job_id: What to call the job.
        recording: The recording.
        choice: Which clocks to judge by.
        iterations_per_false_alarm: The operator's budget.

    Attributes:
        notes: What of the recording could not be used.

    Raises:
        RecordingError: No rank did anything by the clock that is to be judged by.
    """

    def __init__(
        self, job_id: str, recording: RecordedIterations, choice: ClockChoice, *, iterations_per_false_alarm: float
    ) -> None:
        self._job_id = job_id
        self._recording = recording
        self._clocks: RecordedClocks = clocks_of(recording, choice)
        self._budget = iterations_per_false_alarm
        tokens = recording.columns.get("tokens")
        known = tokens is not None and bool((tokens[np.isfinite(self._clocks.work)] > 0).all())
        self._tokens: Floats = tokens if tokens is not None and known else np.ones_like(self._clocks.work)
        self.notes = self._clocks.notes
        if len(recording.ranks) == 1:
            self.notes += ("only one rank: it is compared with its own past alone",)

    def verdicts(self) -> Iterator[list[Verdict]]:
        """What each iteration decided, iteration by iteration."""
        model = ForgettingLeastSquares(forgetting=0.998, primary="tokens")
        names = ("tokens", "once")
        scan: DeviceScan | None = None
        num_seen = 0
        for row, planned in enumerate(self._recording.planned.tolist()):
            readings = self._clocks.of(row)
            known = np.isfinite(readings.work_seconds)
            num_seen += not planned
            if planned or num_seen <= SKIPPED_AT_START or not known.any():
                yield []
                continue
            features = np.column_stack((self._tokens[row], np.ones(len(known))))
            if scan is None:
                model.learn_rows(names, features[known], readings.work_seconds[known])
                usual = float(np.median(readings.work_seconds[known]))
                scan = DeviceScan(self._budget)
                scan.allot(readings.clocks, len(known), smallest_scales(readings.clocks, usual))
                # A recording does not say where its ranks ran: on one machine, as far as anybody knows.
                scan.run_on(np.zeros(len(known), dtype=np.int64))
            expected = np.where(known, model.predict_rows(names, features), np.nan)
            iteration, ratios = int(self._recording.iterations[row]), readings.log_ratios(expected)
            changes = scan.observe(iteration, ratios, float(np.nanmean(expected)))
            apart = ratios[readings.clocks.index(Clock.WORK)]
            healthy = ~scan.ill & np.isfinite(apart)
            if healthy.any():
                middle = float(np.median(apart[healthy])) if len(known) > 1 else 0.0
                # A model that is young may rest on an odd iteration, which everything is far from.
                near = healthy & ((np.abs(apart - middle) < REACH) | (model.mass < _GROWN))
                model.learn_rows(names, features[near], readings.work_seconds[near])
            yield [self._verdict(row, change, float(expected[change.device])) for change in changes]

    def _verdict(self, row: int, change: SpeedChange, expected: float) -> Verdict:
        kind = VerdictKind.RECOVERED if change.recovered else VerdictKind.COMPUTE_SLOW
        rank, iteration = int(self._recording.ranks[change.device]), int(self._recording.iterations[row])
        seconds = self._clocks.of(row)
        read = seconds.seconds(change.clock)
        observed = math.nan if read is None else float(read[change.device])
        evidence = (
            *clock_evidence(change.ratios.items(), change.num_frames),
            Evidence(
                name="distance from healthy",
                value=change.distance,
                unit="sigma",
                text=f"one iteration's noise is {100 * change.scale:.2f} %",
            ),
            Evidence(
                name=f"{change.clock.value} seconds",
                value=observed,
                unit="s",
                text=f"in iteration {iteration}; work of {expected:.4f} s is expected of a healthy rank",
            ),
        )
        return Verdict(
            verdict_id=verdict_id(self._job_id, kind, rank, iteration),
            job_id=self._job_id,
            kind=kind,
            culprits=(Culprit(rank=rank, incarnation=0),),
            throughput=change.throughput,
            throughput_margin=change.margin,
            confidence=confidence_of(change.distance),
            first_iteration=change.first_iteration,
            decided_iteration=iteration,
            decided_at_unix_seconds=0.0,
            evidence=evidence,
        )
