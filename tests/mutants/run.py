"""Mistakes put into code, one at a time: ``make mutants`` runs this in a copy of the sources, which it rewrites.

mutmut makes the mutants and tells which test gets to which function. Tests are loaded and run once here; then each
mutant is tried in a fork of this process, by the tests that get to it, the quickest first, until one fails. Their
order is one of chance: what was tried when somebody stops it is a fair sample, and the table is of that.
"""

import argparse
import ast
import difflib
import gc
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import pytest
from _pytest.runner import runtestprotocol
from mutmut.configuration import config
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name

_TIMES_AS_LONG = 20.0
_LEAST_CPU_SECONDS = 3.0
"""So much more of a processor than without it may tests take with a mutant: one that goes round for ever is found."""

_IDLE_SECONDS = 10.0
_IDLE_CPU_SECONDS = 0.02
"""One that waits for ever is found too: it does next to nothing for so long, which no busy machine makes of another."""

_OPTIONS = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=native", "--hypothesis-profile=mutants"]
"""Nobody reads why a test fails, or by which smallest example."""


class Mutants:
    """A plugin of pytest that runs the tests of mutants instead of the tests.

    Attributes:
        found: Whether tests found a mutant, of each that was tried.
    """

    def __init__(self, names: Sequence[str], processes: int) -> None:
        self._names, self._processes = names, processes
        self._tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        self._cpu_seconds: dict[pytest.Item, float] = {}
        self.found: dict[str, bool] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Each test once, to see what it gets to; then all mutants."""
        if session.testsfailed:
            raise session.Interrupted("tests that cannot be read find no mutant")
        set_mutant_under_test("stats")
        for item in session.items:
            began = time.process_time()
            if not _pass([item]):
                pytest.exit(f"{item.nodeid} fails without a mutant", returncode=1)
            self._cpu_seconds[item] = time.process_time() - began
            for function in state()._stats:
                self._tests[function].append(item)
            state()._stats.clear()
        for tests in self._tests.values():
            tests.sort(key=self._cpu_seconds.__getitem__)
        gc.freeze()
        if self._finds("", session.items) or not self._finds("fail", session.items):
            pytest.exit("forks of this process cannot tell a mutant from what is right", returncode=1)
        try:
            self._try_all()
        except KeyboardInterrupt:
            print(f"stopped after {len(self.found)} of {len(self._names)}")
        return True

    def _finds(self, name: str, tests: Sequence[pytest.Item]) -> bool:
        return os.waitpid(self._fork(name, tests), 0)[1] != 0

    def _try_all(self) -> None:
        running: dict[int, str] = {}
        for name in self._names:
            if len(running) == self._processes:
                self._take_one(running)
            if tests := self._tests[mangled_name_from_mutant_name(name)]:
                running[self._fork(name, tests)] = name
            else:
                self._tell(name, was_found=False)
        while running:
            self._take_one(running)

    def _take_one(self, running: dict[int, str]) -> None:
        pid, status = os.wait()
        self._tell(running.pop(pid), was_found=status != 0)

    def _tell(self, name: str, *, was_found: bool) -> None:
        self.found[name] = was_found
        if not was_found:
            print(f"== {name}", difference(name), sep="\n", flush=True)
        if len(self.found) % 100 == 0:
            print(f"{len(self.found)} of {len(self._names)} tried", file=sys.stderr, flush=True)

    def _fork(self, name: str, tests: Sequence[pytest.Item]) -> int:
        """The process that tries a mutant: it ends with 0 when all tests pass, and with another when they take long."""
        cpu_seconds = _LEAST_CPU_SECONDS + _TIMES_AS_LONG * sum(self._cpu_seconds[item] for item in tests)
        pid = os.fork()
        if pid:
            return pid
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            _end_when_idle()
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            set_mutant_under_test(name)
            os._exit(0 if _pass(tests) else 1)
        finally:
            os._exit(2)


def _end_when_idle() -> None:
    """From now on this process ends, as one that found something, when it waits for long."""
    used = time.process_time()

    def look(*_: object) -> None:
        nonlocal used
        if time.process_time() - used < _IDLE_CPU_SECONDS:
            os._exit(2)
        used = time.process_time()

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _IDLE_SECONDS, _IDLE_SECONDS)


def _pass(tests: Sequence[pytest.Item]) -> bool:
    """Whether they do, up to the first that does not."""
    following = [*tests[1:], None]
    return not any(
        report.failed
        for item, after in zip(tests, following, strict=True)
        for report in runtestprotocol(item, nextitem=after, log=False)
    )


def made(wanted: Sequence[str]) -> list[str]:
    """Rewrites the modules that pyproject.toml names; which of their mutants begin with one of ``wanted``."""
    names: list[str] = []
    for path in walk_mutatable_files():
        mutated = mutate_file_contents(str(path), path.read_text())
        path.write_text(mutated.code)
        names += [get_mutant_name(path, name) for name in mutated.mutant_names]
    names = [name for name in names if name.startswith(tuple(f"evenkeel.{each}" for each in wanted or [""]))]
    Random(len(names)).shuffle(names)
    return names


def _function_of(mutant: str) -> str:
    return mutant.rpartition("__mutmut_")[0]


@cache
def functions(module: str) -> Mapping[str, list[str]]:
    """The lines of each function that mutmut wrote into a module, by its name."""
    code = Path("src", *module.split(".")).with_suffix(".py").read_text()
    code = code.replace(" # type: ignore # mutmut generated", "")
    return {
        node.name: (ast.get_source_segment(code, node) or "").replace(node.name, _function_of(node.name)).splitlines()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def difference(name: str) -> str:
    """What a mutant changes."""
    module, _, mutant = name.rpartition(".")
    original = functions(module)[f"{_function_of(mutant)}__mutmut_orig"]
    changes = list(difflib.unified_diff(original, functions(module)[mutant], n=0, lineterm=""))
    return "\n".join(line for line in changes[2:] if not line.startswith("@@"))


def table(found: Mapping[str, bool]) -> Iterator[str]:
    """Mutants and survivors by module."""
    tried = Counter(name.rpartition(".")[0] for name in found)
    left = Counter(name.rpartition(".")[0] for name, was_found in found.items() if not was_found)
    rows = [*((module, tried[module], left[module]) for module in sorted(tried)), ("all", tried.total(), left.total())]
    yield f"{'module':50} {'mutants':>8} {'survive':>8} {'%':>6}"
    for module, count, survive in rows:
        yield f"{module:50} {count:8} {survive:8} {100 * survive / max(1, count):6.1f}"


def main() -> int:
    """Tries them all; returns 1 when tests cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="which, below evenkeel: services.scheduler.plans")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    arguments = parser.parse_args()
    if not (names := made(arguments.modules)):
        parser.error(f"no mutants of {', '.join(arguments.modules)}: see [tool.mutmut] in pyproject.toml")
    plugin = Mutants(names, arguments.processes)
    selection = config().pytest_add_cli_args_test_selection
    if failed := pytest.main([*_OPTIONS, *selection], plugins=[plugin]):
        return failed
    print(*table(plugin.found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
