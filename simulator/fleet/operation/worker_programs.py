"""What workers of a network do, one operation after another: programs for :mod:`evenkeel.layouts.programs.execution`.

A worker is a number: its replica times the stages, plus its stage. Micro-batches are numbered through all iterations
and replicas. Between iterations the replicas of a stage meet, as they step together: each tells the stage's meeting
place, which comes after the workers, and is told by it; these tokens are micro-batches below 0.
"""

from collections.abc import Sequence
from itertools import accumulate

from evenkeel.layouts.programs.execution import Receiver
from evenkeel.layouts.programs.instructions import Instruction, Op, Program

FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
Operated = tuple[int, int, int, int, int]
"""Iteration, kind, origin replica, micro-batch, stage."""


def worker_programs(
    orders: Sequence[Sequence[Operated]], quotas: Sequence[int], num_stages: int, *, is_split: bool
) -> tuple[list[Program], Receiver]:
    """Programs of all workers and meeting places, and who receives what they send.

    Args:
        orders: What each worker does, iteration by iteration.
        quotas: Micro-batches of each replica.
        num_stages: Stages.
        is_split: Whether weights' gradients are operations of their own.
    """
    num_workers = len(orders)
    firsts = list(accumulate(quotas, initial=0))
    where: dict[tuple[int, int], int] = {}
    programs: list[list[Instruction]] = [[] for _ in range(num_workers + num_stages)]
    tokens: list[dict[int, list[int]]] = [{} for _ in range(num_stages)]
    for worker, order in enumerate(orders):
        entered = 0
        for iteration, kind, d, m, s in order:
            if iteration > entered:
                entered, token = iteration, -(iteration * num_workers + worker)
                programs[worker].append(Instruction(Op.SEND_GRADIENT, token, s))
                programs[worker].append(Instruction(Op.RECEIVE_ACTIVATION, token, s))
                where[token, s - 1], where[token, s] = num_workers + s, worker
                tokens[s].setdefault(iteration, []).append(token)
            number = iteration * firsts[-1] + firsts[d] + m
            where[number, s] = worker
            programs[worker] += _instructions(kind, number, s, num_stages - 1, is_split=is_split)
    for s, by_iteration in enumerate(tokens):
        for _, told in sorted(by_iteration.items()):
            programs[num_workers + s] += [Instruction(Op.RECEIVE_GRADIENT, token, s - 1) for token in told]
            programs[num_workers + s] += [Instruction(Op.SEND_ACTIVATION, token, s - 1) for token in told]

    def receiver_of(_: int, one: Instruction) -> int:
        return where[one.micro_batch, one.stage + (1 if one.op is Op.SEND_ACTIVATION else -1)]

    return [tuple(program) for program in programs], receiver_of


def _instructions(kind: int, number: int, s: int, last: int, *, is_split: bool) -> Program:
    """What a worker does for one operation of a micro-batch, transfers included."""
    if kind == WEIGHTS:
        return (Instruction(Op.BACKWARD_WEIGHT, number, s),)
    if kind == FORWARD:
        received = (Instruction(Op.RECEIVE_ACTIVATION, number, s),) if s else ()
        sent = (Instruction(Op.SEND_ACTIVATION, number, s),) if s < last else ()
        return (*received, Instruction(Op.FORWARD, number, s), *sent)
    received = (Instruction(Op.RECEIVE_GRADIENT, number, s),) if s < last else ()
    sent = (Instruction(Op.SEND_GRADIENT, number, s),) if s else ()
    return (*received, Instruction(Op.BACKWARD_INPUT if is_split else Op.BACKWARD, number, s), *sent)
