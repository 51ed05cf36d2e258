"""All replicas' stages as one network of workers: micro-batches may change replicas from stage to stage.

A list schedule. Each worker (replica, stage) takes, whenever it is free, the oldest ready forward if its live
activations allow one more, else a backward, else a weight gradient that was put off. That is the order of 1F1B where
everybody does his own work and nobody waits, and a work-conserving one otherwise. It never deadlocks: the last stage
can always go on, so every stage before it drains. Transfers between replicas cost what transfers between stages cost;
bandwidth is not shared. It only chooses orders: what they take is said by :mod:`evenkeel.layouts.programs.execution`,
which runs them as programs.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.simulator.fleet.operation.conditions import Floats, last_ends
from evenkeel.simulator.fleet.operation.worker_programs import BACKWARD, FORWARD, WEIGHTS, Operated, worker_programs

Routes = tuple[tuple[tuple[int, ...], ...], ...]
Borders = tuple[tuple[int, int, int, float], ...]
"""Replica and stage that send, replica of the next stage that receives (or the way back), factor on the transfer."""
_NUM_ITERATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Discipline:
    """In which order workers take work.

    Attributes:
        decoupled: Weight gradients are put off and fill gaps; a stage steps when its own replicas are done and starts
            the next iteration at once; and it holds one more live activation than 1F1B, for each origin it serves.
        migrate_above: A replica whose stage is this many forwards ahead takes one from the replica furthest behind;
            None = no migration at run time.
    """

    decoupled: bool = False
    migrate_above: int | None = None


class Network:
    """One run of several iterations.

    Args:
        seconds: ``seconds[d][2 s]`` forward and ``[2 s + 1]`` backward of a worker; 0 where nobody is.
        quotas: Micro-batches of each replica.
        routes: Who executes what; empty = its own replica.
        discipline: How.
        transfer_seconds: Between stages.
        borders: Slow transfers.
    """

    def __init__(
        self,
        seconds: tuple[tuple[float, ...], ...],
        quotas: tuple[int, ...],
        routes: Routes,
        discipline: Discipline,
        transfer_seconds: float,
        borders: Borders = (),
    ) -> None:
        num_iterations = _NUM_ITERATIONS if discipline.decoupled else 1
        self._slow = {(d, s, e): factor for d, s, e, factor in borders}
        self._seconds, self._quotas, self._discipline = seconds, quotas, discipline
        self._transfer, self._num_iterations = transfer_seconds, num_iterations
        self._num_stages, self._num_replicas = len(seconds[0]) // 2, len(seconds)
        self._num_kinds = 3 if discipline.decoupled else 2
        self._given = routes
        self._chosen: dict[tuple[int, int, int, int], int] = {}
        stages, replicas = range(self._num_stages), range(self._num_replicas)
        # A worker is a number: its replica times the stages, plus its stage.
        workers = range(self._num_replicas * self._num_stages)
        self._forward = [row[2 * s] for row in seconds for s in stages]
        self._backward = [row[2 * s + 1] for row in seconds for s in stages]
        self._alive = [[d for d in replicas if seconds[d][2 * s] > 0.0] for s in stages]
        self._dead = [[d for d in replicas if seconds[d][2 * s] <= 0.0] for s in stages]
        self._ready: list[tuple[deque[Operated], deque[Operated], deque[Operated]]] = [
            (deque(), deque(), deque()) for _ in workers
        ]
        self._busy = [False for _ in workers]
        self._live, self._progress = [0 for _ in workers], [0 for _ in workers]
        served = [1 for _ in workers]
        for s in stages:
            by: dict[int, set[int]] = {}
            for d, micro_batches in enumerate(routes):
                for executors in micro_batches:
                    by.setdefault(executors[s], set()).add(d)
            for d, origins in by.items():
                served[d * self._num_stages + s] = max(1, len(origins))
        most = self._num_stages + discipline.decoupled
        self._limit = [count * (most - worker % self._num_stages) for worker, count in enumerate(served)]
        self._left = [[self._num_kinds * sum(quotas)] * self._num_stages for _ in range(num_iterations)]
        self._orders: list[list[Operated]] = [[] for _ in workers]
        self._events: list[tuple[float, int, bool, int, Operated]] = []
        self._count = 0
        self._touched: set[int] = set()

    def run(self) -> None:
        """Chooses who does what after what.

        Raises:
            ValueError: Work is left that nobody executes.
        """
        for s in range(self._num_stages):
            self._open(0.0, 0, s)
        while self._events:
            now, _, arrives, worker, op = heapq.heappop(self._events)
            if arrives:
                self._ready[worker][op[1]].append(op)
            else:
                self._finish(now, worker, op)
            stage = op[4]
            # Everything of the same moment is known before anybody chooses.
            if self._events and self._events[0][0] <= now:
                self._touched.add(stage)
                continue
            for touched in (*self._touched, stage):
                self._wake(now, touched)
            self._touched.clear()
        undone = [s for s in range(self._num_stages) if any(left[s] for left in self._left)]
        if undone:
            raise ValueError(f"stages {undone} have micro-batches that nobody executes: route them to a live replica")

    def ends(self, num_iterations: int, noise: float = 0.0, seed: int = 0) -> Floats:
        """When the first iterations are over, once :meth:`run` has chosen; of several runs when operations vary.

        Args:
            num_iterations: So many of them.
            noise: Relative standard deviation of each operation.
            seed: Of the noise.
        """
        orders = [[op for op in order if op[0] < num_iterations] for order in self._orders]
        programs, receiver_of = worker_programs(orders, self._quotas, self._num_stages, is_split=self._num_kinds == 3)

        def seconds_of(worker: int, one: Instruction) -> float:
            if one.op is Op.FORWARD:
                return self._forward[worker]
            return self._backward[worker] / (1.0 if one.op is Op.BACKWARD else 2.0)

        def transfer_seconds(worker: int, one: Instruction) -> float:
            if one.micro_batch < 0:
                return 0.0
            d, e = worker // self._num_stages, receiver_of(worker, one) // self._num_stages
            border = (d, one.stage, e) if one.op is Op.SEND_ACTIVATION else (e, one.stage - 1, d)
            return self._transfer * self._slow.get(border, 1.0)

        rng = np.random.default_rng(seed)
        return last_ends(programs, seconds_of, transfer_seconds, receiver_of, noise=noise, rng=rng)

    def routes(self) -> Routes:
        """Who executed what in the first iteration."""
        return tuple(
            tuple(tuple(self._executor(0, d, m, s) for s in range(self._num_stages)) for m in range(self._quotas[d]))
            for d in range(self._num_replicas)
        )

    def _executor(self, iteration: int, d: int, m: int, s: int) -> int:
        chosen = self._chosen.get((iteration, d, m, s))
        if chosen is not None:
            return chosen
        return self._given[d][m][s] if self._given else d

    def _push(self, at: float, arrives: bool, worker: int, op: Operated) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, arrives, worker, op))

    def _open(self, now: float, iteration: int, s: int) -> None:
        """An iteration may begin at stage s: at the first one its forwards are ready, the others wait for data."""
        if s > 0:
            return
        for d, quota in enumerate(self._quotas):
            for m in range(quota):
                self._push(
                    now, True, self._executor(iteration, d, m, 0) * self._num_stages, (iteration, FORWARD, d, m, 0)
                )

    def _finish(self, now: float, worker: int, op: Operated) -> None:
        iteration, kind, d, m, s = op
        self._busy[worker] = False
        count = self._num_stages
        if kind == FORWARD:
            self._progress[worker] += 1
            if s < count - 1:
                to = self._executor(iteration, d, m, s + 1)
                arrives = now + self._transfer * self._slow.get((worker // count, s, to), 1.0)
                self._push(arrives, True, to * count + s + 1, (iteration, FORWARD, d, m, s + 1))
            else:
                self._ready[worker][BACKWARD].append((iteration, BACKWARD, d, m, s))
        elif kind == BACKWARD:
            self._live[worker] -= 1
            if s > 0:
                to = self._executor(iteration, d, m, s - 1)
                arrives = now + self._transfer * self._slow.get((to, s - 1, worker // count), 1.0)
                self._push(arrives, True, to * count + s - 1, (iteration, BACKWARD, d, m, s - 1))
            if self._discipline.decoupled:
                self._ready[worker][WEIGHTS].append((iteration, WEIGHTS, d, m, s))
        left = self._left[iteration]
        left[s] -= 1
        if left[s] == 0 and iteration + 1 < self._num_iterations:
            self._open(now, iteration + 1, s)
            self._touched.add(s)

    def _wake(self, now: float, s: int) -> None:
        if self._discipline.migrate_above is not None:
            self._migrate(s, self._discipline.migrate_above)
        for d in self._alive[s]:
            worker = d * self._num_stages + s
            if self._busy[worker]:
                continue
            op = self._choose(worker, s)
            if op is None:
                continue
            if op[1] == FORWARD:
                self._live[worker] += 1
                taken = self._forward[worker]
            else:
                taken = self._backward[worker] / (2.0 if self._discipline.decoupled else 1.0)
            self._busy[worker] = True
            self._orders[worker].append(op)
            self._push(now + taken, False, worker, op)

    def _choose(self, worker: int, s: int) -> Operated | None:
        forwards, backwards, weights = self._ready[worker]
        if forwards and self._live[worker] < self._limit[worker]:
            iteration = forwards[0][0]
            # A stage enters an iteration when all its replicas have stepped the one before.
            if iteration == 0 or self._left[iteration - 1][s] == 0:
                return forwards.popleft()
        if backwards:
            return backwards.popleft()
        return weights.popleft() if weights else None

    def _migrate(self, s: int, above: int) -> None:
        """One ready forward of the replica furthest behind goes to the one furthest ahead."""
        alive, count = self._alive[s], self._num_stages
        if not alive:
            return
        for d in self._dead[s]:
            while self._ready[d * count + s][FORWARD]:
                _, to = min((len(self._ready[e * count + s][FORWARD]) + self._live[e * count + s], e) for e in alive)
                self._move(d, to, s)
        progress = [self._progress[d * count + s] for d in alive]
        most, least = max(progress), min(progress)
        if most - least <= above:
            return
        ahead, behind = alive[progress.index(most)], alive[progress.index(least)]
        worker = ahead * count + s
        room = not self._ready[worker][FORWARD] and self._live[worker] < self._limit[worker]
        if room and self._ready[behind * count + s][FORWARD]:
            self._move(behind, ahead, s)

    def _move(self, source: int, to: int, s: int) -> None:
        op = self._ready[source * self._num_stages + s][FORWARD].popleft()
        self._chosen[op[0], op[2], op[3], s] = to
        self._ready[to * self._num_stages + s][FORWARD].append(op)


@lru_cache(maxsize=4096)
def period_seconds(
    seconds: tuple[tuple[float, ...], ...],
    quotas: tuple[int, ...],
    routes: Routes,
    discipline: Discipline,
    transfer_seconds: float,
    borders: Borders = (),
    noise: float = 0.0,
    seed: int = 0,
) -> float:
    """Seconds from one iteration's end to the next one's, once the run is under way; the mean where operations vary."""
    network = Network(seconds, quotas, routes, discipline, transfer_seconds, borders)
    network.run()
    first = network.ends(1, noise, seed)
    if not discipline.decoupled:
        return float(first.mean())
    return float((network.ends(_NUM_ITERATIONS, noise, seed) - first).mean()) / (_NUM_ITERATIONS - 1)


@lru_cache(maxsize=1024)
def migrated_routes(
    seconds: tuple[tuple[float, ...], ...], quotas: tuple[int, ...], above: int, transfer_seconds: float
) -> Routes:
    """Routes that progress-aware migration arrives at."""
    network = Network(seconds, quotas, (), Discipline(migrate_above=above), transfer_seconds)
    network.run()
    return network.routes()
