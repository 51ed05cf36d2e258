"""Where the demo's results go is asked before anything is started."""

from pathlib import Path

import pytest

from evenkeel.demo.main import EXIT_NOT_HELD, _clear, _write, main
from evenkeel.demo.report.expectations import expectations_of
from evenkeel.demo.report.summary import summarise
from tests.unit.demo.synthetic_run import whole_run


@pytest.mark.parametrize("blocked", ["out", "out/report.html"])
def test_an_out_folder_that_cannot_be_used_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], blocked: str
) -> None:
    path = tmp_path / blocked
    if blocked == "out":
        path.write_text("a file in the way")
    else:
        path.mkdir(parents=True)
    assert main(["--out", str(tmp_path / "out")]) == EXIT_NOT_HELD
    said = capsys.readouterr()
    assert said.err.startswith(f"the demo could not be run: cannot write to {tmp_path / 'out'}: ")
    assert said.err.count("\n") == 1
    assert "starting" not in said.out


def test_results_of_an_earlier_run_are_gone_before_a_new_one_and_come_together(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    _clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    seen = whole_run().finish()
    _write(tmp_path, seen, summarise(seen), expectations_of(seen), seed=1, seconds=1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.json"]
