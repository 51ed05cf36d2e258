"""Which operations of a step wait for which, and which of them meet: streams, transfers and collectives."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import accumulate, pairwise

import numpy as np

from evenkeel.attribution.operations import COMPUTE, OperationError, Operations, OperationType
from evenkeel.numeric.arrays import Ints

CLOCK_SECONDS = 5e-5
"""How far the clock of a recording may be off within one worker."""

# Operation, the computation it belongs to, stage of its peer.
_SENDS = (
    (OperationType.FORWARD_SEND, OperationType.FORWARD, 1),
    (OperationType.BACKWARD_SEND, OperationType.BACKWARD, -1),
)
_RECEIVE_OF = {
    OperationType.FORWARD_SEND: OperationType.FORWARD_RECV,
    OperationType.BACKWARD_SEND: OperationType.BACKWARD_RECV,
}
_ACROSS_REPLICAS = (
    OperationType.PARAMS_ALL_GATHER,
    OperationType.GRADS_REDUCE_SCATTER,
    OperationType.SEPARATE_GRADS_ALL_REDUCE,
)


class Turn(StrEnum):
    """What may have waited for a transfer, or a transfer for it, beyond what the data asks for."""

    RECEIVE_AFTER_COMPUTATION = "receive after the computation before"
    COMPUTATION_AFTER_SEND = "computation after the send before"
    RECEIVE_AFTER_SEND = "receive after the send before"


class Wiring:
    """Dependencies of one step's operations.

    Args:
        operations: The operations of one step.
        turns: What also waited.
    """

    def __init__(self, operations: Operations, turns: Iterable[Turn] = ()) -> None:
        self._operations = operations
        self._num_stages = int(operations.stage.max()) + 1
        self._home = _homes(operations)
        self._last_chunk = dict(sorted(self._home))
        self._in_turns = all(stage == chunk % self._num_stages for (_, chunk), stage in self._home.items())
        self._rows: dict[tuple[int, int, str], list[int]] = {}
        for row, key in enumerate(
            zip(operations.dp_rank.tolist(), operations.stage.tolist(), operations.optype.tolist(), strict=True)
        ):
            self._rows.setdefault(key, []).append(row)
        self._workers = sorted({key[:2] for key in self._rows})
        self._start = operations.start_seconds.tolist()
        self._end = operations.end_seconds.tolist()
        self._edges: list[tuple[int, int]] = []
        self._computed_by: dict[int, int] = {}
        self._received: dict[tuple[int, OperationType], dict[tuple[int, int], float]] = {}
        for dp_rank, stage in self._workers:
            self._wire_worker(dp_rank, stage)
        for turn in turns:
            self._edges += self.in_turn(turn)

    def edges(self) -> tuple[Ints, Ints]:
        """Operations that are waited for, and those that wait."""
        pairs = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def groups(self) -> Iterator[Ints]:
        """Operations that meet: each group ends together."""
        yield from self._transfers()
        meetings: dict[tuple[object, ...], list[int]] = {}
        for (dp_rank, stage, optype), rows in self._rows.items():
            for sequence, row in enumerate(rows):
                if optype in _ACROSS_REPLICAS:
                    meetings.setdefault((optype, stage, sequence), []).append(row)
                elif optype == OperationType.CLIP_GRADS:
                    meetings.setdefault((optype, sequence), []).append(row)
                elif optype == OperationType.EMBEDDING_GRADS_ALL_REDUCE:
                    meetings.setdefault((optype, dp_rank, sequence), []).append(row)
        for members in meetings.values():
            yield np.array(members, dtype=np.int64)

    def in_turn(self, turn: Turn) -> list[tuple[int, int]]:
        """Operations that come before and after each other on a worker, where the first may have kept the second."""
        found: list[tuple[int, int]] = []
        for dp_rank, stage in self._workers:
            stream = self._of(dp_rank, stage, *COMPUTE)
            place = {row: number for number, row in enumerate(stream)}
            receives = self._of(dp_rank, stage, *_RECEIVE_OF.values())
            starts = [self._start[row] for row in receives]
            if turn is Turn.RECEIVE_AFTER_COMPUTATION:
                owned = ((row, place[self._computed_by[row]]) for row in receives if row in self._computed_by)
                found += [(stream[number - 1], row) for row, number in owned if number]
                continue
            for row in self._of(dp_rank, stage, *_RECEIVE_OF):
                if row not in self._computed_by:
                    continue
                later = place[self._computed_by[row]] + 1
                if turn is Turn.COMPUTATION_AFTER_SEND:
                    found += [(row, after) for after in stream[later : later + 1]]
                else:
                    following = bisect_right(starts, self._start[row] + CLOCK_SECONDS)
                    found += [(row, after) for after in receives[following : following + 1]]
        return found

    def _of(self, dp_rank: int, stage: int, *optypes: OperationType) -> list[int]:
        """Rows of some types of a worker, by start."""
        if len(optypes) == 1:
            return self._rows.get((dp_rank, stage, optypes[0]), [])
        rows = [row for optype in optypes for row in self._rows.get((dp_rank, stage, optype), [])]
        return sorted(rows, key=lambda row: (self._start[row], self._end[row]))

    def _chain(self, rows: list[int]) -> None:
        self._edges += pairwise(rows)

    def _wire_worker(self, dp_rank: int, stage: int) -> None:
        kinds = OperationType
        stream = self._of(dp_rank, stage, *COMPUTE, kinds.GARBAGE_COLLECTION, kinds.INPUT)
        self._chain(stream)
        self._chain(self._of(dp_rank, stage, kinds.PARAMS_ALL_GATHER, kinds.GRADS_REDUCE_SCATTER))
        for send, compute, step in _SENDS:
            self._chain(self._of(dp_rank, stage, _RECEIVE_OF[send]))
            for rows in self._streams(dp_rank, stage, send, step):
                self._chain(rows)
            for kind, receives in ((_RECEIVE_OF[send], True), (send, False)):
                self._wire_transfers(dp_rank, stage, kind, compute, receives=receives)
        self._wire_first_backward(dp_rank, stage)
        self._wire_gather(dp_rank, stage)
        self._wire_end(dp_rank, stage, stream)

    def _streams(self, dp_rank: int, stage: int, send: OperationType, step: int) -> list[list[int]]:
        """Sends that follow one another: all, those of each chunk, or none where what is sent first is taken later.

        Stages in turns send in the order in which the next one receives, unless somebody ordered them at will.
        """
        rows = self._of(dp_rank, stage, send)
        taken = self._taken(dp_rank, send, step, rows)
        if self._in_turns and taken == sorted(taken):
            return [rows]
        streams: dict[int, list[int]] = {}
        for row in rows:
            streams.setdefault(int(self._operations.global_chunk[row]), []).append(row)
        found: list[list[int]] = []
        for stream in streams.values():
            taken = self._taken(dp_rank, send, step, stream)
            found += [stream] if taken == sorted(taken) else [[row] for row in stream]
        return found

    def _taken(self, dp_rank: int, send: OperationType, step: int, sends: list[int]) -> list[float]:
        """When each of some sends is received; empty where chunks and micro-batches do not tell receives apart."""
        chunk, micro_batch = self._operations.global_chunk, self._operations.micro_batch
        key = (dp_rank, _RECEIVE_OF[send])
        if key not in self._received:
            rows = [row for number in range(self._num_stages) for row in self._of(dp_rank, number, key[1])]
            starts = {(int(chunk[row]), int(micro_batch[row])): self._start[row] for row in rows}
            self._received[key] = starts if len(starts) == len(rows) else {}
        starts = self._received[key]
        wanted = [(int(chunk[row]) + step, int(micro_batch[row])) for row in sends]
        return [starts[data] for data in wanted] if all(data in starts for data in wanted) else []

    def _wire_transfers(
        self, dp_rank: int, stage: int, kind: OperationType, compute: OperationType, *, receives: bool
    ) -> None:
        """Ties each transfer to the computation that made or needs its data."""
        computes = self._of(dp_rank, stage, compute)
        transfers = self._of(dp_rank, stage, kind)
        if not transfers or not computes:
            return
        step = 1 if (compute is OperationType.FORWARD) != receives else -1
        real = [row for row in computes if self._crosses(dp_rank, stage, row, step)]
        if len(transfers) not in (len(computes), len(real)):
            # Recorders note transfers that were never launched, before the first or after the last computation.
            if receives:
                limit = self._start[computes[-1]] + CLOCK_SECONDS
                transfers = [row for row in transfers if self._start[row] <= limit]
            else:
                limit = self._end[computes[0]] - CLOCK_SECONDS
                transfers = [row for row in transfers if self._end[row] >= limit]
        if len(transfers) == len(real):
            matched = real
        elif len(transfers) == len(computes):
            matched = computes
        elif receives and len(transfers) == len(computes) - 1:
            matched = computes[1:]
        else:
            raise OperationError(
                f"step {self._operations.step[0]}: dp_rank {dp_rank} stage {stage} has {len(transfers)} {kind} for "
                f"{len(computes)} {compute}; record all of them, or leave the step out"
                + (" (several chunks a stage? name them in mc or gmc)" if self._one_chunk_a_stage() else "")
            )
        matched = self._by_data(transfers, real) or matched
        before = dict(zip(computes[1:], computes, strict=False))
        place = {row: number for number, row in enumerate(computes)}
        # What is taken over a border before its turn, because it comes in another order, waits for nothing.
        next_due = list(accumulate([place[owner] for owner in reversed(matched)], min))[::-1]
        crossing = set(real)
        for transfer, owner, due in zip(transfers, matched, next_due, strict=True):
            if owner in crossing:
                self._computed_by[transfer] = owner
            if not receives:
                self._edges.append((owner, transfer))
                continue
            self._edges.append((transfer, owner))
            if owner in before and due == place[owner]:
                self._edges.append((before[owner], transfer))

    def _by_data(self, transfers: list[int], computes: list[int]) -> list[int]:
        """The computation of each transfer by chunk and micro-batch; empty where these do not name each once."""
        chunk, micro_batch = self._operations.global_chunk, self._operations.micro_batch
        named = {(int(chunk[row]), int(micro_batch[row])): row for row in computes if micro_batch[row] >= 0}
        wanted = [(int(chunk[row]), int(micro_batch[row])) for row in transfers]
        if len(named) != len(computes) or len(set(wanted)) != len(wanted) or named.keys() != set(wanted):
            return []
        return [named[data] for data in wanted]

    def _wire_first_backward(self, dp_rank: int, stage: int) -> None:
        """The first gradients are asked for once the forward before the last one of the warm-up is done."""
        stream = self._of(dp_rank, stage, OperationType.FORWARD, OperationType.BACKWARD)
        is_backward = [self._operations.optype[row] == OperationType.BACKWARD for row in stream]
        first = is_backward.index(True) if True in is_backward else 0
        if first < 2:
            return
        for kind in (OperationType.BACKWARD_RECV, OperationType.BACKWARD_SEND):
            for row in self._of(dp_rank, stage, kind)[:1]:
                if row in self._computed_by:
                    self._edges.append((stream[first - 2], row))

    def _wire_gather(self, dp_rank: int, stage: int) -> None:
        """A chunk's first forward waits for the last gathering of its parameters."""
        chunk = self._operations.chunk
        gathers = {int(chunk[row]): row for row in self._of(dp_rank, stage, OperationType.PARAMS_ALL_GATHER)}
        for row in self._of(dp_rank, stage, OperationType.FORWARD):
            gather = gathers.pop(int(chunk[row]), None)
            if gather is not None:
                self._edges.append((gather, row))

    def _wire_end(self, dp_rank: int, stage: int, stream: list[int]) -> None:
        """After the last computation: the exchanges that nothing hides, then the optimizer."""
        kinds = OperationType
        reduces = self._of(dp_rank, stage, kinds.GRADS_REDUCE_SCATTER)
        separate = self._of(dp_rank, stage, kinds.SEPARATE_GRADS_ALL_REDUCE)
        tail = self._of(dp_rank, stage, kinds.LAYERNORM_GRADS_ALL_REDUCE)
        tail = tail + self._of(dp_rank, stage, kinds.EMBEDDING_GRADS_ALL_REDUCE)
        if separate:
            # Gradients are reduced beside the backwards: each chunk's after its last one.
            chunk = self._operations.chunk
            last = {int(chunk[row]): row for row in self._of(dp_rank, stage, kinds.BACKWARD)}
            for row in reduces:
                if (backward := last.pop(int(chunk[row]), None)) is not None:
                    self._edges.append((backward, row))
            tail = tail + separate
        else:
            tail = tail + reduces
        tail = tail + self._of(dp_rank, stage, kinds.CLIP_GRADS) + self._of(dp_rank, stage, kinds.OPTIMIZER)
        self._chain(tail)
        if tail:
            self._edges += [(row, tail[0]) for row in (*stream[-1:], *(reduces[-1:] if separate else ()))]

    def _one_chunk_a_stage(self) -> bool:
        return max(self._last_chunk.values()) < self._num_stages

    def _crosses(self, dp_rank: int, stage: int, compute: int, step: int) -> bool:
        """Whether the chunk after a computation's (``step`` 1), or before it, is on another stage."""
        chunk = int(self._operations.global_chunk[compute])
        edge = self._last_chunk[dp_rank] if step > 0 else 0
        return chunk != edge and self._home.get((dp_rank, chunk + step)) != stage

    def _transfers(self) -> Iterator[Ints]:
        """Pairs each send with its receive: by chunk and micro-batch where they are known, else by order."""
        for send, _, step in _SENDS:
            ends: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
            for dp_rank, stage in self._workers:
                for kind, end, offset in ((send, 0, step), (_RECEIVE_OF[send], 1, -step)):
                    for row in self._of(dp_rank, stage, kind):
                        if row in self._computed_by:
                            peer = self._peer(dp_rank, stage, row, offset)
                            ends.setdefault((dp_rank, *((stage, peer), (peer, stage))[end]), ([], []))[end].append(row)
            for (dp_rank, stage, peer), (sends, receives) in ends.items():
                if len(sends) != len(receives):
                    raise OperationError(
                        f"step {self._operations.step[0]}: dp_rank {dp_rank} has {len(sends)} {send} on stage {stage} "
                        f"but {len(receives)} {_RECEIVE_OF[send]} on stage {peer}; record both ends"
                    )
                wanted = [self._data_of(row, step) for row in sends]
                offered = {self._data_of(row, 0): row for row in receives}
                known = set(wanted) == set(offered) and len(offered) == len(sends)
                for pair in zip(sends, [offered[data] for data in wanted] if known else receives, strict=True):
                    yield np.array(pair, dtype=np.int64)

    def _peer(self, dp_rank: int, stage: int, transfer: int, step: int) -> int:
        """The stage at the other end of a transfer; of a chunk that was not recorded, the neighbour."""
        chunk = int(self._operations.global_chunk[self._computed_by[transfer]])
        return self._home.get((dp_rank, chunk + step), (stage + step) % self._num_stages)

    def _data_of(self, transfer: int, step: int) -> tuple[int, int]:
        """Chunk and micro-batch of the computation at a transfer's receiving end."""
        owner = self._computed_by[transfer]
        return int(self._operations.global_chunk[owner]) + step, int(self._operations.micro_batch[owner])


def _homes(operations: Operations) -> dict[tuple[int, int], int]:
    """The stage of each chunk of each data-parallel rank."""
    computes = np.isin(operations.optype, list(COMPUTE))
    columns = (operations.dp_rank[computes], operations.global_chunk[computes], operations.stage[computes])
    return {(dp_rank, chunk): stage for dp_rank, chunk, stage in zip(*(one.tolist() for one in columns), strict=True)}
