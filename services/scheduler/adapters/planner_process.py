"""The planner as a child of the scheduler: its compiler and its memory are its own, and so is its death.

It is asked one question at a time (:mod:`evenkeel.planning.__main__`). One that ends is begun anew. Its time
for an answer is counted by its own processor clock, so a busy machine makes it late and does not kill it; one that has
used it up, or does nothing, is killed. Whoever asked learns of it at once, and may stop waiting before.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import Sequence

import structlog

from evenkeel.planning.documents.code_digest import code_digest
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.common.backoff import Backoff

_log = structlog.get_logger(__name__)

# Of what runs here: what is on disk may be newer by the time a child begins.
_CODE = code_digest().encode()
_LONGEST_LINE_BYTES = 2**30
_IDLE_SHARE = 0.001
"""Of its time: one that used less of a processor meanwhile is stopped, or waits for something."""


class PlannerAwayError(Exception):
    """The planner gave no answer; the message says why."""


class PlannerProcess:
    """Belongs to the event loop's thread.

    Args:
        deadline_seconds: How much of a processor an answer may take.
        command: What is started.
    """

    def __init__(
        self, *, deadline_seconds: float, command: Sequence[str] = (sys.executable, "-m", "evenkeel.planning")
    ) -> None:
        self._deadline_seconds, self._command = deadline_seconds, command
        self._child: Process | None = None
        self._is_ready = False
        self._turn = asyncio.Lock()
        self._number = 0
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's, where there is one just now."""
        return None if self._child is None else self._child.pid

    async def run(self) -> None:
        """Have a planner until cancelled; it is gone on return."""
        backoff = Backoff(longest_seconds=10.0)
        while True:
            # An interrupt from a terminal is meant for us, who end it.
            child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE_BYTES, start_new_session=True
            )
            self._child = child
            try:
                assert child.stdout is not None
                async for line in child.stdout:
                    self._heard(line)
                    backoff.reset()
            finally:
                self._child, self._is_ready = None, False
                # Process.kill looks for its end first, and the watcher that waits for that would find nobody.
                if child.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
                ended = await child.wait()
                if self._answer is not None and not self._answer.done():
                    self._answer.set_exception(PlannerAwayError(f"the planner's process ended (exit code {ended})"))
            _log.warning("the planner's process ended, another one begins", exit_code=ended)
            await asyncio.sleep(backoff.next_seconds())

    async def solve(self, situation: Situation, *, is_urgent: bool = False) -> Solution:
        """The planner's answer.

        Args:
            situation: What is asked about.
            is_urgent: Nobody waits longer than the deadline by the wall, whatever the planner is doing, and not at all
                for one that is still being started: where nothing is compiled yet that takes a minute.

        Raises:
            NoPlanError: Nothing can be made of the live ranks.
            PlannerAwayError: There is no planner, it ended, took too long, or tripped over this question.
        """
        question = await asyncio.to_thread(_written, situation)
        if is_urgent and not self._is_ready:
            raise PlannerAwayError("the planner's process is being started")
        try:
            async with asyncio.timeout(self._deadline_seconds if is_urgent else None), self._turn:
                answer = await self._ask(question)
        except TimeoutError:
            raise PlannerAwayError(f"the planner did not answer in {self._deadline_seconds:g} s") from None
        found = await asyncio.to_thread(_read, answer)
        if isinstance(found, NoPlanError):
            raise found
        if isinstance(found, Solution):
            return found
        raise PlannerAwayError(f"the planner failed on this question:\n{found}")

    async def _ask(self, question: bytes) -> bytes:
        child = self._child
        if child is None or child.stdin is None:
            raise PlannerAwayError("the planner's process is being started")
        self._number += 1
        self._answer = asyncio.get_running_loop().create_future()
        try:
            # Whether it takes it in shows in its answer: one that is stopped would be waited for here for ever.
            child.stdin.write(b"%d %b %b\n" % (self._number, _CODE, question))
            return await self._answered(child, self._answer)
        finally:
            self._answer = None

    async def _answered(self, child: Process, answer: asyncio.Future[bytes]) -> bytes:
        began = before = _processor_seconds(child.pid)
        while not (await asyncio.wait({answer}, timeout=self._deadline_seconds))[0]:
            now = _processor_seconds(child.pid)
            is_idle = now - before < _IDLE_SHARE * self._deadline_seconds
            # One that is still compiling has not begun with the question.
            if is_idle or (self._is_ready and now - began >= self._deadline_seconds):
                if child.returncode is None:
                    child.kill()
                raise PlannerAwayError(f"the planner had {self._deadline_seconds:g} s of a processor, or did nothing")
            began, before = (began if self._is_ready else now), now
        return answer.result()

    def _heard(self, line: bytes) -> None:
        number, _, answer = line.partition(b" ")
        if not self._is_ready:
            self._is_ready = True
            _log.info("the planner is ready", seconds=_read(answer))
        elif self._answer is not None and not self._answer.done() and int(number) == self._number:
            self._answer.set_result(answer)


def _processor_seconds(pid: int) -> float:
    """What a process has used of processors; where Linux does not say it, the wall clock."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written(situation: Situation) -> bytes:
    return b64encode(pickle.dumps(situation))


def _read(answer: bytes) -> object:
    return pickle.loads(b64decode(answer))  # noqa: S301 - our own child wrote it
