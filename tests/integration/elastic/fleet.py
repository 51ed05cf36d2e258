"""Real rank processes on gloo, and a scheduler of a few lines that talks to their mailboxes through pipes."""

import contextlib
import json
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankState
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_to_json
from evenkeel.trainer_sdk.elastic.engine import Engine
from evenkeel.trainer_sdk.elastic.worker import preload
from evenkeel.trainer_sdk.emit.measured import Listed, Measured
from evenkeel.trainer_sdk.launcher.processes.context import RankContext
from tests.accelerator import DEVICE, take_device
from tests.integration.elastic.kept_store import KeptStore, StoreFate, killing_the_store
from tests.integration.elastic.rank_process import (
    DEADLINE_SECONDS,
    Fate,
    Leash,
    PipeEmitter,
    RankProcess,
    dying_in_a_reshape,
    serve,
)

AHEAD = 2


class Fleet:
    """Rank processes of one job and their scheduler.

    Args:
        ahead: How many iterations the ranks may train beyond the newest that the test has read.
        store_fates: When ranks kill the store.
        node_of: Node of a rank.
    """

    def __init__(
        self,
        config: TrainingConfig,
        layout: Layout,
        *,
        others: Sequence[int] = (),
        make_device: Callable[[int], Device] = lambda rank: CpuDevice(),
        make_links: Callable[[], Links | None] = lambda: None,
        fates: Mapping[int, Mapping[str, Any]] | None = None,
        ahead: int = AHEAD,
        store_fates: Mapping[int, Sequence[StoreFate]] | None = None,
        node_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        self.config = config
        self.layout = layout
        self.epoch = 0
        self.samples: dict[int, dict[int, Measured]] = {}
        self.repeated: list[tuple[int, int]] = []
        self.events: list[process_pb2.ProcessEvent] = []
        self.reducing: set[tuple[int, int, int]] = set()
        self._make_device = make_device
        self._make_links = make_links
        self._node_of = node_of
        self._fates = {rank: Fate(**fate) for rank, fate in (fates or {}).items()}
        self._store_fates = store_fates or {}
        self._leash = Leash(ahead)
        self._no_further_than = config.num_iterations
        self.ranks: dict[int, RankProcess] = {}
        self._pids: set[int] = set()
        preload(config)
        self.store = KeptStore(config.job_id)
        for rank in [*layout.ranks, *others]:
            self.start_rank(rank, 0, layout)

    # ---- processes

    def start_rank(self, rank: int, incarnation: int, layout: Layout | None) -> None:
        our_commands, commands = Pipe()
        our_output, output = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._run_rank(rank, incarnation, layout, commands, output)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        output.close()
        commands.close()
        self._pids.add(pid)
        self.ranks[rank] = RankProcess(rank, incarnation, pid, our_commands, our_output)

    def _run_rank(
        self, rank: int, incarnation: int, layout: Layout | None, commands: Connection, output: Connection
    ) -> None:
        take_device(rank)
        mailbox = Mailbox(rank, incarnation)
        threading.Thread(target=serve, args=(mailbox, commands), daemon=True).start()
        fate = self._fates.get(rank) if incarnation == 0 else None
        engine = Engine(
            RankContext(
                job_id=self.config.job_id,
                rank=rank,
                incarnation=incarnation,
                mailbox=mailbox,
                device=self._make_device(rank),
                torch_device=str(DEVICE),
                emitter=PipeEmitter(output, fate, partial(self._leash.hold, mailbox)),
                store_address=self.store.address,
                config=config_to_json(self.config),
                initial_layout=layout,
                run_dir=Path(),
                links=self._make_links(),
                node_of=self._node_of,
            )
        )
        with dying_in_a_reshape(fate, mailbox), killing_the_store(self.store, self._store_fates.get(rank, ()), mailbox):
            engine.run()

    def kill(self, rank: int) -> None:
        process = self.ranks.pop(rank)
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        self._pids.discard(process.pid)
        self._drain([process])

    def mourn(self, rank: int) -> None:
        """Wait until a rank met its fate."""
        process = self.ranks[rank]
        self.pump_until(lambda: process.output.closed, f"the fate of rank {rank}: {self._fates[rank]}")
        _, status = os.waitpid(process.pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"rank {rank} ended with status {status}"
        self._pids.discard(process.pid)
        del self.ranks[rank]

    def stopped(self, rank: int) -> None:
        """Wait until a rank was stopped by its fate; it is ended with the fleet."""
        pid, found = self.ranks[rank].pid, []

        def changed() -> bool:
            found.append(os.waitpid(pid, os.WUNTRACED | os.WNOHANG))
            return found[-1][0] == pid

        self.pump_until(changed, f"the stop of rank {rank}: {self._fates[rank]}")
        assert os.WIFSTOPPED(found[-1][1]), f"rank {rank} ended with status {found[-1][1]}"
        del self.ranks[rank]

    def close(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.store.close()

    # ---- what the ranks say

    def pump_until(self, condition: Callable[[], bool], what: str, no_further_than: int | None = None) -> None:
        """Read what ranks write until a condition holds; meanwhile they do no step beyond that of an iteration."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        self._no_further_than = self.config.num_iterations if no_further_than is None else no_further_than
        while not condition():
            assert time.monotonic() < deadline, f"not reached: {what}; {self.describe()}"
            live = {process.output: process for process in self.ranks.values() if not process.output.closed}
            if not live:
                time.sleep(0.01)
                continue
            for output in wait(list(live), timeout=0.05):
                self._read(live[output])

    def _drain(self, processes: Sequence[RankProcess]) -> None:
        for process in processes:
            while not process.output.closed and process.output.poll():
                self._read(process)

    def _read(self, process: RankProcess) -> None:
        try:
            message = process.output.recv_bytes()
        except (EOFError, OSError):
            process.output.close()
            return
        if message[:1] == b"w":
            epoch, iteration = json.loads(message[1:])
            self.reducing.add((process.rank, epoch, iteration))
            return
        if message[:1] == b"e":
            self.events.append(process_pb2.ProcessEvent.FromString(message[1:]))
            return
        sample = pickle.loads(message[1:])
        of_iteration = self.samples.setdefault(sample.iteration, {})
        if process.rank in of_iteration:
            self.repeated.append((process.rank, sample.iteration))
        of_iteration[process.rank] = sample
        self._leash.reach(sample.iteration, self._no_further_than)

    def reached(self, iteration: int) -> None:
        """Wait until somebody finished an iteration."""
        self.pump_until(lambda: iteration in self.samples, f"iteration {iteration}")

    def reduce_begun(self, ranks: Iterable[int], epoch: int, iteration: int) -> None:
        """Wait until ranks are through with an iteration's micro-batches and wait for the other replicas."""
        wanted = {(rank, epoch, iteration) for rank in ranks}
        self.pump_until(lambda: wanted <= self.reducing, f"ranks {tuple(ranks)} reduce in iteration {iteration}")

    def finish(self) -> None:
        """Wait until every process ended by itself, with success."""
        left = list(self.ranks.values())

        def are_gone() -> bool:
            for process in [process for process in left if process.output.closed]:
                left.remove(process)
                _, status = os.waitpid(process.pid, 0)
                self._pids.discard(process.pid)
                assert status == 0, f"rank {process.rank} ended with status {status}"
                self.store.job_finished()
            return not left

        self.pump_until(are_gone, "the end")

    def describe(self) -> str:
        states = []
        for process in self.ranks.values():
            try:
                states.append(str(process.call("status")))
            except (EOFError, OSError):
                states.append(f"rank {process.rank} gone")
        return "\n".join([f"newest iteration {max(self.samples, default=-1)}", *states])

    @property
    def losses(self) -> list[float]:
        """Loss of each iteration; every rank that knows it must know the same."""
        losses = []
        for iteration in range(len(self.samples)):
            values = {sample.loss for sample in self.samples[iteration].values() if sample.loss is not None}
            assert len(values) == 1, f"ranks disagree on iteration {iteration}: {values}"
            losses.append(values.pop())
        return losses

    def consumed(self, iteration: int) -> list[tuple[int, int, float]]:
        """What an applied step was made of, as (index, tokens, sum of squared lengths): run by a replica, or kept.

        Every rank of a replica that reported must have run the same ones, all ranks in the same epoch, and all ranks
        must name the same ones that were kept from before a failure.
        """
        samples = self.samples[iteration].values()
        assert len({sample.place.epoch for sample in samples}) == 1, f"two epochs in iteration {iteration}"
        by_replica: dict[int, set[tuple[tuple[int, int, float], ...]]] = {}
        for sample in samples:
            by_replica.setdefault(sample.place.replica, set()).add(_seen(run_of(sample)))
            by_replica.setdefault(-1, set()).add(_seen(kept_of(sample)))
        for replica, kinds in by_replica.items():
            assert len(kinds) == 1, f"ranks of replica {replica} disagree on iteration {iteration}: {kinds}"
        return sorted(batch for kinds in by_replica.values() for batches in kinds for batch in batches)

    def num_executed(self, iteration: int) -> int:
        """How many micro-batches were run in the epoch in which a step was applied; the others were kept."""
        samples = self.samples[iteration].values()
        return len({batch.index for sample in samples for batch in run_of(sample)})

    # ---- scheduling

    def boundary(self, to_layout: Layout) -> None:
        """Apply a layout with everybody alive."""
        self.epoch += 1
        reshape = self._reshape(ApplyMode.BOUNDARY, to_layout)
        involved = sorted({*self.layout.ranks, *to_layout.ranks})
        states = self._ask(involved, "prepare", reshape)
        from_epoch = self._common_epoch(states, self.layout)
        commit = Commit(
            reshape=reshape,
            from_epoch=from_epoch,
            from_layout=self.layout,
            sources=tuple(rank for rank in self.layout.ranks if from_epoch in states[rank].held_epochs),
        )
        self._ask(involved, "commit", commit)
        self.layout = to_layout

    def prepare_recovery(self, to_layout: Layout) -> tuple[Reshape, dict[int, RankState]]:
        """Park everybody alive."""
        self.epoch += 1
        reshape = self._reshape(ApplyMode.RECOVER, to_layout)
        return reshape, self._ask(sorted(self.ranks), "prepare", reshape)

    def recover(self, to_layout: Layout, history: dict[int, Layout] | None = None) -> None:
        """Go on under a layout of ranks that are alive.

        Args:
            to_layout: Layout.
            history: Layouts by epoch, when a survivor may hold another epoch than the newest.
        """
        reshape, states = self.prepare_recovery(to_layout)
        self.commit_recovery(reshape, states, history or {})

    def commit_recovery(self, reshape: Reshape, states: dict[int, RankState], history: dict[int, Layout]) -> None:
        holders = {rank: state for rank, state in states.items() if state.held_epochs}
        from_epoch = self._common_epoch(holders, None)
        steps = max(state.steps_applied for state in holders.values())
        commit = Commit(
            reshape=reshape,
            from_epoch=from_epoch,
            from_layout=history.get(from_epoch, self.layout),
            sources=tuple(sorted(rank for rank in holders if from_epoch in holders[rank].held_epochs)),
            steps_applied=steps,
        )
        with ThreadPoolExecutor(len(states)) as pool:
            list(pool.map(lambda rank: self._tell(rank, commit), sorted(states)))
        self.layout = reshape.to_layout

    def _reshape(self, mode: ApplyMode, to_layout: Layout) -> Reshape:
        return Reshape(
            job_id=self.config.job_id,
            plan_id=f"plan-{self.epoch}",
            epoch=self.epoch,
            mode=mode,
            to_layout=to_layout,
        )

    def _tell(self, rank: int, commit: Commit) -> None:
        with contextlib.suppress(EOFError):  # a rank may die of its commit before it says that it heard
            self.ranks[rank].call("commit", commit)

    def _ask(self, ranks: Sequence[int], name: str, argument: object) -> dict[int, RankState]:
        with ThreadPoolExecutor(len(ranks)) as pool:
            futures = {rank: pool.submit(self.ranks[rank].call, name, argument) for rank in ranks}
            return {rank: future.result() for rank, future in futures.items()}

    def _common_epoch(self, states: dict[int, RankState], layout: Layout | None) -> int:
        held = [set(state.held_epochs) for rank, state in states.items() if layout is None or rank in layout.ranks]
        return max(set.intersection(*held))


def run_of(measured: Measured) -> list[Listed]:
    """Micro-batches that were run in the epoch of the step."""
    return [batch for batch in measured.listed if not batch.kept]


def kept_of(measured: Measured) -> list[Listed]:
    """Those that were kept from before a failure."""
    return [batch for batch in measured.listed if batch.kept]


def _seen(batches: Sequence[Listed]) -> tuple[tuple[int, int, float], ...]:
    return tuple(sorted((batch.index, batch.tokens, batch.squares) for batch in batches))
