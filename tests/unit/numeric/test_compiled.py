"""Machine code that says what its Python source says, with a cache or without a place for one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evenkeel.numeric.compiled import compiled

_SCRIPT = """
import numpy as np
from evenkeel.numeric.compiled import compiled

@compiled
def total(values):
    result = 0.0
    for value in values:
        result += value
    return result

print(total(np.array([0.1, 0.2, 0.3])) == 0.1 + 0.2 + 0.3)
"""


@compiled
def _running_sum(values: np.ndarray, out: np.ndarray) -> float:
    total = 0.0
    for index in range(len(values)):
        total += values[index]
        out[index] = total
    return total


def test_it_adds_in_the_order_of_its_source() -> None:
    values = np.random.default_rng(1).lognormal(size=1000)
    out = np.empty(1000)

    total = _running_sum(values, out)

    expected = []
    for value in values.tolist():
        expected.append(value + (expected[-1] if expected else 0.0))
    assert out.tolist() == expected
    assert total == expected[-1]


@pytest.mark.parametrize(
    "module", ["services.detector", "services.scheduler", "services.telemetry", "planning.search.solver"]
)
def test_what_is_compiled_costs_an_import_nothing(module: str) -> None:
    name = f"evenkeel.{module}.main" if module.startswith("services") else f"evenkeel.{module}"
    heavy = ("numba", "torch", "ortools", "scipy")
    script = f"import sys, {name}; print([one for one in {heavy} if one in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


_HELPER = """
from evenkeel.numeric.compiled import compiled

SCALE = 2.0

@compiled
def scaled(value):
    return value * SCALE
"""
_CONSTANT = "OFFSET = 1.0\n"
_USER = """
from evenkeel.numeric.compiled import compiled
from {prefix}_constant import OFFSET
from {prefix}_helper import scaled

@compiled
def result(value):
    return scaled(value) + OFFSET

print(result(10.0), sum(result.dispatcher.stats.cache_hits.values()))
"""


def test_what_is_kept_is_out_of_date_when_something_that_it_uses_has_changed(tmp_path: Path) -> None:
    def written(helper: str, constant: str) -> tuple[float, int]:
        (tmp_path / "kept_helper.py").write_text(helper)
        (tmp_path / "kept_constant.py").write_text(constant)
        (tmp_path / "kept_user.py").write_text(_USER.format(prefix="kept"))
        script = [sys.executable, "-c", "import kept_user"]
        # Python takes a source that was changed within the second, and is as long as before, for the one it compiled.
        mine = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), *sys.path])), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = os.environ | mine
        value, hits = subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout.split()
        return float(value), int(hits)

    assert written(_HELPER, _CONSTANT) == (21.0, 0)
    assert written(_HELPER, _CONSTANT) == (21.0, 1), "nothing has changed"
    assert written(_HELPER.replace("2.0", "3.0"), _CONSTANT) == (31.0, 0), "a helper has changed"
    assert written(_HELPER.replace("2.0", "3.0"), "OFFSET = 5.0\n") == (35.0, 0), "a number has changed"


@pytest.mark.parametrize("can_write", [True, False])
def test_a_process_compiles_whether_or_not_a_cache_can_be_written(tmp_path: Path, can_write: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    cache = tmp_path / "cache"
    if not can_write:
        cache.write_text("a file, no folder")  # whoever runs this as root may write into any folder
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    assert can_write == cache.is_dir()
