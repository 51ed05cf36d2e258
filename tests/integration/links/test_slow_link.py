"""A slow link between real ranks, from their stamps to the detector's verdict."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from evenkeel.contracts.batches import read_batches
from evenkeel.contracts.frames import Frames
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.contracts.topics import BATCHES, SUSPICIONS
from evenkeel.layouts.layout import uniform_layout
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.frame_reader import observations_of
from evenkeel.services.detector.adapters.observation_codec import liveness_from_proto
from evenkeel.services.detector.domain.findings.verdict import Evidence, Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from evenkeel.services.scheduler.adapters.findings import decode_suspicion
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.dispatch.protocol import Probe, RankCalls
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.probing import Prober
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.observed import Arrived
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.telemetry.v2.frames_pb2 import Liveness
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, Links, LinkTable
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from tests.fakes.kafka import FakeBroker, FakeProducer
from tests.integration.elastic.fleet import Fleet
from tests.integration.elastic.rank_process import RankProcess

pytestmark = pytest.mark.integration

CONFIG = TrainingConfig(
    job_id="slow-link",
    num_iterations=100,
    model=ModelConfig(num_layers=2, num_heads=2, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=20.0, corpus_bytes=300_000),
)
# Two replicas of two stages: links 0-1 and 2-3 for activations, 0-2 and 1-3 for gradients.
LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=4)
# Three replicas of two stages: the ranks of a stage are a group of three, no two of them have one of their own.
THREE_REPLICAS = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=3, num_micro_batches=3)
LATENCY_SECONDS = 0.006
ONSET = 40
FACTOR = 6.0
# Far beyond what a busy machine adds to the time of any of the links that are told apart.
PROBED_FACTOR = 40.0


class Joined:
    """What the telemetry service makes of what ranks tell; each replica on a node of its own."""

    def __init__(self) -> None:
        self._stream = JobStream(CONFIG.job_id, first_sequence=0)
        self._builders: dict[int, BatchBuilder] = {}
        self.sequence = count()

    def frames(self, fleet: Fleet, iteration: int) -> list[FrameObservation]:
        """The frames that close with an iteration: its own, and the first one's only with the second."""
        of_ranks = sorted(fleet.samples[iteration].items())
        batches = [batch for rank, one in of_ranks for batch in self._builder(rank).build(measured=[one])]
        read = read_batches(Batch.FromString(b"".join(batch.SerializeToString() for batch in batches)))
        offsets = np.arange(len(batches)) + len(batches) * iteration
        told = self._stream.take(Arrived(read, offsets, [], []), 1e9 + iteration)
        frames = [observed for _, observed in told if isinstance(observed, Frames)]
        return [each for one in frames for each in self._observations(one)]

    def _observations(self, frames: Frames) -> Iterator[FrameObservation]:
        for each in frames.each():
            yield from observations_of(CONFIG.job_id, next(self.sequence), each)

    def _builder(self, rank: int) -> BatchBuilder:
        source = Source(job_id=CONFIG.job_id, rank=rank, node=f"node-{rank // 2}", device="gpu-0")
        return self._builders.setdefault(rank, BatchBuilder(source))


def test_a_link_that_takes_six_times_as_long_is_named_as_the_slowest(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    # Six times 6 ms is less than what a machine at a load of 25 adds to the time of healthy ones.
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=4 * LATENCY_SECONDS, factor=table.factor)
    config = replace(CONFIG, num_iterations=ONSET + 40)
    fleet = start_fleet(config, LAYOUT, make_links=lambda: links, ahead=config.num_iterations)
    fleet.reached(ONSET)
    table.set_factor(0, 1, FACTOR)
    fleet.finish()
    found: list[Verdict] = []
    detector = JobDetector(CONFIG.job_id)
    joined = Joined()
    for iteration in sorted(fleet.samples):
        for frame in joined.frames(fleet, iteration):
            found += [one for one in detector.observe(frame) if isinstance(one, Verdict)]
    slow = [one for one in found if one.kind is VerdictKind.COMMUNICATION_SLOW and one.first_iteration >= ONSET]
    mine = [one.throughput for one in slow if {culprit.rank for culprit in one.culprits} == {0, 1}]
    # Other work on this machine may hold up two of the ranks for a while: a slow link too, but a lesser one.
    others = [one.throughput for one in slow if {culprit.rank for culprit in one.culprits} != {0, 1}]
    # What a busy machine adds, it adds to both times: the ratio comes out nearer to one.
    assert mine, found
    assert 1 / FACTOR - 0.1 < min(mine) < 0.7
    assert min(mine) < min(others, default=1.0)


def test_loopback_is_no_link(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(
        TrainingConfig(job_id="loopback", num_iterations=2, model=CONFIG.model, workload=CONFIG.workload), LAYOUT
    )
    fleet.finish()
    assert not any(sample.channels for sample in fleet.samples[1].values())


def test_stamps_of_both_ends_agree_on_how_many_operations_there_were(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(
        TrainingConfig(job_id="stamps", num_iterations=3, model=CONFIG.model, workload=CONFIG.workload),
        LAYOUT,
        make_links=Links,
    )
    fleet.finish()
    samples = fleet.samples[2]
    told = {
        (rank, channel.kind, channel.party): len(channel.entered_seconds)
        for rank, sample in samples.items()
        for channel in sample.channels
    }
    assert told[0, pb.CHANNEL_KIND_ACTIVATION_SENT, 1] == told[1, pb.CHANNEL_KIND_ACTIVATION_RECEIVED, 0] == 2
    assert told[1, pb.CHANNEL_KIND_GRADIENT_SENT, 0] == told[0, pb.CHANNEL_KIND_GRADIENT_RECEIVED, 1] == 2
    exchanges = {(rank, party) for rank, kind, party in told if kind == pb.CHANNEL_KIND_COLLECTIVE}
    assert len({party for _, party in exchanges}) == 2
    assert len(exchanges) == 4
    for sample in samples.values():
        for channel in sample.channels:
            assert max(channel.entered_seconds) < sample.began_seconds + sample.wall_seconds
            assert len(channel.took_seconds) in (0, len(channel.num_bytes))


class PipedRank:
    """A rank's controller as the scheduler calls it, through the test's pipe; only probes of links."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        assert probe.link is not None
        await asyncio.to_thread(self._process.call, "ask_link", probe.link)
        return await asyncio.to_thread(self._process.call, "link_answer")


def watched(fleet: Fleet, iteration: int, detector: JobDetector, joined: Joined) -> list[Finding]:
    """What the detector finds in an iteration, with the answers of all probes that it asks for."""
    frames = joined.frames(fleet, iteration)
    found = [one for frame in frames for one in detector.observe(frame)]
    for one in found.copy():
        if isinstance(one, Suspicion) and one.link is not None:
            liveness = Liveness(at_unix_seconds=frames[-1].closed_at_unix_seconds)
            liveness.event.CopyFrom(asyncio.run(answered(one, fleet)))
            found += detector.observe(liveness_from_proto(CONFIG.job_id, next(joined.sequence), liveness))
    return found


async def answered(suspicion: Suspicion, fleet: Fleet) -> process_pb2.ProcessEvent:
    """The event in which the scheduler tells what the probe took, with every message as it goes over the wire."""
    producer = FakeProducer(broker := FakeBroker())
    await producer.send_all([record_of(suspicion)])
    (asked,) = broker.records(SUSPICIONS.name)
    calls = {rank: cast(RankCalls, PipedRank(process)) for rank, process in fleet.ranks.items()}
    found = await Prober(SchedulerMetrics(create_registry())).answer(decode_suspicion(asked), calls)
    assert found is not None, "the probe had no answer"
    await JobEvents(producer, CONFIG.job_id, "").probed(decode_suspicion(asked), *found)
    (told,) = broker.records(BATCHES.name)
    return Batch.FromString(told.value or b"").events[0]


def probed_until_told(
    fleet: Fleet, make_slow: Callable[[], None], culprits: set[int]
) -> tuple[Evidence, list[tuple[int, int, int, int]]]:
    """What a verdict about a link says of its probe, and which links were compared; it gets slow once none is held up.

    Args:
        fleet: A job that trains meanwhile.
        make_slow: Makes the link slow.
        culprits: Whom the verdict names.
    """
    detector, joined, is_slow = JobDetector(CONFIG.job_id), Joined(), False
    probed: list[tuple[int, int, int, int]] = []
    held_up: set[frozenset[int]] = set()  # by other work on this machine, where there is some
    for iteration in range(fleet.config.num_iterations):
        fleet.pump_until(
            lambda i=iteration: len(fleet.samples.get(i, ())) == len(fleet.ranks), f"everybody's iteration {iteration}"
        )
        found = watched(fleet, iteration, detector, joined)
        for one in found if is_slow else ():
            if isinstance(one, Suspicion) and one.link is not None:
                probed.append((one.rank, one.link.partner_rank, one.peer_rank, one.link.peer_partner_rank))
            for evidence in probe_evidence(one, culprits):
                return evidence, probed
        for verdict in (one for one in found if isinstance(one, Verdict)):
            ranks = frozenset(culprit.rank for culprit in verdict.culprits)
            (held_up.add if verdict.kind is VerdictKind.COMMUNICATION_SLOW else held_up.discard)(ranks)
        if iteration >= ONSET and not held_up and not is_slow:
            make_slow()
            is_slow = True
    pytest.fail(f"no verdict about {culprits} in {fleet.config.num_iterations} iterations; probed: {probed}")


@pytest.mark.timeout(1200)
def test_a_suspected_link_is_probed_while_the_job_trains_and_its_verdict_says_what_was_found(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS, factor=table.factor)
    config = replace(CONFIG, num_iterations=600)
    fleet = start_fleet(config, LAYOUT, make_links=lambda: links, ahead=config.num_iterations)
    told, probed = probed_until_told(fleet, lambda: table.set_factor(0, 1, PROBED_FACTOR), {0, 1})
    assert (0, 1, 2, 3) in probed
    # What a busy machine adds, it adds to both; what holds up one of them for a moment, to one.
    assert 1.3 < told.value < 2 * PROBED_FACTOR
    goes_on = max(fleet.samples) + 3
    fleet.pump_until(lambda: len(fleet.samples.get(goes_on, ())) == 4, "more iterations after the probe")


@pytest.mark.timeout(1200)
def test_the_slow_link_inside_a_group_of_three_is_found_by_probes_while_the_job_trains(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 6)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS, factor=table.factor)
    config = replace(CONFIG, num_iterations=600, workload=replace(CONFIG.workload, num_micro_batches=3))
    fleet = start_fleet(config, THREE_REPLICAS, make_links=lambda: links, ahead=config.num_iterations)
    told, _ = probed_until_told(fleet, lambda: table.set_factor(2, 4, PROBED_FACTOR), {0, 2, 4})
    # Transfers name the group only; of the links in it, this one takes longer than one of the other stage's group.
    assert "between ranks 2 and 4 took" in told.text
    assert 1.3 < told.value < 2 * PROBED_FACTOR


def probe_evidence(finding: Finding, culprits: set[int]) -> list[Evidence]:
    """How much longer a probe took over a slow link than over another, where a verdict about these ranks says it."""
    if not isinstance(finding, Verdict) or finding.kind is not VerdictKind.COMMUNICATION_SLOW:
        return []
    if {one.rank for one in finding.culprits} != culprits:
        return []
    return [one for one in finding.evidence if one.name == "probe against a healthy link"]
