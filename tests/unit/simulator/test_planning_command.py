import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks.planning.__main__ import PARTS, command_of, run_part


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("quick", [True, False])
def test_every_part_is_a_module_that_knows_the_options_it_is_given(name, quick, tmp_path):
    command = command_of(PARTS[name], tmp_path / "rows.json", quick=quick, data=Path("data"))
    assert command is not None
    spec = importlib.util.find_spec(command[2])
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    options = [word for word in command[3:] if word.startswith("--")]
    assert "--json" in options
    assert [option for option in options if f'"{option}"' not in source] == []


def test_parts_that_need_data_are_left_out_without_it(tmp_path):
    left_out = [name for name in PARTS if command_of(PARTS[name], tmp_path, quick=True, data=None) is None]
    assert left_out == ["sequence_mix"]


def test_tables_are_kept_when_the_part_came_to_its_end_and_not_otherwise(tmp_path, capfd):
    kept, lost = tmp_path / "kept.md", tmp_path / "lost.md"
    assert run_part([sys.executable, "-c", "print('| a |')"], kept)
    assert not run_part([sys.executable, "-c", "print('| b |'); raise SystemExit(3)"], lost)
    assert kept.read_text() == "| a |\n"
    assert not lost.exists()
    assert "| b |" in capfd.readouterr().out
