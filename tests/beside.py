"""A pytest plugin: folders of tests run in processes of their own beside the others, and all is told in one report.

Tests that wait for servers and clocks leave the processors idle for half of their time; what only computes fits into
that time. A folder that is run ``--beside`` has less right to the processors, so that the clocks of the others stay
right: what looks at the clock itself belongs into another one. One that is run ``--along`` waits as much as the others
do, and has the same right. Each folder has a process, which reads nothing of what others run: one that waits leaves its
time to the next. A command that only computes, as a check of types, may run beside them too: the run ends when it
fails.

    python -m pytest -p tests.beside --beside-command mypy --beside tests/unit --along tests/integration tests/e2e
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

NICENESS = 15
TIMEOUT_SECONDS = 1200
"""Of each test of a part: it may have to wait long for a processor."""
GRACE_SECONDS = 60.0
"""Tests that are interrupted tear down what they started, on a machine that others want too."""
ENDED = frozenset[int]({pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED})


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, metavar, meaning in (
        ("--beside", "FOLDER", "run the tests of FOLDER in a process beside the others"),
        ("--along", "FOLDER", "likewise, with the same right to the processors"),
        ("--beside-command", "COMMAND", "run COMMAND beside the tests; it has to succeed"),
    ):
        parser.addoption(option, action="append", default=[], metavar=metavar, help=meaning)
    parser.addoption("--part", metavar="FOLDER", help="for such a process: whose tests it runs")
    parser.addoption("--part-reports-to", metavar="FILE", help="for such a process: where it tells its results")


def pytest_configure(config: pytest.Config) -> None:
    parts = Parts(config)
    if reports_to := config.getoption("--part-reports-to"):
        config.pluginmanager.register(parts)
        config.pluginmanager.register(Teller(config, Path(reports_to)))
    elif (parts.folders or config.getoption("--beside-command")) and not config.getoption("--collect-only"):
        config.pluginmanager.register(parts)
        config.pluginmanager.register(Listener(config, parts))


class Parts:
    """Which process runs a test; every process knows all of it, so that each test is run once."""

    def __init__(self, config: pytest.Config) -> None:
        self._mine = config.getoption("--part")
        self._place = config.invocation_params.dir
        self._beside: list[str] = config.getoption("--beside")
        self.folders: list[str] = [*self._beside, *config.getoption("--along")]

    def is_beside(self, folder: str) -> bool:
        """Whether its tests have less right to the processors."""
        return folder in self._beside

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """To read what another process runs takes seconds; pytest asks of no path that was given to it."""
        return self._part_of(collection_path) != self._mine or None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._part_of(item.path) == self._mine]

    def _part_of(self, path: Path) -> str | None:
        return next((folder for folder in self.folders if path.is_relative_to(self._place / folder)), None)


class Teller:
    """In the process of a part: writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, reports_to: Path) -> None:
        self._config = config
        self._lines = reports_to.open("w", buffering=1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("pytest_collectreport", report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell("pytest_runtest_logreport", report)

    def _tell(self, hook: str, report: Any) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._lines.write(json.dumps([hook, told], default=str) + "\n")

    def pytest_unconfigure(self) -> None:
        self._lines.close()


class Beside:
    """A process beside the tests, which it starts.

    Args:
        what: Of whom is told that it failed.
        command: Program and arguments.
        place: Becomes a folder with what it writes.
        startpath: Where it runs.
        niceness: How much less right to the processors it has.
    """

    succeeded: frozenset[int] = frozenset({0})

    def __init__(
        self, what: str, command: Sequence[str], place: Path, startpath: Path, *, niceness: int = NICENESS
    ) -> None:
        self._what = what
        self._output = place / "output"
        place.mkdir()
        with self._output.open("w") as stream:
            self._process = subprocess.Popen(
                ["nice", "-n", str(niceness), *command],
                stdout=stream,
                stderr=stream,
                cwd=startpath,
                process_group=0,
            )

    def problem(self) -> str:
        """What went wrong apart from tests, if it has ended and anything did."""
        status = self._process.poll()
        return "" if status is None or status in self.succeeded else f"{self._what} ended with {status}"

    def wait(self) -> str:
        """Wait for its end; what went wrong apart from tests, if anything did."""
        self._process.wait()
        return self.problem()

    def interrupt(self) -> None:
        """Unless it has ended: it and what it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Wait a little, then end it and what it started."""
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def told(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Hook and report of every test that it told of."""
        yield from ()

    def output(self) -> str:
        """All that it wrote."""
        return self._output.read_text()


class Run(Beside):
    """The process of one folder.

    Args:
        folder: Whose tests it runs.
        flags: For its pytest.
        place: Becomes a folder with what it tells.
        startpath: Where it runs.
        niceness: How much less right to the processors it has.
    """

    succeeded = ENDED

    def __init__(self, folder: str, flags: list[str], place: Path, startpath: Path, *, niceness: int) -> None:
        self._reports = place / "reports"
        more = [f"--part={folder}", f"--part-reports-to={self._reports}", f"--timeout={TIMEOUT_SECONDS}", folder]
        command = [sys.executable, "-m", "pytest", *flags, *more]
        super().__init__(f"the tests of {folder}", command, place, startpath, niceness=niceness)

    def interrupt(self) -> None:
        """Unless it has ended: so that it ends the processes that it started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def told(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Hook and report of everything that it told."""
        for line in self._reports.read_text().splitlines(keepends=True) if self._reports.exists() else ():
            if line.endswith("\n"):  # a process that was killed leaves half a line
                hook, told = json.loads(line)
                yield hook, told


class Listener:
    """In the process that was started: starts the other ones, waits for them, and passes on what they told."""

    def __init__(self, config: pytest.Config, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._commands: list[str] = config.getoption("--beside-command")
        self._running: list[Beside] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        runs: list[Beside] = []
        with tempfile.TemporaryDirectory() as place:
            try:
                for folder in self._parts.folders:
                    niceness = NICENESS if self._parts.is_beside(folder) else 0
                    at = Path(place, str(len(runs)))
                    runs.append(Run(folder, self._flags(), at, session.startpath, niceness=niceness))
                for command in self._commands:
                    runs.append(Beside(command, shlex.split(command), Path(place, str(len(runs))), session.startpath))
                self._running = runs[len(self._parts.folders) :]
                result = yield
                self._running = []
                problems = [run.wait() for run in runs]
            finally:
                for run in runs:
                    run.interrupt()
                for run in runs:
                    run.end()
            for run, problem in zip(runs, problems, strict=True):
                for hook, told in run.told():
                    self._pass_on(session, hook, told)
                if problem:
                    _tell(run, problem)
        if any(problems):
            raise session.Failed("; ".join(filter(None, problems)))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Before each test: once a command has failed, no test changes that."""
        for command in self._running:
            if problem := command.problem():
                _tell(command, problem)
                raise item.session.Failed(problem)

    def _flags(self) -> list[str]:
        """This process's own flags without its folders and commands."""
        given = [str(argument) for argument in self._config.invocation_params.args]
        option = "--beside-command"
        left_out = {*self._config.args, option, *self._commands, *(f"{option}={each}" for each in self._commands)}
        # A folder that is a part may be named among the others too: the option comes just before it.
        return [
            argument
            for before, argument in zip(["", *given], given, strict=False)
            if argument not in left_out or before in ("--beside", "--along")
        ]

    def _pass_on(self, session: pytest.Session, hook: str, told: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
        # JSON knows no tuple, and pytest's summary of skipped tests insists on one.
        if report.skipped and isinstance(report.longrepr, list):
            report.longrepr = tuple(report.longrepr)
        if hook == "pytest_runtest_logreport" and report.when == "setup":
            session.testscollected += 1
            self._config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        getattr(self._config.hook, hook)(report=report)
        if hook == "pytest_runtest_logreport" and report.when == "teardown":
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def _tell(beside: Beside, problem: str) -> None:
    sys.stdout.write(f"\n{problem}:\n{beside.output()}")
