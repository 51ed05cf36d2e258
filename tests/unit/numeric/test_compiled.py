"""Machine code that says what its Python source says, with a cache or without a place for one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numeric.compiled import compiled

_SCRIPT = """
import numpy as np
from numeric.compiled import compiled

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
