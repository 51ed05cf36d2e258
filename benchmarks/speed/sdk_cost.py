"""What the SDK costs the training thread per iteration, with Kafka up, down and stuck.

``python -m benchmarks.speed.sdk_cost`` starts a Kafka of its own and prints a table and JSON. Callers: a plain
loop (``run.iteration`` with three compute segments and a rank controller), and the elastic engine (every segment and
wait that its phases are told of, and its sample). Only the SDK's calls are timed; in between the thread computes, as a
trainer does.
"""

import argparse
import json
import logging
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.speed.live import servers
from evenkeel.demo.script.job import NUM_MICRO_BATCHES, main_job
from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.measure.report import iteration_measured
from evenkeel.trainer_sdk.elastic.measure.traffic import Traffic
from evenkeel.trainer_sdk.elastic.measure.wait_kind import BETWEEN_OPERATIONS, WaitKind
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.kafka_emitter import KafkaEmitter
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.watch.run import Run

_JOB_TOKEN = "a-token-for-loopback-only"  # noqa: S105 - guards nothing
_ITERATION_SECONDS = 0.002
_PIECE_SECONDS = 2e-5
_NUM_OWN_MICRO_BATCHES = 4
_NUM_TENSOR_WAITS = 9
"""Per micro-batch, forward and backward, in the last stage of the demo's job (6 in the first)."""


def main() -> None:
    """Measure every caller in every state of Kafka and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2000)
    num_iterations = parser.parse_args().iterations
    logging.disable(logging.WARNING)  # that Kafka is away is the point
    rows = []
    with silent_server() as stuck, servers() as alive:
        for state, address in {"up": alive.kafka, "down": "127.0.0.1:1", "stuck": stuck}.items():
            for caller, measure in (("plain loop", plain_loop), ("engine", engine)):
                emitter = KafkaEmitter(address, Source(job_id="sdk-cost", rank=0))
                seconds = measure(emitter, num_iterations)
                emitter.close()
                rows.append(
                    {
                        "kafka": state,
                        "caller": caller,
                        "iterations": len(seconds),
                        "p50_microseconds": round(statistics.median(seconds) * 1e6, 2),
                        "p99_microseconds": round(statistics.quantiles(seconds, n=100)[98] * 1e6, 2),
                        "max_microseconds": round(max(seconds) * 1e6, 1),
                        "sent": emitter.num_sent,
                        "dropped": emitter.num_dropped,
                    }
                )
    columns = list(rows[0])
    print("  ".join(f"{column:>16}" for column in columns))
    for row in rows:
        print("  ".join(f"{row[column]!s:>16}" for column in columns))
    print(json.dumps({"sdk_cost": rows}))


def plain_loop(emitter: KafkaEmitter, num_iterations: int) -> list[float]:
    """Seconds per iteration spent in the SDK by a plain loop with everything switched on."""
    mailbox = Mailbox(rank=0)
    server = ControlServer(mailbox, job_id="sdk-cost", job_token=_JOB_TOKEN, can_reshape=False)
    server.start()
    run = Run(emitter=emitter, mailbox=mailbox)
    clock = time.perf_counter

    def iteration() -> float:
        spent = -clock()
        measured = run.iteration(tokens=512, sum_of_squares=1e5)
        measured.__enter__()
        spent += clock()
        for kind in ("forward", "backward", "optimizer"):
            spent -= clock()
            segment = measured.compute(kind)
            segment.__enter__()
            spent += clock()
            compute(_ITERATION_SECONDS / 3)
            spent -= clock()
            segment.__exit__(None, None, None)
            spent += clock()
        spent -= clock()
        measured.loss = 2.5
        measured.__exit__(None)
        return spent + clock()

    seconds = repeat(iteration, num_iterations)
    server.stop()
    return seconds


def engine(emitter: KafkaEmitter, num_iterations: int) -> list[float]:
    """Seconds per iteration spent in the SDK by the elastic engine: all that its phases do, and its sample.

    The calls are those of a rank of the demo's last stage: 14 segments, 36 waits inside segments and 12 between them.
    Each computes for a while, and so does each wait: a border that comes right behind another one costs less.
    """
    job = main_job("sdk-cost", 0)
    layout = uniform_layout(
        num_blocks=len(job.model.blocks), tensor=1, pipeline=1, data=1, num_micro_batches=NUM_MICRO_BATCHES
    )
    cpu, phases = torch.device("cpu"), Phases(CpuDevice(), emitter.progress, in_none=BETWEEN_OPERATIONS)
    runtime = EpochRuntime(job.config, Dataset(job.config, cpu), 0, initial_state(job.config, layout, 0), {}, phases)
    traffic = Traffic(0, None)
    runtime.run_iteration(0)
    clock, peer = time.perf_counter, (1,)
    computed = 0.0

    def work() -> None:
        nonlocal computed
        started = clock()
        compute(_PIECE_SECONDS)
        computed += clock() - started

    def iteration() -> float:
        nonlocal computed
        computed = 0.0
        started = clock()
        phases.begin_iteration(0)
        with phases.segments[ComputeKind.DATA]:
            work()
        for _ in range(_NUM_OWN_MICRO_BATCHES):
            with phases.segments[ComputeKind.DATA]:
                work()
            phases.waits(WaitKind.PIPELINE, peer, work)
            with phases.segments[ComputeKind.FORWARD]:
                for _ in range(_NUM_TENSOR_WAITS // 2):
                    work()
                    phases.waits(WaitKind.TENSOR, peer, work)
                work()
            with phases.segments[ComputeKind.BACKWARD]:
                for _ in range(_NUM_TENSOR_WAITS - _NUM_TENSOR_WAITS // 2):
                    work()
                    phases.waits(WaitKind.TENSOR, peer, work)
                work()
            phases.waits(WaitKind.PIPELINE, peer, work)
        for kind in (WaitKind.GRADIENT, WaitKind.GRADIENT, WaitKind.VOTE, WaitKind.VOTE):
            phases.waits(kind, peer, work)
        with phases.segments[ComputeKind.OPTIMIZER]:
            work()
        emitter.emit_later(
            iteration_measured(
                runtime,
                phases.end_iteration(),
                traffic.take(),
                iteration=0,
                loss=2.5,
                gradient_norm=1.0,
                after_reshape=False,
                checkpoint=False,
            )
        )
        return clock() - started - computed

    return repeat(iteration, num_iterations)


def repeat(iteration: Callable[[], float], num_iterations: int) -> list[float]:
    """Seconds of each of ``num_iterations`` after a warm-up."""
    for _ in range(100):
        iteration()
    return [iteration() for _ in range(num_iterations)]


def compute(seconds: float) -> None:
    """Keep the core busy, as a trainer does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


@contextmanager
def silent_server() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    main()
