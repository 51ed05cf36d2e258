"""A pytest plugin: folders of tests run in a process of their own beside the others, and all is told in one report.

Tests that wait for servers and clocks leave the processors idle for half of their time; what only computes fits into
that time. It has less right to the processors, so that the clocks of the others stay right. Tests of such a folder
that look at the clock themselves are marked so, and stay with the others.

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


class Listener:
    """In the process that was started: starts the other one, waits for it, and passes on what it told."""

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
        with tempfile.TemporaryDirectory() as folder:
            reports, output = Path(folder, "reports"), Path(folder, "output")
            with output.open("w") as stream:
                beside = subprocess.Popen(self._command(reports), stdout=stream, stderr=stream, cwd=session.startpath)
            try:
                result = yield
                status = beside.wait()
            finally:
                self._end(beside)
            for line in reports.read_text().splitlines(keepends=True) if reports.exists() else ():
                if line.endswith("\n"):  # a process that was killed leaves half a line
                    self._pass_on(session, *json.loads(line))
            if status not in ENDED:
                said = f"the tests of {', '.join(self._folders)} ended with {status}"
                sys.stdout.write(f"\n{said}:\n{output.read_text()}")
                raise session.Failed(said)
        return result

    @staticmethod
    def _end(beside: subprocess.Popen[bytes]) -> None:
        """Where the tests were interrupted: its own are too, so that they end the processes that they started."""
        if beside.poll() is None:
            beside.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                beside.wait(GRACE_SECONDS)
        beside.kill()
        beside.wait()

    def _command(self, reports: Path) -> list[str]:
        """This process's own flags without its folders."""
        given = [str(argument) for argument in self._config.invocation_params.args]
        left_out = {*self._config.args, "--beside", *self._folders, *(f"--beside={each}" for each in self._folders)}
        flags = [argument for argument in given if argument not in left_out]
        more = [f"--beside-reports-to={reports}", f"--timeout={TIMEOUT_SECONDS}", *self._folders]
        return [sys.executable, "-m", "pytest", *flags, *more]

    def _pass_on(self, session: pytest.Session, hook: str, told: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
        if hook == "pytest_runtest_logreport" and report.when == "setup":
            session.testscollected += 1
            self._config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        getattr(self._config.hook, hook)(report=report)
        if hook == "pytest_runtest_logreport" and report.when == "teardown":
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
