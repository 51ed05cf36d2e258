"""Devices through reshapes and replaced processes: what was known of them counts, what a plan moved is no illness."""

from dataclasses import replace

import pytest

from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.scan.residual.rows import DeviceRows
from tests.unit.detector.synthetic import (
    REPORT_ONLY,
    Place,
    SyntheticJob,
    VerdictKind,
    cube,
    slow_from,
    student,
    verdicts_of,
)


def test_a_slow_device_with_less_work_after_a_reshape_is_still_judged_to_be_as_slow() -> None:
    detector = JobDetector("job")
    slow = slow_from(2, 100, 0.5)
    before = SyntheticJob(places=cube(), throughput=slow, seed=16)
    found = verdicts_of(detector, before.frames(0, 120))
    assert [verdict.culprits[0].rank for verdict in found] == [2]
    lighter = [
        Place(place.replica, place.stage, place.shard, {2: 1 / 3, 3: 2 / 3}.get(rank, place.fraction), place.layers)
        for rank, place in enumerate(cube())
    ]
    after = SyntheticJob(places=lighter, throughput=slow, quotas=(3, 5), seed=17, epoch=1)
    profiles = []
    for frame in after.frames(120, 220):
        for finding in detector.observe(frame):
            assert isinstance(finding, Profile), finding
            profiles.append(finding)
    throughputs = {one.rank: one.throughput for one in profiles[-1].throughputs}
    assert throughputs[2] == pytest.approx(0.5, abs=0.03)
    assert all(throughputs[rank] == 1.0 for rank in range(8) if rank != 2)


def test_a_reshape_of_a_healthy_job_accuses_nobody_and_illness_after_it_is_found() -> None:
    detector = JobDetector("job")
    found = verdicts_of(detector, SyntheticJob(places=cube(), seed=18).frames(0, 100))
    deeper = [Place(p.replica, p.stage, p.shard, p.fraction, p.layers + (2 if p.stage else -2)) for p in cube()]
    after = SyntheticJob(places=deeper, quotas=(5, 3), throughput=slow_from(7, 150, 0.8), seed=19, epoch=1)
    found += verdicts_of(detector, after.frames(100, 160))
    assert [(verdict.culprits[0].rank, verdict.kind) for verdict in found] == [(7, VerdictKind.COMPUTE_SLOW)]


@pytest.mark.parametrize(("kept", "points"), [(1, 0.06), (5, 0.02)])
@pytest.mark.parametrize("last_stage", [0.93, 1.05])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_device_with_much_less_work_stays_as_slow_where_stages_are_not_worth_their_flops(
    last_stage: float, seed: int, kept: int, points: float
) -> None:
    places = cube(tensor=1, pipeline=2, data=2)
    options = {"throughput": slow_from(0, 40, 0.5), "stage_factor": {1: last_stage}, "seed": seed}
    detector = JobDetector("job")
    found = verdicts_of(detector, SyntheticJob(places=places, **options).frames(0, 60))
    layers = {0: kept, 1: 17 - kept}
    lighter = [replace(place, layers=layers.get(rank, place.layers)) for rank, place in enumerate(places)]
    profiles = []
    for frame in SyntheticJob(places=lighter, epoch=1, **options).frames(60, 140):
        for finding in detector.observe(frame):
            if isinstance(finding, Profile):
                profiles.append(finding)
            elif isinstance(finding, Verdict) and finding.kind not in REPORT_ONLY:
                found.append(finding)
    assert [(verdict.kind, verdict.culprits[0].rank) for verdict in found] == [(VerdictKind.COMPUTE_SLOW, 0)]
    slow = {one.rank: one.throughput for one in profiles[-1].throughputs if one.throughput < 1.0}
    assert slow == {0: pytest.approx(0.5, abs=points)}


@pytest.mark.parametrize("places", [cube(1, 2, 2), cube(1, 4, 1)], ids=["two stages, two replicas", "four stages"])
@pytest.mark.parametrize("seed", range(3))
def test_the_milder_of_two_slow_devices_does_not_hide_in_the_baseline_of_the_plan_against_the_other(
    places: list[Place], seed: int
) -> None:
    def throughput(rank: int, iteration: int) -> float:
        return {0: 0.6, 3: 0.87}.get(rank, 1.0) if iteration >= 40 else 1.0

    options = {"throughput": throughput, "stage_factor": {1: 1.05}, "seed": seed}
    quotas = (4,) * (1 + max(place.replica for place in places))
    detector = JobDetector("job")
    found = verdicts_of(detector, SyntheticJob(places=places, quotas=quotas, **options).frames(0, 46))
    assert 0 in {verdict.culprits[0].rank for verdict in found}
    # The plan gives every stage of the slow device's replica another share: the milder one's has no peer either.
    shares = {0: 5, 1: 10, 2: 9, 3: 8} if len(quotas) == 1 else {0: 5, 1: 12, 2: 7, 3: 10}
    moved = [replace(place, layers=shares[rank]) for rank, place in enumerate(places)]
    found += verdicts_of(detector, SyntheticJob(places=moved, quotas=quotas, epoch=1, **options).frames(46, 120))
    speeds = {verdict.culprits[0].rank: verdict.throughput for verdict in found}
    assert speeds == {0: pytest.approx(0.6, abs=0.03), 3: pytest.approx(0.87, abs=0.04)}
    assert VerdictKind.RECOVERED not in {verdict.kind for verdict in found}


@pytest.mark.parametrize("last_stage", [0.85, 1.15])
@pytest.mark.parametrize("seed", range(3))
def test_healthy_stages_that_are_not_worth_their_flops_are_left_alone_through_reshapes(
    last_stage: float, seed: int
) -> None:
    detector, found, start = JobDetector("job"), [], 0
    for epoch, (moved, stop) in enumerate(((0, 33), (3, 70), (-2, 110), (0, 150))):
        places = [
            replace(place, layers=place.layers + (moved if place.stage else -moved)) if place.replica == 0 else place
            for place in cube(1, 2, 2)
        ]
        job = SyntheticJob(
            places=places, noise=student(0.02, 2.5), seed=seed, epoch=epoch, stage_factor={1: last_stage}
        )
        found += verdicts_of(detector, job.frames(start, stop))
        start = stop
    assert found == []


def test_a_replacement_starts_with_a_clean_record() -> None:
    detector = JobDetector("job")
    ill = SyntheticJob(places=cube(), throughput=slow_from(1, 60, 0.5), seed=20)
    assert len(verdicts_of(detector, ill.frames(0, 80))) == 1
    fresh = SyntheticJob(places=cube(), incarnations={1: 1}, seed=21, epoch=1)
    assert verdicts_of(detector, fresh.frames(80, 160)) == []


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_of_a_device_outlasts_its_process(seed: int) -> None:
    noise = student(0.01, 4)
    detector = JobDetector("job")
    assert verdicts_of(detector, SyntheticJob(places=cube(), noise=noise, seed=seed).frames(0, 200)) == []
    # Five per cent, soon after the process was replaced: taken for the device's own, were it a new one.
    again = SyntheticJob(
        places=cube(),
        noise=noise,
        incarnations={1: 1},
        throughput=slow_from(1, 208, 0.952),
        seed=100 + seed,
        epoch=1,
    )
    first, *_ = verdicts_of(detector, again.frames(200, 270))
    assert first.kind is VerdictKind.COMPUTE_SLOW
    assert [culprit.rank for culprit in first.culprits] == [1]


@pytest.mark.parametrize(
    ("incarnation", "device", "outlasts"),
    [(1, "device-1", True), (1, "another", False), (0, "another", False), (1, "", False)],
)
def test_a_row_begins_afresh_on_another_device_and_where_none_is_named(
    incarnation: int, device: str, outlasts: bool
) -> None:
    rows = DeviceRows()
    (before,) = SyntheticJob(places=cube()).frames(0, 1)
    rows.locate(before, num_to_skip=0)
    (frame,) = SyntheticJob(places=cube(), incarnations={1: incarnation}).frames(1, 2)
    frame = replace(frame, devices=("device-0", device, *frame.devices[2:]))
    replaced, moved = rows.locate(frame, num_to_skip=2)
    assert replaced.tolist() == [1]
    assert moved.tolist() == ([] if outlasts else [1])
    assert rows.num_to_skip.tolist() == [0, 2, 0, 0, 0, 0, 0, 0]
