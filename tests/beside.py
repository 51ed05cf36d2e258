"""A pytest plugin: folders of tests run in processes of their own beside the others, and all is told in one report.

Tests that wait for servers and clocks leave the processors idle for half of their time; what only computes fits into
that time. It has less right to the processors, so that the clocks of the others stay right. Tests of such a folder
that look at the clock themselves are marked so, and stay with the others. Each folder has a process: one that waits
leaves its time to the next, and whatever ends last has the processors to itself.

    pytest -p tests.beside --beside tests/integration/elastic --beside tests/unit tests/integration tests/e2e
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CLOCK = "clock"
NICENESS = 10
TIMEOUT_SECONDS = 600
"""Of each test beside the others: it may have to wait long for a processor."""
GRACE_SECONDS = 20.0
ENDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--beside", action="append", metavar="FOLDER", help="run the tests of FOLDER in a process beside the others"
    )
    parser.addoption("--beside-reports-to", metavar="FILE", help="for that process: where it tells its results")


def pytest_configure(config: pytest.Config) -> None:
    reports_to, folders = config.getoption("--beside-reports-to"), config.getoption("--beside")
    if reports_to:
        config.pluginmanager.register(Teller(config, Path(reports_to)))
    elif folders and not config.getoption("--collect-only"):
        config.pluginmanager.register(Listener(config, folders))


class Teller:
    """In the process beside: writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, reports_to: Path) -> None:
        os.nice(NICENESS)
        self._config = config
        self._lines = reports_to.open("w", buffering=1)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not item.get_closest_marker(CLOCK)]

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


class Run:
    """The process of one folder, which it starts.

    Args:
        folder: Whose tests it runs.
        flags: For its pytest.
        place: Becomes a folder with what it tells.
        startpath: Where it runs.
    """

    def __init__(self, folder: str, flags: list[str], place: Path, startpath: Path) -> None:
        self.folder = folder
        self._reports, self._output = place / "reports", place / "output"
        place.mkdir()
        more = [f"--beside-reports-to={self._reports}", f"--timeout={TIMEOUT_SECONDS}", folder]
        with self._output.open("w") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *flags, *more], stdout=stream, stderr=stream, cwd=startpath
            )

    def wait(self) -> str:
        """Wait for its end; what went wrong apart from tests, if anything did."""
        status = self._process.wait()
        return "" if status in ENDED else f"the tests of {self.folder} ended with {status}"

    def interrupt(self) -> None:
        """Unless it has ended: so that it ends the processes that it started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Wait a little, then end it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._process.kill()
        self._process.wait()

    def told(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Hook and report of everything that it told."""
        for line in self._reports.read_text().splitlines(keepends=True) if self._reports.exists() else ():
            if line.endswith("\n"):  # a process that was killed leaves half a line
                hook, told = json.loads(line)
                yield hook, told

    def output(self) -> str:
        """All that it wrote."""
        return self._output.read_text()


class Listener:
    """In the process that was started: starts the other ones, waits for them, and passes on what they told."""

    def __init__(self, config: pytest.Config, folders: list[str]) -> None:
        self._config = config
        self._folders = folders

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        beside = [self._config.invocation_params.dir / folder for folder in self._folders]
        items[:] = [
            item
            for item in items
            if item.get_closest_marker(CLOCK) or not any(item.path.is_relative_to(folder) for folder in beside)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        runs: list[Run] = []
        with tempfile.TemporaryDirectory() as place:
            try:
                for number, folder in enumerate(self._folders):
                    runs.append(Run(folder, self._flags(), Path(place, str(number)), session.startpath))
                result = yield
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
                    sys.stdout.write(f"\n{problem}:\n{run.output()}")
        if any(problems):
            raise session.Failed("; ".join(filter(None, problems)))
        return result

    def _flags(self) -> list[str]:
        """This process's own flags without its folders."""
        given = [str(argument) for argument in self._config.invocation_params.args]
        left_out = {*self._config.args, "--beside", *self._folders, *(f"--beside={each}" for each in self._folders)}
        return [argument for argument in given if argument not in left_out]

    def _pass_on(self, session: pytest.Session, hook: str, told: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
        if hook == "pytest_runtest_logreport" and report.when == "setup":
            session.testscollected += 1
            self._config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        getattr(self._config.hook, hook)(report=report)
        if hook == "pytest_runtest_logreport" and report.when == "teardown":
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
