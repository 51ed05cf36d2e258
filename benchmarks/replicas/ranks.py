"""Processes of a comparison: each rank runs both loops in turns, or one of them for its memory."""

import importlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.replicas.loops import begin_rank, ddp, peak_bytes, replicas, timed
from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.replicas import Place

TOKENS = {1_000_000: 512, 3_000_000: 384, 10_000_000: 256, 50_000_000: 128}


def in_turns(address: str, rank: int, case: dict[str, int], blocks: int, steps: int, output: Connection) -> None:
    """By block: wall and CPU seconds of a step under DDP, and as replicas."""
    num_ranks, parameters, per_rank = case["ranks"], case["parameters"], case["micro_batches"]
    begin_rank(address, rank, num_ranks)
    tokens = TOKENS[parameters]
    plain = ddp(parameters, tokens, per_rank)
    place = Place(store_address=address, job_id="replicas", replica=rank, num_replicas=num_ranks)
    ours, close = replicas(place, parameters, tokens, per_rank)
    for step in (plain, ours):
        timed(step, 2)
    rows = []
    for block in range(blocks):
        order = (plain, ours) if block % 2 == 0 else (ours, plain)
        found = {id(step): timed(step, steps) for step in order}
        rows.append((*found[id(plain)], *found[id(ours)]))
    output.send(rows)
    output.recv()
    close()
    os._exit(0)  # torch's own group is not taken down in order


def peak(address: str, rank: int, case: dict[str, int], which: str, output: Connection) -> None:
    """Bytes that one of the loops takes at most, beyond what the process had before."""
    num_ranks, parameters, per_rank = case["ranks"], case["parameters"], case["micro_batches"]
    begin_rank(address, rank, num_ranks)
    before = peak_bytes()
    if which == "ddp":
        timed(ddp(parameters, TOKENS[parameters], per_rank), 4)
    else:
        place = Place(store_address=address, job_id="replicas", replica=rank, num_replicas=num_ranks)
        timed(replicas(place, parameters, TOKENS[parameters], per_rank)[0], 4)
    output.send(peak_bytes() - before)
    output.recv()
    os._exit(0)


def run(target: Callable[..., None], case: dict[str, int], *arguments: object) -> list[Any]:
    """What every rank of a case says."""
    for name in ("torch._dynamo", "torch.distributed.tensor"):  # each rank would load them in its first step
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")  # what is loaded once need not be loaded by each
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends, processes = [], []
    for rank in range(case["ranks"]):
        mine, theirs = context.Pipe()
        process = context.Process(
            target=target,
            args=(f"127.0.0.1:{store.port}", rank, case, *arguments, theirs),
        )
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    answers = [end.recv() for end in ends]
    for end in ends:
        end.send(None)  # nobody goes before all are done
    for process in processes:
        process.join()
    return answers
