"""Levers are found by being there, and the search knows none of them."""

import subprocess
import sys
from pathlib import Path

import evenkeel.planning
from evenkeel.planning.levers import REGISTRY, Asked, asked_at

_ROOT = Path(evenkeel.planning.__path__[0])

_LEVER = """
from evenkeel.planning.levers.lever import Asked, Lever

class Found(Lever):
    name = "found"
    asked = Asked.SHAPE, 99

    def propose(self, situation, base):
        return ()

    def describe(self, before, after):
        return ""
"""

_SCRIPT = """
import sys
import evenkeel.planning
from importlib import util
spec = util.find_spec("evenkeel.planning.levers")
spec.submodule_search_locations.append(sys.argv[1])
levers = util.module_from_spec(spec)
sys.modules[spec.name] = levers
spec.loader.exec_module(levers)
print([lever.name for lever in levers.asked_at(levers.Asked.SHAPE)][-1])
"""


def test_a_file_is_all_that_a_lever_needs(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text(_LEVER)
    done = subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("found\n", "")


def test_levers_are_asked_in_the_order_that_they_say() -> None:
    assert [lever.asked for lever in REGISTRY.values()] == sorted({lever.asked for lever in REGISTRY.values()})
    assert [lever.name for lever in asked_at(Asked.MEMBERS)] == ["drop_dead", "rejoin"]


def test_the_search_names_no_lever() -> None:
    for file in (_ROOT / "search").glob("*.py"):
        text = file.read_text()
        named = [x.name for x in REGISTRY.values() if f'"{x.name}"' in text or f"import {type(x).__name__}" in text]
        assert named == [], file.name
