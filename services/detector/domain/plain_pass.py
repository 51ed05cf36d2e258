"""Shows plain frames to the compiled loop in place of those who watch a job, and tells them what came of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.compute_watch import ComputeWatch
from evenkeel.services.detector.domain.device_levels import HealthChange
from evenkeel.services.detector.domain.frame_layout import FrameLayout
from evenkeel.services.detector.domain.frame_table import EXPECTED, LOG_RATIO, FrameBlock
from evenkeel.services.detector.domain.job_profile import NUM_COLUMNS, JobProfile, priced_by
from evenkeel.services.detector.domain.kind import Passed
from evenkeel.services.detector.domain.kind_board import KindBoard
from evenkeel.services.detector.domain.kinds.corruption import Corruption
from evenkeel.services.detector.domain.kinds.input_stall import InputStall
from evenkeel.services.detector.domain.kinds.intermittent import Intermittent
from evenkeel.services.detector.domain.kinds.periodic_pause import PeriodicPause
from evenkeel.services.detector.domain.kinds.sequence_imbalance import NUM_COLUMNS as COLUMNS_OF_LOST
from evenkeel.services.detector.domain.kinds.sequence_imbalance import SequenceImbalance
from evenkeel.services.detector.domain.kinds.stage_imbalance import StageImbalance
from evenkeel.services.detector.domain.loss_watch import LossWatch
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.services.detector.domain.plain_groups import (
    Devices,
    Grid,
    Kinds,
    Loop,
    Noises,
    Reported,
    Rolled,
    Tellings,
)
from evenkeel.services.detector.domain.plain_loop import ALL, JUDGED, PASSED, UNTOUCHED, pass_over
from evenkeel.services.detector.domain.profile import Profile, RankThroughputs
from evenkeel.services.detector.domain.rolling import RollingRows
from evenkeel.services.detector.domain.suspicion import SUSPECT_AT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NOTHING: Floats = np.zeros((0, 0))
_NOBODY: Floats = np.zeros(0)

PROFILE_EVERY = 5
"""A profile is told in every so many plain frames."""


class Stopped(NamedTuple):
    """A frame that the loop began, and did not end.

    Attributes:
        changes: Whose throughput changed.
        expected_seconds: What the work of each entry should take.
        passed: What it tells kinds; None where kinds and profile have still to see the frame.
        iteration: What :func:`taken` returned, for the profile to take where ``passed`` is there.
    """

    changes: list[HealthChange]
    expected_seconds: Floats
    passed: Passed | None
    iteration: tuple[float, float]


class Outcome(NamedTuple):
    """What came of some frames.

    Attributes:
        num_whole: So many are over and done with.
        stopped: The next one, where that was begun.
        profiles: After those that are over and done with, by their place.
    """

    num_whole: int
    stopped: Stopped | None
    profiles: dict[int, Profile]


class PlainPass:
    """Takes plain frames for those who watch a job.

    Args:
        job_id: The job.
        compute: Who watches devices.
        losses: Who watches what ranks report.
        kinds: Who watches for kinds.
        profile: What iterations are made of.
    """

    __slots__ = (
        *("_compute", "_corruption", "_input", "_intermittent", "_job_id", "_loads", "_losses", "_lost", "_pauses"),
        "_profile",
    )

    def __init__(
        self, job_id: str, compute: ComputeWatch, losses: LossWatch, kinds: KindBoard, profile: JobProfile
    ) -> None:
        self._job_id = job_id
        self._compute, self._losses, self._profile = compute, losses, profile
        self._corruption, self._input = kinds.watch(Corruption), kinds.watch(InputStall)
        self._intermittent, self._pauses = kinds.watch(Intermittent), kinds.watch(PeriodicPause)
        self._lost, self._loads = kinds.watch(SequenceImbalance), kinds.watch(StageImbalance)

    def over(
        self,
        frames: Sequence[FrameObservation],
        block: FrameBlock,
        layout: FrameLayout,
        rows: Ints,
        *,
        first: int,
        num_to_profile: int,
        asks_from: int,
    ) -> Outcome:
        """Takes frames without marks, all entries of which count, once frames were learned.

        Args:
            frames: The frames.
            block: Their tables, all alike.
            layout: Their layout.
            rows: Row of each entry.
            first: The first one to take.
            num_to_profile: After the so-manieth one from the first on there is to be a profile.
            asks_from: First iteration in which a suspect may be asked.
        """
        health, expectation = self._compute.health, self._compute.expectation
        devices, noises = self._devices(rows, layout, asks_from), self._noises()
        num_to_stop, learns_last = len(frames) + 1, True
        if not noises.is_renewed:
            # Where the noise is found anew, it says what is learned from.
            num_to_stop, learns_last = health.num_to_noise, False
        if not self._profile.num_frames and num_to_stop > 1:
            num_to_stop, learns_last = 1, True  # the first of an epoch has a profile of its own
        last, tellings = first + num_to_stop - 1, _tellings(block, first + num_to_profile - 1)
        loop = pass_over(
            block,
            first,
            last,
            learns_last,
            devices,
            noises,
            expectation.learning,
            Reported(self._losses.loss.recent.ring, self._losses.loss.ratio, self._corruption.always_alike[0]),
            Reported(
                self._losses.gradient_norm.recent.ring,
                self._losses.gradient_norm.ratio,
                self._corruption.always_alike[1],
            ),
            self._kinds(layout, frames[first]),
            self._grid(layout),
            tellings,
        )
        num_whole = loop.num_whole
        begun = num_whole + (loop.stopped not in (ALL, UNTOUCHED))
        if not begun:
            return Outcome(0, None, {})
        health.bank.stop = loop.window_stop
        if noises.is_renewed:
            health.noise = Noise(scale=loop.noise[0], freedom=loop.noise[1], correlation=loop.noise[2])
        changes = health.conclude(
            rows,
            loop.judged,
            devices.residuals,
            devices.marks,
            num_frames=begun,
            is_renewed=noises.is_renewed and loop.stopped != JUDGED,
        )
        expectation.take(*loop.learned)
        self._losses.loss.move_on(*loop.loss)
        self._losses.gradient_norm.move_on(*loop.gradient_norm)
        profiles = self._take(frames, first, tellings, loop) if num_whole else {}
        if begun == num_whole:
            return Outcome(num_whole, None, profiles)
        at = first + num_whole
        table = block.numbers[at]
        passed, expected = None, table[EXPECTED]
        if loop.stopped != PASSED or (at == last and not learns_last):
            self._compute.learn(table, rows, None, expected, table[LOG_RATIO], loop.apart)
        if loop.stopped == PASSED:
            look = block.table(at)
            passed = Passed(
                frame=frames[at],
                ranges=look.ranges,
                data_share=look.data_share,
                stands_out=loop.stands_out,
                window_stands_out=loop.window_stands_out,
                wall_log=loop.wall_log,
                is_long=loop.is_long,
                lost=loop.lost,
                heaviest=loop.heaviest,
                load=loop.load,
            )
        return Outcome(num_whole, Stopped(changes, expected, passed, loop.found), profiles)

    def _devices(self, rows: Ints, layout: FrameLayout, asks_from: int) -> Devices:
        health = self._compute.health
        bank = health.bank
        limit, memory, few = health.begin(rows, layout.work_keys)
        return Devices(
            numbers=bank.numbers,
            counts=bank.counts,
            ages=bank.num_in_sums,
            flags=bank.flags,
            rows=rows,
            usual=health.usual_centre,
            limit=limit,
            memory=memory,
            few=few,
            residuals=np.empty(len(rows)),
            marks=np.empty((2, len(rows)), dtype=np.bool_),
            in_order=bank.is_everyone(rows),
            wide=bank.wide,
            iterations=bank.wide_iterations,
            stop=bank.stop,
            asks_from=asks_from,
            ask_at=SUSPECT_AT,
        )

    def _noises(self) -> Noises:
        health = self._compute.health
        noise, renewal = health.noise, health.renewal
        most_alike, squares, counts = (1.0, _NOBODY, _NOBODY) if renewal is None else renewal
        return Noises(
            now=(noise.scale, noise.freedom, noise.correlation),
            is_renewed=renewal is not None,
            num_frames=health.num_frames,
            most_alike=most_alike,
            squares=squares,
            counts=counts,
        )

    def _kinds(self, layout: FrameLayout, frame: FrameObservation) -> Kinds:
        replicas, cells = self._lost.replicas_of(layout), self._loads.cells_of(layout)
        compares = cells.comparable and not self._loads.is_told
        return Kinds(
            is_calm=self._input.is_calm and self._intermittent.is_calm and self._corruption.is_of(frame.ranks),
            walls=self._pauses.walls.ring,
            replica_of=replicas.of,
            replica_counts=replicas.counts,
            losses=_rolled(self._lost.recent, COLUMNS_OF_LOST, wanted=replicas.even),
            lost_is_told=self._lost.is_told,
            divisors=cells.divisors,
            cells=cells.of,
            cell_counts=cells.counts,
            loads=_rolled(self._loads.recent, cells.num_stages, wanted=compares),
        )

    def _grid(self, layout: FrameLayout) -> Grid:
        profile = self._profile
        grid = profile.grid_of(layout)
        return Grid(
            shares=grid.shares,
            priced=priced_by(layout),
            cells=grid.cells,
            num_stages=grid.num_stages,
            counts=grid.counts,
            rounds=grid.rounds,
            borders=grid.borders,
            recent=_rolled(profile.recent, NUM_COLUMNS),
            num_alike=profile.num_alike,
            iteration_seconds=profile.iteration_seconds,
            transfer_instead=profile.transfer_instead,
        )

    def _take(
        self, frames: Sequence[FrameObservation], first: int, tellings: Tellings, loop: Loop
    ) -> dict[int, Profile]:
        """Tells kinds and the profile of frames that are over and done with; the profiles that are due."""
        self._pauses.walls.move_on(*loop.walls)
        self._lost.recent.stop, self._lost.recent.count = loop.losses
        self._loads.recent.stop, self._loads.recent.count = loop.loads
        self._input.count(loop.num_inputs)
        self._profile.move_on(*loop.profile)
        profiles = {}
        medians, due = tellings.medians.tolist(), tellings.first
        for place, wall in enumerate(tellings.walls[first : first + loop.num_whole].tolist(), start=first):
            frame = frames[place]
            if frame.micro_batches is not None:
                self._profile.note(frame, wall)
            if place == due:
                at = (due - tellings.first) // tellings.every
                profiles[place] = self._profile.profile_of(
                    self._job_id,
                    frame.iteration,
                    RankThroughputs(frame.ranks, tellings.throughputs[at, 0], tellings.throughputs[at, 1]),
                    *medians[at],
                )
                due += tellings.every
        return profiles


def _tellings(block: FrameBlock, first: int) -> Tellings:
    num_profiles = len(range(first, block.num_alike, PROFILE_EVERY))
    return Tellings(
        first=first,
        every=PROFILE_EVERY,
        walls=np.empty(block.num_alike),
        medians=np.empty((num_profiles, 2, NUM_COLUMNS)),
        throughputs=np.empty((num_profiles, 2, block.numbers.shape[2])),
    )


def _rolled(rows: RollingRows, width: int, *, wanted: bool = True) -> Rolled:
    """Rows as the loop takes them; where they are not wanted, without a buffer."""
    buffer = rows.prepare(width) if wanted else _NOTHING
    return buffer, *rows.place
