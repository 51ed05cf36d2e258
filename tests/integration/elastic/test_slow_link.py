"""A slow link between real ranks, from their stamps to the detector's verdict."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from evenkeel.contracts.topics import RECORDS, SUSPICIONS
from evenkeel.layouts.layout import uniform_layout
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.frame_codec import frame_from_proto
from evenkeel.services.detector.adapters.observation_codec import liveness_from_proto
from evenkeel.services.detector.domain.detector import Finding, JobDetector
from evenkeel.services.detector.domain.suspicion import Suspicion
from evenkeel.services.detector.domain.verdict import Evidence, Verdict, VerdictKind
from evenkeel.services.scheduler.adapters.findings import decode_suspicion
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.dispatch import protocol
from evenkeel.services.scheduler.probing import Prober
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.control.probe import LinkProbe
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, LinkTable, RealLinks
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from tests.fakes.kafka import FakeBroker, FakeProducer
from tests.integration.elastic.fleet import Fleet
from tests.integration.elastic.rank_process import RankProcess

pytestmark = [pytest.mark.integration, pytest.mark.clock]

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


def frames(fleet: Fleet) -> Iterator[pb.Frame]:
    """The samples as the telemetry service would join them; each replica on a node of its own."""
    for iteration in sorted(fleet.samples):
        yield frame_of(fleet, iteration)


def frame_of(fleet: Fleet, iteration: int) -> pb.Frame:
    entries = [
        pb.FrameEntry(rank=rank, node=f"node-{rank // 2}", device="gpu-0", sample=sample)
        for rank, sample in sorted(fleet.samples[iteration].items())
    ]
    return pb.Frame(iteration=iteration, closed_at_unix_seconds=1e9 + iteration, entries=entries)


def test_a_link_that_takes_six_times_as_long_is_named_as_the_slowest(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS, factor=table.factor)
    config = replace(CONFIG, num_iterations=ONSET + 40)
    fleet = start_fleet(config, LAYOUT, make_links=lambda: links, ahead=config.num_iterations)
    fleet.reached(ONSET)
    table.set_factor(0, 1, FACTOR)
    fleet.finish()
    found: list[Verdict] = []
    detector = JobDetector(CONFIG.job_id)
    for frame in frames(fleet):
        observation = frame_from_proto(CONFIG.job_id, frame.iteration, frame)
        found += [one for one in detector.observe(observation) if isinstance(one, Verdict)]
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


class PipedRank:
    """A rank's controller as the scheduler calls it, through the test's pipe; only probes of links."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process

    async def probe_link(self, probe: protocol.LinkProbe, timeout_seconds: float) -> list[float]:
        asked = LinkProbe(
            probe_id=probe.probe_id,
            partner_rank=probe.partner_rank,
            num_bytes=probe.num_bytes,
            num_ranks=probe.num_ranks,
            repetitions=probe.repetitions,
        )
        await asyncio.to_thread(self._process.call, "ask_link", asked)
        return await asyncio.to_thread(self._process.call, "link_answer")


def watched(fleet: Fleet, iteration: int, detector: JobDetector, sequence: Iterator[int]) -> list[Finding]:
    """What the detector finds in an iteration, with the answers of all probes that it asks for."""
    frame = frame_from_proto(CONFIG.job_id, next(sequence), frame_of(fleet, iteration))
    found = list(detector.observe(frame))
    for one in found.copy():
        if isinstance(one, Suspicion) and one.link is not None:
            liveness = pb.Liveness(at_unix_seconds=frame.closed_at_unix_seconds)
            liveness.event.CopyFrom(asyncio.run(answered(one, fleet)))
            found += detector.observe(liveness_from_proto(CONFIG.job_id, next(sequence), liveness))
    return found


async def answered(suspicion: Suspicion, fleet: Fleet) -> pb.ProcessEvent:
    """The event in which the scheduler tells what the probe took, with every message as it goes over the wire."""
    producer = FakeProducer(broker := FakeBroker())
    await producer.send_all([record_of(suspicion)])
    (asked,) = broker.records(SUSPICIONS.name)
    calls = {rank: cast(protocol.RankCalls, PipedRank(process)) for rank, process in fleet.ranks.items()}
    outcome = await Prober(JobEvents(producer, CONFIG.job_id).probed).answer(decode_suspicion(asked), calls)
    assert outcome is not None, "the probe had no answer"
    (told,) = broker.records(RECORDS.name)
    return pb.Record.FromString(told.value or b"").events[0]


def test_a_suspected_link_is_probed_while_the_job_trains_and_its_verdict_says_what_was_found(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS, factor=table.factor)
    fleet = start_fleet(CONFIG, LAYOUT, make_links=lambda: links, ahead=CONFIG.num_iterations)
    detector, sequence = JobDetector(CONFIG.job_id), count()
    probed: list[tuple[int, int, int, int]] = []
    told: list[float] = []
    for iteration in range(CONFIG.num_iterations):
        fleet.pump_until(lambda i=iteration: len(fleet.samples.get(i, ())) == 4, f"everybody's iteration {iteration}")
        if iteration == ONSET:
            table.set_factor(0, 1, FACTOR)
        found = watched(fleet, iteration, detector, sequence)
        probed += [
            (one.rank, one.link.partner_rank, one.peer_rank, one.link.peer_partner_rank)
            for one in found
            if isinstance(one, Suspicion) and one.link is not None
        ]
        told += [one.value for verdict in found for one in probe_evidence(verdict, {0, 1})]
        if told:
            break
    assert (0, 1, 2, 3) in probed
    # What a busy machine adds, it adds to both; what holds up one of them for a moment, to one.
    assert 1.3 < told[0] < 2 * FACTOR
    goes_on = max(fleet.samples) + 3
    fleet.pump_until(lambda: len(fleet.samples.get(goes_on, ())) == 4, "more iterations after the probe")


def test_the_slow_link_inside_a_group_of_three_is_found_by_probes_while_the_job_trains(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 6)
    links = EmulatedLinks(bytes_per_second=1e9, latency_seconds=LATENCY_SECONDS / 2, factor=table.factor)
    config = replace(CONFIG, num_iterations=300, workload=replace(CONFIG.workload, num_micro_batches=3))
    fleet = start_fleet(config, THREE_REPLICAS, make_links=lambda: links, ahead=config.num_iterations)
    detector, sequence = JobDetector(CONFIG.job_id), count()
    told: list[Evidence] = []
    for iteration in range(config.num_iterations):
        fleet.pump_until(lambda i=iteration: len(fleet.samples.get(i, ())) == 6, f"everybody's iteration {iteration}")
        if iteration == ONSET:
            table.set_factor(2, 4, FACTOR)
        for finding in watched(fleet, iteration, detector, sequence):
            told += probe_evidence(finding, {0, 2, 4})
        if told:
            break
    # Transfers name the group only; of the links in it, this one takes longer than one of the other stage's group.
    assert "between ranks 2 and 4 took" in told[0].text
    assert 1.3 < told[0].value < 2 * FACTOR


def probe_evidence(finding: Finding, culprits: set[int]) -> list[Evidence]:
    """How much longer a probe took over a slow link than over another, where a verdict about these ranks says it."""
    if not isinstance(finding, Verdict) or finding.kind is not VerdictKind.COMMUNICATION_SLOW:
        return []
    if {one.rank for one in finding.culprits} != culprits:
        return []
    return [one for one in finding.evidence if one.name == "probe against a healthy link"]
