import pytest

from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.faults import Fault

picture = pytest.importorskip("evenkeel.simulator.fleet.picture")


def test_runs_are_drawn_into_a_file(small, tmp_path):
    faults = [Fault(at_seconds=3600.0, devices=(1,), duration_seconds=3600.0)]
    results = [small.run(STRATEGIES[name], faults) for name in ("Evenkeel", "drop replica")]
    picture.draw_runs(tmp_path / "runs.svg", "two systems", results)
    drawn = (tmp_path / "runs.svg").read_text()
    assert drawn.startswith("<?xml")
    assert drawn.count("<path") > 10


@pytest.mark.parametrize(("name", "count"), [("runs.nonsense", 1), ("runs.png", 0)])
def test_what_cannot_be_drawn_is_refused(small, tmp_path, name, count):
    with pytest.raises(ValueError, match=r".+"):
        picture.draw_runs(tmp_path / name, "runs", [small.run(STRATEGIES["no mitigation"], [])] * count)
