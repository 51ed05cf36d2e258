"""What the SDK costs the training thread per iteration, with Kafka up, down and stuck.

Two kinds of callers: a plain loop (``run.iteration`` with three compute segments and a rank controller), and an engine
that builds a whole sample itself and marks its progress 100 times. Only the SDK's own calls are timed; in between the
thread computes, as a trainer does. ``EVENKEEL_KAFKA_BOOTSTRAP_SERVERS`` names the broker for the first row; without it
that row is left out. Run ``python -m benchmarks.sdk_cost [iterations]``; prints a table, then JSON.
"""

import json
import logging
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from trainer_sdk.control.mailbox import Mailbox
from trainer_sdk.control.server import ControlServer
from trainer_sdk.emit.kafka_emitter import KafkaEmitter
from trainer_sdk.emit.record_builder import Source
from trainer_sdk.run import Run

_JOB_TOKEN = "a-token-for-loopback-only"  # noqa: S105 - guards nothing
_ITERATION_SECONDS = 0.002
_NUM_MARKS = 100
_MICRO_BATCHES = 8


def main(num_iterations: int) -> None:
    """Measure every caller in every state of Kafka and print the result."""
    logging.disable(logging.WARNING)  # that Kafka is away is the point
    rows = []
    with silent_server() as stuck:
        states = {"down": "127.0.0.1:1", "stuck": stuck}
        up = os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS")
        if up:
            states = {"up": up, **states}
        for state, address in states.items():
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
    """Seconds per iteration spent in the SDK by an engine that marks each operation and builds its sample."""
    clock = time.perf_counter

    def iteration() -> float:
        compute(_ITERATION_SECONDS)
        started = clock()
        for _ in range(_NUM_MARKS):
            emitter.progress.enter("wait:tensor", (1,))
        marks = clock() - started
        started = clock()
        emitter.emit_sample(whole_sample())
        # The marks are the engine's own choice of detail: counted per mark, as if there were ten.
        return clock() - started + marks * 10 / _NUM_MARKS

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


def whole_sample() -> pb.Sample:
    """A sample with everything in it."""
    return pb.Sample(
        iteration=1,
        epoch=1,
        started_at_unix_seconds=1.0,
        wall_seconds=0.2,
        compute=pb.ComputeSeconds(forward=0.1, backward=0.2, optimizer=0.01, data=0.01),
        waiting=pb.WaitingSeconds(tensor=0.1, pipeline=0.1, gradient=0.1, vote=0.01),
        micro_batches=[pb.MicroBatch(index=index, tokens=512, sum_of_squares=1e5) for index in range(_MICRO_BATCHES)],
        position=pb.Position(replica=1, stage=1, shard=1, forward_flops_per_token=1e5, backward_multiple=2.0),
        loss=2.5,
        gradient_norm=1.0,
    )


@contextmanager
def silent_server() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
