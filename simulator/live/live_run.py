"""Runs a simulated job in real time against real services.

One asyncio loop: iterations last as long as they are simulated to last (all of it ``speed`` times faster than the
scenario says), records go to Kafka with the SDK's producer, faults of the scenario come at their moments. The job and
each rank register at the fleet API; each rank has the SDK's controller, through which the scheduler plans for it. A
fleet larger than ``max_controllers`` only emits: verdicts follow, plans do not.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from aiokafka import AIOKafkaProducer

from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.topics import BATCHES, record_headers
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.simulator.fleet.faults.faults import Fault, Truth
from evenkeel.simulator.fleet.scenario.scenario import Scenario
from evenkeel.simulator.job.hardware import Hardware
from evenkeel.simulator.live.simulated_job import Documents, Iteration, SimulatedJob
from evenkeel.simulator.live.simulated_rank import SimulatedRank
from evenkeel.telemetry.v2 import batch_pb2
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.tls import ControllerTls, fleet_channel, security_of
from evenkeel.trainer_sdk.emit.producer import create_producer

_CALL_SECONDS = 30.0
_WAIT_SECONDS = 0.05
_SOURCE = "evenkeel/simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Where the services are; without a fleet address the job only emits.

    Attributes:
        bootstrap_servers: Kafka, ``host:port[,host:port]``.
        security: How it is spoken to, see :mod:`evenkeel.contracts.kafka_security`.
        fleet_address: Fleet API, ``host:port``; empty = nobody plans.
        fleet_token: Its bearer token.
        fleet_ca_file: PEM file with the certificates that its certificate is signed by; empty = no TLS to it.
        controller_tls: Of the simulated ranks' controllers; None = no TLS.
        max_controllers: Up to so many ranks get a controller; each costs some threads.
    """

    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict)
    fleet_address: str = ""
    fleet_token: str = ""
    fleet_ca_file: str = ""
    controller_tls: ControllerTls | None = None
    max_controllers: int = 64


@dataclass(slots=True, kw_only=True)
class LiveReport:
    """What has happened so far.

    Attributes:
        num_iterations: Steps done.
        num_records: Records that Kafka acknowledged.
        num_faults: Faults that began.
        epochs: Epochs that the job has run, in order.
        waited_seconds: Without an iteration.
        iteration_seconds: Of every epoch: what its iterations took.
    """

    num_iterations: int = 0
    num_records: int = 0
    num_faults: int = 0
    epochs: list[int] = field(default_factory=lambda: [0])
    waited_seconds: float = 0.0
    iteration_seconds: dict[int, list[float]] = field(default_factory=dict)


def simulated_job(scenario: Scenario, job_id: str, speed: float, seed: int) -> SimulatedJob:
    """The scenario's job, everything ``speed`` times faster.

    Raises:
        ValueError: The speed is not above 0.
    """
    if not speed > 0.0:
        raise ValueError(f"speed is {speed:g}: give how many times faster than the scenario, above 0")
    workload = scenario.cost.workload
    return SimulatedJob(
        job_id=job_id,
        home=scenario.home,
        model=scenario.cost.model,
        hardware=Hardware(
            seconds_per_flop=workload.seconds_per_flop / speed,
            transfer_seconds=workload.transfer_seconds / speed,
            optimizer_seconds=workload.fixed_seconds / speed,
        ),
        documents=Documents(token_budget=round(workload.tokens), mean_length=workload.sum_of_squares / workload.tokens),
        devices_per_node=scenario.topology.devices_per_node,
        seed=seed,
    )


class LiveRun:
    """One run; call :meth:`run` once.

    Args:
        job: The job, healthy.
        faults: What breaks, in seconds of this run.
        num_devices: Of the fleet.
        services: Where to.
        job_token: Token of the job, at least 16 characters.
        on_progress: Called after each iteration and each wait.
    """

    def __init__(
        self,
        job: SimulatedJob,
        faults: Iterable[Fault],
        *,
        num_devices: int,
        services: Services,
        job_token: str,
        on_progress: Callable[[LiveReport], None] | None = None,
    ) -> None:
        self.job, self.report = job, LiveReport()
        self._services, self._token, self._on_progress = services, job_token, on_progress
        self._key = job_key(job.job_id, job_token)
        self._truth = Truth(num_devices)
        moments = [(fault.at_seconds, 1, fault) for fault in faults]
        moments += [(fault.at_seconds + fault.duration_seconds, 0, fault) for fault in faults]
        self._moments = sorted(moments, key=lambda moment: moment[:2])
        self._servers: dict[int, tuple[SimulatedRank, ControlServer]] = {}
        self._controlled = bool(services.fleet_address) and len(job.ranks) <= services.max_controllers

    async def run(self, seconds: float, until: Callable[[LiveReport], bool] | None = None) -> LiveReport:
        """Runs for so many seconds, or until a condition holds after an iteration.

        Raises:
            KafkaError: The broker is not there, or takes nothing any more.
            RuntimeError: The fleet API refuses the job.
        """
        producer = create_producer(
            self._services.bootstrap_servers, f"evenkeel-{self.job.job_id}", self._services.security
        )
        await producer.start()
        try:
            if self._services.fleet_address:
                await asyncio.to_thread(self._register_job)
                await self._follow_ranks()
            begun = time.monotonic()
            while (elapsed := time.monotonic() - begun) < seconds and not (until and until(self.report)):
                await self._step(producer, elapsed, begun)
                if self._on_progress:
                    self._on_progress(self.report)
        finally:
            await producer.stop()
            # Finished first: a stream that breaks afterwards is no news.
            if self._services.fleet_address:
                await asyncio.to_thread(self._finish_job)
            for _, server in self._servers.values():
                await asyncio.to_thread(server.stop, 0.2)
        return self.report

    def repair(self, fault: Fault) -> None:
        """The devices of a fault that has begun are back with the next step, whatever its duration."""
        self._moments = [(0.0, 0, fault), *(moment for moment in self._moments if moment[1] or moment[2] != fault)]

    async def _step(self, producer: AIOKafkaProducer, elapsed: float, begun: float) -> None:
        now = time.time()
        records = [*self._faults_until(elapsed, now), *self.job.evicted(now)]
        await self._follow_ranks()
        await self._send(producer, records)
        for number, rank in self.job.ranks.items():
            rank.serve_probe(max(0.01, self._truth.throughput(number)))
        if not self.job.can_iterate:
            await self._send(producer, self.job.wait_for_plan(now))
            self._note_epoch()
            self.report.waited_seconds += _WAIT_SECONDS
            await asyncio.sleep(_WAIT_SECONDS)
            return
        iteration = self.job.begin(self._truth.live())
        if await self._iterates(iteration, begun):
            await self._send(producer, self.job.finish(iteration, now))
            self.report.num_iterations += 1
            self.report.iteration_seconds.setdefault(self.report.epochs[-1], []).append(iteration.seconds)
            self._note_epoch()

    async def _iterates(self, iteration: Iteration, begun: float) -> bool:
        """Sleeps as long as the iteration lasts; False when a fault or an interrupt cuts it."""
        end = time.monotonic() + iteration.seconds
        while (left := end - time.monotonic()) > 0.0:
            await asyncio.sleep(min(left, _WAIT_SECONDS))
            next_at = self._moments[0][0] if self._moments else float("inf")
            if not self.job.can_iterate or (time.monotonic() - begun >= next_at and self._cuts()):
                return False
        return True

    def _cuts(self) -> bool:
        _, begins, fault = self._moments[0]
        return bool(begins) and fault.throughput <= 0.0 and any(d in self.job.layout.ranks for d in fault.devices)

    def _note_epoch(self) -> None:
        if self.job.epoch != self.report.epochs[-1]:
            self.report.epochs.append(self.job.epoch)

    def _faults_until(self, elapsed: float, now: float) -> list[batch_pb2.Batch]:
        records = []
        while self._moments and self._moments[0][0] <= elapsed:
            _, begins, fault = self._moments.pop(0)
            if begins:
                self.report.num_faults += 1
                self._truth.begin(fault)
            else:
                self._truth.end(fault)
            if fault.throughput > 0.0:
                continue
            for device in fault.devices:
                if begins:
                    records += self.job.kill(device, now, silent=fault.silent)
                elif device in self.job.home.ranks or device in self.job.home.standbys:
                    records += self.job.replace(device, now)
        return records

    async def _send(self, producer: AIOKafkaProducer, records: list[batch_pb2.Batch]) -> None:
        key = self.job.job_id.encode()
        sent = [
            await producer.send(
                BATCHES.name,
                signed(record.SerializeToString(), self._key),
                key=key,
                headers=record_headers(BATCHES, _SOURCE),
            )
            for record in records
        ]
        await asyncio.gather(*sent)
        self.report.num_records += len(sent)

    async def _follow_ranks(self) -> None:
        """Controllers for processes that are new, none for those that are gone."""
        if not self._controlled:
            return
        # Who stops silently closes no connection: its controller stays until a replacement is there.
        gone = [
            number
            for number, (rank, _) in self._servers.items()
            if self.job.ranks.get(number) is not rank and number not in self.job.silent
        ]
        for number in gone:
            _, server = self._servers.pop(number)
            await asyncio.to_thread(server.stop, 0.0)
        for number, rank in self.job.ranks.items():
            if number not in self._servers:
                server = ControlServer(
                    rank.mailbox,
                    job_id=self.job.job_id,
                    job_token=self._token,
                    tls=self._services.controller_tls,
                )
                server.start()
                self._servers[number] = (rank, server)
                await asyncio.to_thread(self._register_rank, rank, server.address())

    def _register_job(self) -> None:
        request = pb.RegisterJobRequest(
            job_id=self.job.job_id,
            name=f"simulated {self.job.job_id}",
            job_token=self._token,
            model=model_to_proto(self.job.model),
            layout=layout_to_proto(self.job.home),
        )
        self._call("RegisterJob", request, self._services.fleet_token)

    def _register_rank(self, rank: SimulatedRank, address: str) -> None:
        node, device = self.job.where(rank.rank)
        process = pb.RankProcess(
            rank=rank.rank,
            incarnation=rank.incarnation,
            node=node,
            device=device,
            address=address,
            process_id=os.getpid(),
            controller_security=security_of(self._services.controller_tls),
        )
        request = pb.RegisterRanksRequest(job_id=self.job.job_id, processes=[process])
        self._call("RegisterRanks", request, self._token)

    def _finish_job(self) -> None:
        self._call("FinishJob", pb.FinishJobRequest(job_id=self.job.job_id), self._services.fleet_token)

    def _call(self, name: str, request: object, token: str) -> None:
        with fleet_channel(self._services.fleet_address, self._services.fleet_ca_file) as channel:
            stub = scheduler_pb2_grpc.FleetServiceStub(channel)
            try:
                getattr(stub, name)(request, timeout=_CALL_SECONDS, metadata=(("authorization", f"Bearer {token}"),))
            except grpc.RpcError as error:
                raise RuntimeError(
                    f"{name} at the fleet API {self._services.fleet_address}: {error.code().name}, {error.details()}"
                ) from error
