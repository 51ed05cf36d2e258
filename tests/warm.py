"""Python programs that use torch, forked from a process that has loaded it.

By itself each of them loads for two to four seconds of a processor before it begins: torch, and as many modules again
at the first optimizer. The process that forks has no threads and no connections, as this one may have.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import pytest

from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.agent.script_rank import run_script
from evenkeel.trainer_sdk.launcher.processes import zygote_link

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.warm", "tests.warm_modules"])


def warm_up() -> None:
    """Begin to load, in the background; programs that are started meanwhile begin when that is done."""
    forkserver.ensure_running()


@contextmanager
def launched_warm() -> Iterator[None]:
    """While inside, the parents of ranks that launchers of this process start are such programs."""
    starts = SimpleNamespace(Popen=WarmProgram, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote_link, "subprocess", starts)
        yield


class WarmProgram:
    """What ``subprocess.Popen`` is for ``[sys.executable, ...]``, as far as tests and the launcher ask.

    Args:
        command: This Python, a program or ``-m`` and a module, and arguments.
        env: All of its environment.
        stdout: A file or its number, or ``PIPE``; by default what this process writes to.
        stderr: A file or its number, or ``STDOUT``; likewise.
        stdin: It has nothing to read, whatever is said.
        pass_fds: Numbers of files that it has, too; arguments that are these numbers are those that it has them under.
        start_new_session: It leads one.

    Attributes:
        pid: See Popen.
        stdout: What it writes, where that is a pipe.
    """

    pid: int
    stdout: IO[str]

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str],
        stdout: Any = 1,
        stderr: Any = 2,
        stdin: object = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        program, *arguments = map(os.fspath, command)
        assert program == sys.executable, program
        with ExitStack() as opened:
            if stdout == subprocess.PIPE:
                reader, writer = os.pipe()
                self.stdout, stdout = open(reader), opened.enter_context(open(writer, "w"))  # noqa: SIM115
            outputs = [_Open(stdout), _Open(stdout if stderr == subprocess.STDOUT else stderr)]
            passed = {str(number): _Open(number) for number in pass_fds}
            order = (arguments, dict(env), outputs, passed, start_new_session)
            # Whatever a test left of them ends with this process, which would wait for them else.
            self._process = _context.Process(target=_run, args=order, daemon=True)
            self._process.start()
        assert self._process.pid is not None, "it has been started"
        self.args, self.pid = command, self._process.pid

    @property
    def returncode(self) -> int | None:
        """See Popen."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """See Popen."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """See Popen."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.args), timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        """See Popen."""
        self._process.terminate()

    def kill(self) -> None:
        """See Popen."""
        self._process.kill()


class _Open:
    """An open file's number, here and in a process that is started with it."""

    def __init__(self, file: int | IO[Any]) -> None:
        self.number = file if isinstance(file, int) else file.fileno()

    def __getstate__(self) -> Any:
        return DupFd(self.number)

    def __setstate__(self, handed_on: Any) -> None:
        self.number = handed_on.detach()


def _run(
    arguments: list[str], env: dict[str, str], outputs: list[_Open], passed: dict[str, _Open], leads_session: bool
) -> NoReturn:
    multiprocessing.process.current_process()._config["daemon"] = False  # it may have workers
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output.number, number)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - of this process, for as long as it lives
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if leads_session:
        os.setsid()
    is_module = arguments[0] == "-m"
    script, *rest = arguments[is_module:]
    rest = [str(passed[each].number) if each in passed else each for each in rest]
    job = ScriptJob(job_id="", script=script, arguments=tuple(rest), is_module=is_module)
    status = run_script(job, env, lambda error: None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
