import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from evenkeel.cli.main import app
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.findings import Summary
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.replay import replay
from evenkeel.offline.series_file import read_series
from tests.unit.offline.replaying import run


def series_csv(path: Path, *, slow_from: int, size: float, count: int = 200) -> Path:
    seconds = 2.0 * np.exp(0.005 * np.random.default_rng(1).standard_normal(count))
    seconds[slow_from:] *= size
    rows = "".join(f"{i},{taken:.6f},\n" for i, taken in enumerate(seconds))
    path.write_text("iteration,seconds,mark\n" + rows)
    return path


def test_a_series_says_that_the_job_is_slow_and_accuses_no_rank(tmp_path: Path) -> None:
    path = series_csv(tmp_path / "steps.csv", slow_from=120, size=1.1)
    result = CliRunner().invoke(app, ["-o", "json", "replay", str(path), "--format", "series"])
    verdict, summary = (json.loads(line) for line in result.stdout.splitlines())
    assert verdict["kind"] == "job_slow"
    assert verdict["culprits"] == []
    assert 118 <= verdict["first_iteration"] <= 121
    assert summary["summary"]["verdicts"] == {"job_slow": 1}
    assert summary["summary"]["still_slow"] == ["steps"]


def test_csv_and_parquet_hold_the_same_series(tmp_path: Path) -> None:
    path = series_csv(tmp_path / "steps.csv", slow_from=50, size=1.2, count=60)
    series = read_series(path)
    rows = series.iterations
    table = pa.table({"iteration": [one.iteration for one in rows], "seconds": [one.seconds for one in rows]})
    pq.write_table(table, tmp_path / "steps.parquet")
    assert read_series(tmp_path / "steps.parquet") == series


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("iteration,seconds\n", "no rows"),
        ("step,time\n1,2\n", "lacks the columns iteration, seconds; it has step, time"),
        ("iteration,seconds\n0,1.0\n1,fast\n", "line 3: seconds is 'fast', not a number"),
        ("iteration,seconds\n0,1.0\n1,-2\n", "line 3: seconds is -2.0; it must be above 0"),
        ("iteration,seconds\n0,1.0\n1\n", "line 3: 1 values for 2 columns"),
        ("iteration,seconds\n0\n1,1.0", "line 2: 1 values for 2 columns"),
        ("iteration,seconds\n3,1.0\n2,1.0\n3,1.0\n", "line 3: iteration 2 comes after 3"),
        ("iteration,seconds\n0.5,1.0\n", "line 2: iteration is 0.5, not a whole number"),
        ("iteration,seconds,tokens\n0,1.0,-5\n", "line 2: tokens is -5.0"),
        ("iteration,seconds,tokens\n0,1.0,5\n1,1.0,inf\n", "line 3: tokens is inf"),
        ("iteration,seconds\n\n0,1.0\n  \n1,\n", "line 5: seconds is empty"),
        ("iteration,seconds\n1,1.0\n1,1.0\n", "line 3: iteration 1 comes after 1"),
        ("iteration,seconds\n1e30,1.0\n", "line 2: iteration is 1e\\+30, not a whole number"),
        ("iteration;seconds\n0;1,5\n", "line 2: seconds is '1,5', not a number; write decimal points"),
        ("0,1.5\n1,1.5\n", "begins with 0, 1.5: its first line must name the columns"),
        ('{"iteration": 0, "seconds": 1.5}\n', "looks like JSON: save it as CSV"),
        ("iteration,seconds,seconds\n0,1.0,2.0\n", "more than one column seconds"),
        ("\n \n", "is empty"),
    ],
)
def test_a_bad_series_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(RecordingError, match=message):
        read_series(path)


def test_a_series_that_is_cut_off_within_a_line_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("iteration,seconds,mark\n0,1.0,\n1,1.5,\n2,1.")
    series = read_series(path)
    assert [one.seconds for one in series.iterations] == [1.0, 1.5]
    assert series.notes == ("the file ends in the middle of line 4: left out",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"iteration,seconds\n" + b"0,1.0\n" * 99)[:-12], "damaged, or cut off, as a gzip file"),
        ("iteration,seconds\n".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
        (b"PK\x03\x04" + bytes(60), "zip archive or a spreadsheet"),
        (b"iteration,seconds\n0,\xf6\n", "neither parquet nor UTF-8 text: invalid start byte 0xf6"),
    ],
)
def test_a_file_of_another_kind_says_which_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        read_series(path)


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff"iteration", "seconds"\r\n"0", "1.5"\r\n\r\n"2", "1.25"',
        "node,seconds,iteration\na,1.5e0,0\n , ,\nb, 1.25 ,2.0\n",
        "\niteration;seconds\n0;1.5\n2;1.25\n",
        "seconds\titeration\n1.5\t0\n1.25\t2\n",
    ],
)
def test_a_series_reads_the_same_however_it_is_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(text.encode())
    assert [(one.iteration, one.seconds) for one in read_series(path).iterations] == [(0, 1.5), (2, 1.25)]


def test_a_run_that_went_back_to_a_checkpoint_is_judged_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = series_csv(tmp_path / "steps.csv", slow_from=120, size=1.2)
    header, *rows = path.read_text().splitlines()
    again = [f"{int(row.split(',')[0]) - 30},{row.split(',')[1]}," for row in rows[100:]]
    path.write_text("\n".join([header, *rows[:100], *again]))
    found, summary = run(path, RecordingFormat.SERIES)
    assert [(one.kind, one.first_iteration) for one in found] == [("job_slow", 90)]
    assert summary.notes[0].startswith("the run went back to an earlier iteration 1 time, first from 99 to 70, ")
    assert "line 102" in summary.notes[0]


def test_rows_in_no_order_are_sorted_where_each_iteration_is_there_once(tmp_path: Path) -> None:
    path = series_csv(tmp_path / "steps.csv", slow_from=120, size=1.2)
    sorted_series = read_series(path)
    header, *rows = path.read_text().splitlines()
    shuffled = [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]
    path.write_text("\n".join([header, *shuffled]) + "\n")
    series = read_series(path)
    assert series.iterations == sorted_series.iterations
    assert series.notes == ("rows are in no order: sorted by iteration",)
    path.write_text("\n".join([header, *shuffled, "3,-1.0,"]) + "\n")
    with pytest.raises(RecordingError, match="line 202: seconds is -1"):
        read_series(path)


@pytest.mark.parametrize("nothing", ["", "null", "None", "N/A", "nan"])
def test_a_workload_that_is_not_known_may_be_written_in_many_ways(tmp_path: Path, nothing: str) -> None:
    path = tmp_path / "steps.csv"
    rows = "".join(f"{i},1.0,{nothing if i == 2 else 100}\n" for i in range(6))
    path.write_text("iteration,seconds,tokens\n" + rows)
    assert [one.iteration for one in read_series(path).iterations] == [0, 1, 3, 4, 5]


def test_a_file_of_several_runs_is_refused_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("run,iteration,seconds\n7,0,1.0\n7,1,1.0\n8,0,1.0\n")
    with pytest.raises(RecordingError, match=r"2 values in the column run \(7, 8\): keep the rows of one"):
        read_series(path)


def test_marks_are_planned_pauses_and_empty_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("iteration,seconds,mark\n0,1,\n1,1,evaluation\n2,1,0\n3,1,1\n4,1,false\n5,1,n/a\n")
    assert [one.planned for one in read_series(path).iterations] == [False, True, False, True, False, False]


def with_workload(path: Path, *, holes: Callable[[int], bool]) -> Path:
    """600 iterations whose seconds follow their tokens, a tenth slower from 300 on; some cells of tokens are empty."""
    random = np.random.default_rng(4)
    tokens = random.integers(20_000, 60_000, 600)
    seconds = 2e-5 * tokens * np.exp(random.normal(0.0, 0.01, 600))
    seconds[300:] *= 1.1
    rows = (f"{row},{seconds[row]},{'' if holes(row) else tokens[row]}" for row in range(600))
    path.write_text("iteration,seconds,tokens\n" + "\n".join(rows) + "\n")
    return path


def test_iterations_whose_workload_is_not_known_are_left_out_and_hide_nothing(tmp_path: Path) -> None:
    path = with_workload(tmp_path / "steps.csv", holes=lambda row: row % 7 == 0)
    summary = Summary(file=str(path), format="series")
    (verdict,) = replay(path, RecordingFormat.SERIES, summary, iterations_per_false_alarm=100_000)
    assert 298 <= verdict.first_iteration <= 303
    assert verdict.throughput == pytest.approx(1 / 1.1, abs=0.02)
    assert summary.notes == ["86 iterations whose workload is not known are left out"]


def test_a_workload_that_most_iterations_lack_is_not_used(tmp_path: Path) -> None:
    path = with_workload(tmp_path / "steps.csv", holes=lambda row: row % 3 != 0)
    series = read_series(path)
    assert len(series.iterations) == 600
    assert all(one.tokens is None for one in series.iterations)
    assert series.notes == ("tokens is empty in 400 of 600 iterations: it is not used",)


def test_a_column_of_seconds_that_is_a_clock_is_refused(tmp_path: Path) -> None:
    lengths = np.exp(0.01 * np.random.default_rng(0).standard_normal(60))
    path = tmp_path / "clock.csv"
    for seconds, is_clock in ((np.cumsum(lengths), True), (lengths, False)):
        path.write_text("iteration,seconds\n" + "".join(f"{i},{each}\n" for i, each in enumerate(seconds)))
        if is_clock:
            with pytest.raises(RecordingError, match=r"only ever rises, from .* as a clock does"):
                read_series(path)
        else:
            assert len(read_series(path).iterations) == 60
