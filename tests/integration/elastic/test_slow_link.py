"""A slow link between real ranks, from their stamps to the detector's verdict."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from layouts.layout import uniform_layout
from services.detector.adapters.observation_codec import frame_from_proto
from services.detector.domain.detector import JobDetector
from services.detector.domain.verdict import Verdict, VerdictKind
from tests.integration.elastic.fleet import Fleet
from trainer_sdk.devices.links import EmulatedLinks, LinkTable, RealLinks
from trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig

pytestmark = pytest.mark.integration

CONFIG = TrainingConfig(
    job_id="slow-link",
    num_iterations=140,
    model=ModelConfig(num_layers=2, num_heads=2, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=20.0, corpus_bytes=300_000),
)
# Two replicas of two stages: links 0-1 and 2-3 for activations, 0-2 and 1-3 for gradients.
LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=4)
LATENCY_SECONDS = 0.006
ONSET = 40
FACTOR = 6.0


def frames(fleet: Fleet) -> Iterator[pb.Frame]:
    """The samples as the telemetry service would join them; each replica on a node of its own."""
    for iteration in sorted(fleet.samples):
        entries = [
            pb.FrameEntry(rank=rank, node=f"node-{rank // 2}", device="gpu-0", sample=sample)
            for rank, sample in sorted(fleet.samples[iteration].items())
        ]
        yield pb.Frame(iteration=iteration, closed_at_unix_seconds=1e9 + iteration, entries=entries)


def test_a_link_that_takes_six_times_as_long_is_named_and_nobody_else_is(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS, factor=table.factor)
    fleet = start_fleet(CONFIG, LAYOUT, make_links=lambda: links)
    fleet.reached(ONSET)
    table.set_factor(0, 1, FACTOR)
    fleet.finish()
    found: list[Verdict] = []
    detector = JobDetector(CONFIG.job_id)
    for frame in frames(fleet):
        observation = frame_from_proto(CONFIG.job_id, frame.iteration, frame)
        found += [one for one in detector.observe(observation) if isinstance(one, Verdict)]
    slow = [one for one in found if one.kind is VerdictKind.COMMUNICATION_SLOW]
    assert [tuple(culprit.rank for culprit in one.culprits) for one in slow[:1]] == [(0, 1)]
    assert all({culprit.rank for culprit in one.culprits} == {0, 1} for one in slow)
    # What a busy machine adds, it adds to both times: the ratio comes out nearer to one.
    assert 1 / FACTOR - 0.1 < slow[-1].throughput < 0.7
    assert slow[0].first_iteration >= ONSET
    assert not [one for one in found if one.kind is VerdictKind.COMPUTE_SLOW]


def test_loopback_is_no_link(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(
        TrainingConfig(job_id="loopback", num_iterations=2, model=CONFIG.model, workload=CONFIG.workload), LAYOUT
    )
    fleet.finish()
    assert not any(sample.HasField("traffic") for sample in fleet.samples[1].values())


def test_stamps_of_both_ends_agree_on_how_many_operations_there_were(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(
        TrainingConfig(job_id="stamps", num_iterations=3, model=CONFIG.model, workload=CONFIG.workload),
        LAYOUT,
        make_links=RealLinks,
    )
    fleet.finish()
    samples = fleet.samples[2]
    told = {
        (rank, kind, party): count
        for rank, sample in samples.items()
        for kind, party, count in zip(
            sample.traffic.kinds, sample.traffic.parties, sample.traffic.num_operations, strict=True
        )
    }
    assert told[0, pb.CHANNEL_KIND_ACTIVATION_SENT, 1] == told[1, pb.CHANNEL_KIND_ACTIVATION_RECEIVED, 0] == 2
    assert told[1, pb.CHANNEL_KIND_GRADIENT_SENT, 0] == told[0, pb.CHANNEL_KIND_GRADIENT_RECEIVED, 1] == 2
    exchanges = {(rank, party) for rank, kind, party in told if kind == pb.CHANNEL_KIND_COLLECTIVE}
    assert len({party for _, party in exchanges}) == 2
    assert len(exchanges) == 4
    for sample in samples.values():
        assert max(sample.traffic.entered_microseconds) < 1e6 * sample.wall_seconds
        assert len(sample.traffic.took_microseconds) == len(sample.traffic.stamped_bytes)
