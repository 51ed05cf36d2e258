"""One rank of a test as a process on gloo: it tells what it does through a pipe, and dies where it is told to."""

import json
import mmap
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.refusals import StaleBallotError
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.delivery import Delivery
from evenkeel.trainer_sdk.groups.group import Group

DEADLINE_SECONDS = 150.0
ANY = -1


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A process kills or stops itself when it reaches an operation of an iteration for the ``nth`` time.

    Or when a reshape to ``epoch`` comes to one of ``MOMENTS_OF_A_RESHAPE``. Iteration ``ANY`` is whichever is the
    first with that operation.
    """

    iteration: int
    operation: str
    nth: int = 1
    epoch: int = 0
    signal: int = signal.SIGKILL


MOMENTS_OF_A_RESHAPE = {
    "connect": (GroupBuilder, "connect"),  # while groups are built
    "exchange": (Delivery, "exchange"),  # before slices move
    "gather": (Assembly, "gather"),  # slices are there, sums are not
}


@contextmanager
def dying_in_a_reshape(fate: Fate | None, mailbox: Mailbox) -> Iterator[None]:
    """A fate whose operation is a moment of a reshape, and whose epoch is the one that the reshape leads to."""
    if fate is None or fate.operation not in MOMENTS_OF_A_RESHAPE:
        yield
        return
    owner, name = MOMENTS_OF_A_RESHAPE[fate.operation]
    method = getattr(owner, name)

    def deadly(*arguments: Any) -> Any:
        if mailbox.state.promised.epoch == fate.epoch:
            os.kill(os.getpid(), fate.signal)
        return method(*arguments)

    setattr(owner, name, deadly)
    try:
        yield
    finally:
        setattr(owner, name, method)


class FatefulMark(ProgressMark):
    """A progress mark that tells the test which waits for the other replicas were reached, and fulfils a fate."""

    __slots__ = ("_connection", "_fate", "_left")

    def __init__(self, connection: Connection, fate: Fate | None) -> None:
        super().__init__()
        self._connection = connection
        self._fate = fate
        self._left = 0 if fate is None else fate.nth

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "newest" and hasattr(self, "_left"):
            self._reached(value[0])

    def _reached(self, operation: str) -> None:
        fate, mark = self._fate, self.read()
        if operation == "wait:gradient":
            self._connection.send_bytes(b"w" + json.dumps([mark.epoch, mark.iteration]).encode())
        if fate is None or operation != fate.operation:
            return
        if mark.epoch != fate.epoch or fate.iteration not in (ANY, mark.iteration):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), fate.signal)


class PipeEmitter:
    """An emitter that gives the test what was measured, and then holds the rank for as long as it is told to."""

    def __init__(self, connection: Connection, fate: Fate | None, hold: Callable[[Measured], None]) -> None:
        self.progress = FatefulMark(connection, fate)
        self._connection = connection
        self._hold = hold

    def emit_later(self, build: Callable[[], Measured]) -> None:
        measured = build()
        measured.loss, measured.gradient_norm = (
            number(measured.loss, "loss"),
            number(measured.gradient_norm, "gradient_norm"),
        )
        self._connection.send_bytes(b"s" + pickle.dumps(measured))
        self._hold(measured)

    def emit_event(self, event: process_pb2.ProcessEvent) -> None:
        self._connection.send_bytes(b"e" + event.SerializeToString())

    def close(self, timeout_seconds: float = 1.0) -> None:
        pass


class Leash:
    """How far ranks may train beyond what the test has read, in memory that they share with it.

    However long a test takes to act, it acts on a job that trains: the job cannot have ended meanwhile.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._last = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._last[0] = length

    def reach(self, iteration: int, no_further_than: int) -> None:
        """The test has read of an iteration."""
        self._last[0] = max(self._last[0], min(iteration + self._length, no_further_than))

    def hold(self, mailbox: Mailbox, step: Measured) -> None:
        """In a rank after a step: wait until it may do another one, or has a plan or an interrupt to follow."""
        epoch = step.place.epoch
        while step.iteration >= self._last[0] and not mailbox.interrupted() and mailbox.committed_epoch() <= epoch:
            time.sleep(0.002)


@dataclass
class RankProcess:
    rank: int
    incarnation: int
    pid: int
    commands: Connection
    output: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, name: str, *arguments: object) -> Any:
        with self.lock:
            self.commands.send((name, arguments))
            assert self.commands.poll(1.5 * DEADLINE_SECONDS), f"rank {self.rank} does not answer {name}"
            answer = self.commands.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def fork(body: Callable[[], None]) -> int:
    """A process that runs ``body``: its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """The exit code of a process; minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_together(body: Callable[[int], None], ranks: Sequence[int]) -> list[int]:
    """Exit codes of ranks, each in a process of its own.

    Nobody whose body succeeded leaves before all are done: a partner may still be connecting to it.
    """
    leave, stay = os.pipe()
    pids, ends = [], []
    for rank in ranks:
        end, running = os.pipe()
        pids.append(fork(partial(_run_and_stay, partial(body, rank), running, leave, stay)))
        os.close(running)
        ends.append(end)
    for end in ends:
        os.read(end, 1)
        os.close(end)
    os.close(stay)
    codes = [ended(pid) for pid in pids]
    os.close(leave)
    return codes


def _run_and_stay(body: Callable[[], None], running: int, leave: int, stay: int) -> None:
    os.close(stay)
    body()
    os.close(running)
    os.read(leave, 1)


def serve(mailbox: Mailbox, commands: Connection) -> None:
    """What the rank controller does, through a pipe."""
    probes = ThreadPoolExecutor(1)
    asked: list[Future[list[float]]] = []
    handlers: dict[str, Callable[..., Any]] = {
        "ask_link": lambda link: asked.append(probes.submit(mailbox.probes.ask_link, link, DEADLINE_SECONDS)),
        "link_answered": lambda: bool(asked) and asked[-1].done(),
        "link_answer": lambda: asked.pop().result(),
        "prepare": lambda reshape: mailbox.prepare(reshape, DEADLINE_SECONDS),
        "commit": mailbox.commit,
        "interrupt": lambda epoch, leave: mailbox.interrupt(epoch, leave=leave),
        "status": lambda: mailbox.state,
    }
    while True:
        try:
            name, arguments = commands.recv()
        except EOFError:
            return
        try:
            commands.send(handlers[name](*arguments))
        except (StaleBallotError, TimeoutError, RuntimeError) as error:
            commands.send(error)


def build(
    builder: GroupBuilder, epoch: int, ranks: Sequence[int], specs: Sequence[GroupSpec], said: object
) -> tuple[dict[str, Group], list[Any]]:
    """An epoch's groups that a rank is in, and what was said at the meeting before."""
    told = builder.meet(epoch, ranks, said)
    return builder.add(epoch, specs), told
