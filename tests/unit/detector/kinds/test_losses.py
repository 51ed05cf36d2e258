"""Losses that are no number or jump are reported once, and lead to nobody's eviction."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evenkeel.services.detector.domain.findings.verdict import VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.detector.synthetic import SyntheticJob, cube, verdicts_of


def frames_with(losses: dict[int, float], stop: int = 120) -> list[FrameObservation]:
    frames = SyntheticJob(places=cube()).frames(0, stop)
    return [
        replace(frame, losses=np.full(8, losses[frame.iteration])) if frame.iteration in losses else frame
        for frame in frames
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_reported_once_per_stretch(value: float) -> None:
    bad = dict.fromkeys(range(50, 60), value) | {100: value}
    found = verdicts_of(JobDetector("job"), iter(frames_with(bad)), everything=True)
    assert [(v.kind, v.decided_iteration, v.culprits) for v in found] == [
        (VerdictKind.NOT_FINITE, 50, ()),
        (VerdictKind.NOT_FINITE, 100, ()),
    ]


def test_only_ranks_with_a_bad_value_are_named_when_others_have_a_good_one() -> None:
    frames = frames_with({})
    frames[50].losses[2] = math.nan
    found = verdicts_of(JobDetector("job"), iter(frames), everything=True)
    assert [[culprit.rank for culprit in v.culprits] for v in found] == [[2]]
    assert "devices" in found[0].evidence[-1].text


def test_loss_and_gradient_norm_of_one_iteration_are_two_findings() -> None:
    frames = frames_with({50: math.nan})
    frames[50].gradient_norms[:] = math.nan
    frames[50].has_gradient_norm[:] = True
    found = verdicts_of(JobDetector("job"), iter(frames), everything=True)
    assert [v.evidence[0].name for v in found] == ["loss", "gradient norm"]
    assert len({v.verdict_id for v in found}) == 2


def test_a_jump_is_reported_and_a_level_that_stays_is_not_repeated() -> None:
    found = verdicts_of(JobDetector("job"), iter(frames_with(dict.fromkeys(range(60, 120), 6.0))), everything=True)
    assert [(v.kind, v.decided_iteration) for v in found] == [(VerdictKind.SPIKE, 60)]


def test_a_loss_that_falls_or_wobbles_is_no_news() -> None:
    losses = {i: 8.0 * math.exp(-i / 60) + 0.05 * math.sin(i) for i in range(120)}
    assert verdicts_of(JobDetector("job"), iter(frames_with(losses)), everything=True) == []


def test_a_jump_of_half_is_reported_while_a_young_loss_still_falls_fast() -> None:
    losses = {i: 1.7 + 9.0 * (i + 50.0) ** -0.3 + 0.02 * math.sin(7 * i) for i in range(120)}
    for i in range(62, 65):
        losses[i] *= 1.5
    found = verdicts_of(JobDetector("job"), iter(frames_with(losses)), everything=True)
    assert [(v.kind, v.decided_iteration) for v in found] == [(VerdictKind.SPIKE, 62)]


def frames_with_norms(jumps: dict[int, float]) -> list[FrameObservation]:
    frames = []
    for frame in SyntheticJob(places=cube()).frames(0, 120):
        norm = 0.5 * math.exp(0.15 * math.sin(7 * frame.iteration)) * jumps.get(frame.iteration, 1.0)
        frames.append(
            replace(frame, gradient_norms=np.full(8, norm), has_gradient_norm=np.ones(8, dtype=np.bool_)),
        )
    return frames


def test_a_lone_jump_of_the_gradient_norm_within_its_tails_is_no_news() -> None:
    found = verdicts_of(JobDetector("job"), iter(frames_with_norms({60: 100.0, 90: 30.0})), everything=True)
    assert found == []


@pytest.mark.parametrize("ratio", [40.0, 1000.0])
def test_a_gradient_norm_that_stays_up_is_told_with_its_second_iteration(ratio: float) -> None:
    jumps = dict.fromkeys(range(60, 70), ratio)
    found = verdicts_of(JobDetector("job"), iter(frames_with_norms(jumps)), everything=True)
    assert [(v.kind, v.decided_iteration) for v in found] == [(VerdictKind.SPIKE, 61)]


def test_a_gradient_norm_beyond_any_tail_is_told_at_once() -> None:
    found = verdicts_of(JobDetector("job"), iter(frames_with_norms({60: 1e6})), everything=True)
    assert [(v.kind, v.decided_iteration) for v in found] == [(VerdictKind.SPIKE, 60)]
