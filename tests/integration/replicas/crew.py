"""Replicas as forked processes, a store that no rank hosts, and moments at which somebody dies."""

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch
from torch import nn
from torch.distributed import PrefixStore, TCPStore, init_process_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.replicas import Place, Replicas, join_replicas
from evenkeel.trainer_sdk.replicas.buckets import local
from evenkeel.trainer_sdk.replicas.loop import Replicas as _Loop
from evenkeel.trainer_sdk.replicas.place import replica_mesh
from tests.accelerator import DEVICE, take_device
from tests.integration.elastic.kept_store import KeptStore

DEADLINE_SECONDS = 120.0
NUM_MICRO_BATCHES = 6
NUM_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of a replica when it comes to a moment of a step.

    ``moment`` is ``backward`` (within a micro-batch), ``exchange`` (buckets are on their way), ``voted`` (it heard
    the vote and has not stepped), ``border`` (it has stepped) or ``meeting`` (of an epoch after the first). ``what`` is
    the signal that its rank ``index`` gets; 0 = an exception.
    """

    moment: str
    step: int = 4
    what: int = signal.SIGKILL
    index: int = 0


@dataclass
class Report:
    """What a replica did: by step its loss, and the micro-batches that it ran."""

    losses: dict[int, float] = field(default_factory=dict)
    ran: dict[int, list[int]] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list, repr=False)
    error: str = ""
    status: int | None = None
    num_lives: int = 0


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))


def make_deep_model() -> nn.Module:
    """Of 24 parameters: as many units and two."""
    torch.manual_seed(3)
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(16, 16), nn.Tanh())])


def make_sharded_model(mesh: DeviceMesh) -> nn.Module:
    """The model of :func:`make_model` cut over a replica's ranks."""
    model = make_model()
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batch_of(step: int, micro_batch: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(step * 100 + micro_batch)).to(DEVICE)


def train(
    run: Replicas,
    model: nn.Module,
    kept: list[Any],
    told: Callable[[str, Any], None],
    fate: Fate | None = None,
    num_steps: int = NUM_STEPS,
    pause_seconds: float = 0.0,
    forget: bool = False,
    leash: Any = None,
) -> None:
    """A loop of a user's own; ``leash`` is of the crew: it goes no further."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + 0.1 * step))
    if not forget:
        kept.append(schedule)
    ran: list[int] = []

    def batches(step: int, micro_batch: int) -> torch.Tensor:
        ran.append(micro_batch)
        return batch_of(step, micro_batch)

    while run.step < num_steps:
        step = run.step
        while leash is not None and step >= leash.value:
            time.sleep(0.01)
        for batch in run.micro_batches(batches):
            _meet(fate, "backward", step)
            time.sleep(pause_seconds)  # a device that takes its time
            loss = (model(batch) - batch).square().mean()
            run.backward(loss)
        told("ran", (run.step - 1, list(ran)))
        ran.clear()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        _meet(fate, "voted", step)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        told("loss", (run.step - 1, run.loss))
        _meet(fate, "border", step)
    told("weights", torch.cat([local(each.detach()).flatten() for each in model.parameters()]).tolist())


_met: set[Fate] = set()
"""Fates of this process that have come true: each does once."""


def _meet(fate: Fate | None, moment: str, step: int) -> None:
    if fate is not None and fate.moment == moment and fate.step == step and fate not in _met:
        _met.add(fate)
        if not fate.what:
            raise RuntimeError("a fault of the user's own")
        os.kill(os.getpid(), fate.what)


@contextmanager
def _fated(fate: Fate | None) -> Iterator[None]:
    """Moments within the SDK's own calls."""
    exchange, meet = _Loop._exchange, GroupBuilder.add

    def fated_exchange(self: _Loop) -> Any:
        if fate is not None and fate.moment == "exchange" and self.step == fate.step:
            self._buckets.flush()
            _meet(fate, "exchange", self.step)
        return exchange(self)

    def fated_add(self: GroupBuilder, epoch: int, specs: Any) -> Any:
        if epoch > 1:
            _meet(fate, "meeting", fate.step if fate is not None else 0)
        return meet(self, epoch, specs)

    _Loop._exchange, GroupBuilder.add = fated_exchange, fated_add  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Loop._exchange, GroupBuilder.add = exchange, meet  # type: ignore[method-assign]


class Crew:
    """The replicas of a job; processes and reports go by their ranks.

    Args:
        num_replicas: How many.
        fates: By replica.
        body: What each runs, and further arguments of it.
        make: Makes its model, of the mesh of its replica where that has several ranks.
        size: Ranks of a replica.
        hang_seconds: As in ``Place``.
        store: Has an ``address`` and is closed in the end; None = one that is started again whenever it dies.
    """

    def __init__(
        self,
        num_replicas: int,
        fates: dict[int, Fate] | None = None,
        body: Callable[..., None] = train,
        make: Callable[..., nn.Module] = make_model,
        size: int = 1,
        hang_seconds: float = 300.0,
        store: Any = None,
        **options: Any,
    ) -> None:
        self.num_replicas = num_replicas
        self.size = size
        self.reports: dict[int, Report] = {}
        self._hang_seconds = hang_seconds
        self._body, self._make, self._options = body, make, options
        self.store = store or KeptStore()
        self.pids: dict[int, int] = {}
        self._outputs: dict[int, Connection] = {}
        self._lives: Counter[int] = Counter()
        for replica in range(num_replicas):
            self.start(replica, (fates or {}).get(replica))

    def start(self, replica: int, fate: Fate | None = None) -> None:
        self._lives[replica] += 1
        for index in range(self.size):
            mine = fate if fate is not None and fate.index == index else None
            place = Place(
                store_address=self.store.address,
                replica=replica,
                num_replicas=self.num_replicas,
                index=index,
                size=self.size,
                hang_seconds=self._hang_seconds,
            )
            self._start_rank(place, mine)

    def _start_rank(self, place: Place, fate: Fate | None) -> None:
        reader, writer = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for each in self._outputs.values():
                    each.close()
                status = self._run(place, fate, writer)
            except SystemExit as error:
                status = int(error.code or 0)
            except BaseException as error:
                writer.send(("error", f"{type(error).__name__}: {error}"))
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        writer.close()
        self.pids[place.rank], self._outputs[place.rank] = pid, reader
        self.reports.setdefault(place.rank, Report())

    def _run(self, place: Place, fate: Fate | None, writer: Connection) -> int:
        take_device(place.rank)
        if place.size > 1:
            host, port = self.store.address.split(":")
            store = TCPStore(host, int(port), is_master=False)
            prefix = f"inner/{place.replica}/{self._lives[place.replica]}"
            backend = "nccl" if DEVICE.type == "cuda" else "gloo"
            init_process_group(backend, store=PrefixStore(prefix, store), rank=place.index, world_size=place.size)
            model = self._make(replica_mesh(place)).to(DEVICE)
        else:
            model = self._make().to(DEVICE)
        kept: list[Any] = []
        writer.send(("ready", None))
        run = join_replicas(place, model, num_micro_batches=NUM_MICRO_BATCHES, kept=kept)
        try:
            with _fated(fate):
                self._body(run, model, kept, lambda kind, value: writer.send((kind, value)), fate, **self._options)
        finally:
            run.close()
        return 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Read what replicas say until a condition holds."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not reached: {what}; {self.reports}"
            for output in wait(list(self._outputs.values()), timeout=0.02):
                self._read(output)  # type: ignore[arg-type]

    def let_train(self, num_steps: int) -> int:
        """Let a crew with a leash come so much further than whoever is furthest: the steps that it may finish."""
        newest = max((step for report in self.reports.values() for step in report.losses), default=-1)
        self._options["leash"].value = newest + 1 + num_steps
        return newest + 1 + num_steps

    def pass_time(self, seconds: float) -> None:
        """Read what replicas say for so long."""
        since = time.monotonic()
        self.until(lambda: time.monotonic() - since > seconds, "time passes")

    def finish(self, *, but: Sequence[int] = ()) -> None:
        """Wait until every replica's newest process has ended, but for some that never will."""
        self.until(lambda: set(self._outputs) <= set(but), "the end")

    def close(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.store.close()

    def _read(self, output: Connection) -> None:
        rank = next(each for each, mine in self._outputs.items() if mine is output)
        report = self.reports[rank]
        try:
            kind, value = output.recv()
        except (EOFError, OSError):
            del self._outputs[rank]
            _, status = os.waitpid(self.pids.pop(rank), 0)
            report.status = os.waitstatus_to_exitcode(status)
            return
        match kind:
            case "loss":
                report.losses[value[0]] = value[1]
            case "ran":
                report.ran[value[0]] = value[1]
            case "weights":
                report.weights = value
            case "ready":
                report.num_lives += 1
            case "error":
                report.error = value


def alone(body: Callable[..., None] = train, make: Callable[[], nn.Module] = make_model, **options: Any) -> Report:
    """What a failure-free process on its own does."""
    reader, writer = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            writer.send(_alone(body, make, **options))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    writer.close()
    try:
        report: Report = reader.recv()
    finally:
        os.waitpid(pid, 0)
    return report


def _alone(body: Callable[..., None], make: Callable[[], nn.Module], **options: Any) -> Report:
    take_device(0)
    report = Report()
    model = make().to(DEVICE)
    kept: list[Any] = []
    run = join_replicas(Place(), model, num_micro_batches=NUM_MICRO_BATCHES, kept=kept)

    def told(kind: str, value: Any) -> None:
        if kind == "loss":
            report.losses[value[0]] = value[1]
        elif kind == "weights":
            report.weights = value

    body(run, model, kept, told, **options)
    return report
