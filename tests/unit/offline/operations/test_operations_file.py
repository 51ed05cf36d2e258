"""Recordings of operations as strangers make them: torn ends, clocks of their own, repeated rows, other units."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evenkeel.attribution import Operations, analyze
from evenkeel.cli.errors import CommandError
from evenkeel.cli.main import app
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.operations.file import read_operations
from tests.unit.attribution.synthetic import pipeline, replayed_with

Table = dict[str, np.ndarray]


def recording(num_steps: int = 4) -> Table:
    """Worker 4, stage 1 of the second of three replicas, is half as slow again; replicas exchange gradients."""
    healthy = pipeline(num_steps=num_steps, num_dp=3, num_stages=3, num_micro_batches=4, seed=3)
    del healthy["mb_id"]
    workers = [(step, dp, stage) for step in range(num_steps) for dp in range(3) for stage in range(3)]
    exchange = [(*place, "grads-reduce-scatter", 5.0, 0.02) for place in workers]
    columns = zip(*exchange, strict=True)
    healthy = {
        name: np.concatenate([healthy[name], np.array(column)]) for name, column in zip(healthy, columns, strict=True)
    }
    operations = Operations.from_columns(healthy)
    victim = (operations.dp_rank == 1) & (operations.stage == 1) & np.char.endswith(operations.optype, "compute")
    slow = replayed_with(operations, np.where(victim, 1.5, 1.0))
    return {
        "step": slow.step,
        "dp_rank": slow.dp_rank,
        "stage": slow.stage,
        "optype": slow.optype,
        "start_ts": slow.start_seconds + 10.0 * slow.step,
        "duration": slow.duration_seconds,
    }


def write(path: Path, table: Table) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(table)
        rows.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    return path


def without(table: Table, gone: np.ndarray) -> Table:
    return {name: column[~gone] for name, column in table.items()}


def late(table: Table, seconds: float) -> np.ndarray:
    return (table["step"] == table["step"].max()) & (table["start_ts"] > table["start_ts"].max() - seconds)


@pytest.mark.parametrize("seconds", [0.005, 0.3, 0.6, 0.9])
def test_a_recording_that_stops_in_the_middle_of_a_step_gives_the_answer_of_the_steps_before(
    tmp_path: Path, seconds: float
) -> None:
    table = recording()
    whole = read_operations(write(tmp_path / "a.csv", without(table, table["step"] == 3)))
    torn = read_operations(write(tmp_path / "b.csv", without(table, late(table, seconds))))
    assert torn.notes == ("step 3 left out: operations are missing that other steps have",)
    assert analyze(torn.operations) == analyze(whole.operations)
    assert analyze(torn.operations).ill_ranks == (4,)


def test_a_whole_step_with_fewer_micro_batches_is_kept(tmp_path: Path) -> None:
    few = pipeline(num_steps=1, num_micro_batches=2)
    many = pipeline(num_steps=3, num_micro_batches=5)
    many["step"] = many["step"] + 1
    path = write(tmp_path / "ops.csv", {name: np.concatenate([few[name], many[name]]) for name in few})
    read = read_operations(path)
    assert read.notes == ()
    assert set(read.operations.step.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("breaks_off", [False, True])
def test_of_steps_that_were_run_again_the_last_run_is_taken(tmp_path: Path, breaks_off: bool) -> None:
    table = recording(num_steps=6)
    again = table["step"] >= 4
    table["start_ts"] = table["start_ts"] + 30.0 * again
    first = (table["step"] == 2) | (table["step"] == 3)
    table["step"] = np.where(again, table["step"] - 2, table["step"])
    once = read_operations(write(tmp_path / "a.csv", without(table, first)))
    if breaks_off:
        table = without(table, first & (table["start_ts"] > table["start_ts"][first].max() - 0.5))
    twice = read_operations(write(tmp_path / "b.csv", table))
    assert twice.notes == ("2 steps, the first step 2: run again, as after a restart; the last run of each is taken",)
    assert analyze(twice.operations) == analyze(once.operations)
    assert analyze(twice.operations).ill_ranks == (4,)


def test_a_step_with_a_long_pause_is_one_step(tmp_path: Path) -> None:
    table = recording()
    # Half of a second run is none.
    paused = (table["step"] == 2) & (table["start_ts"] > 20.4)
    table["start_ts"] = table["start_ts"] + 20.0 * (paused | (table["step"] > 2))
    assert read_operations(write(tmp_path / "a.csv", table)).operations.step.tolist().count(2) == int(
        (table["step"] == 2).sum()
    )


def test_a_clock_that_jumps_changes_no_answer(tmp_path: Path) -> None:
    table = recording(num_steps=6)
    straight = read_operations(write(tmp_path / "a.csv", table))
    jumped = (table["step"] >= 3) & (table["dp_rank"] == 0) & (table["stage"] == 1)
    table["start_ts"] = table["start_ts"] + 2.0 * jumped
    moved = read_operations(write(tmp_path / "b.csv", table))
    expected, found = analyze(straight.operations), analyze(moved.operations)
    assert moved.notes[0].startswith("clocks of workers differed by up to 2 s")
    assert found.slowdown == pytest.approx(expected.slowdown, abs=0.002)
    assert (found.ill_ranks, found.slow_links) == (expected.ill_ranks, expected.slow_links) == ((4,), ())


@pytest.mark.parametrize("apart", [0.02, 3.0])
def test_clocks_that_differ_by_a_constant_change_no_answer(tmp_path: Path, apart: float) -> None:
    table = recording()
    straight = read_operations(write(tmp_path / "a.csv", table))
    assert straight.notes == ()
    offsets = apart * np.random.default_rng(1).uniform(-0.5, 0.5, (3, 3))
    table["start_ts"] = table["start_ts"] + offsets[table["dp_rank"], table["stage"]]
    moved = read_operations(write(tmp_path / "b.csv", table))
    expected, found = analyze(straight.operations), analyze(moved.operations)
    assert moved.notes[0].startswith("clocks of workers differed by up to ")
    assert float(moved.notes[0].split()[7]) == pytest.approx(np.ptp(offsets), rel=0.2)
    assert found.slowdown == pytest.approx(expected.slowdown, abs=0.002)
    assert found.launch_slowdown == pytest.approx(expected.launch_slowdown, abs=0.01)
    assert (found.causes, found.ill_ranks) == (expected.causes, expected.ill_ranks) == (("slow_workers",), (4,))


def repeated(table: Table) -> Table:
    return {name: np.concatenate([column, column[5:9]]) for name, column in table.items()}


def numbered_anew(table: Table) -> Table:
    twice = repeated(table)
    return {**twice, "seq_id": np.arange(len(twice["step"]))}


def in_milliseconds(table: Table) -> Table:
    return {**table, "duration": 1000 * table["duration"]}


def begun_in_milliseconds(table: Table) -> Table:
    return {**table, "start_ts": 1000 * table["start_ts"]}


def staged_from_one(table: Table) -> Table:
    return {**table, "stage": table["stage"] + 1}


def with_negative(table: Table) -> Table:
    table["duration"][7] = -1.0
    return table


def with_unknown(table: Table) -> Table:
    return {**table, "optype": np.where(np.arange(len(table["optype"])) == 4, "adam", table["optype"])}


def without_receives(table: Table) -> Table:
    return without(table, np.char.endswith(table["optype"], "forward-recv"))


@pytest.mark.parametrize("command", ["analyze", "replay"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (numbered_anew, r"ops.csv line \d+ repeats line 7, but for its number: keep each operation once"),
        (in_milliseconds, "are start_ts and duration both in seconds"),
        (begun_in_milliseconds, "last less than 1% of the step; are start_ts and duration both in seconds"),
        (staged_from_one, r"found \[1, 2, 3\]: subtract 1 if none is missing"),
        (with_negative, r"ops.csv line 9: duration is -1.0; it must not be negative"),
        (with_unknown, r"ops.csv line 6: unknown optype: adam; known are backward-compute, "),
    ],
)
def test_a_recording_that_cannot_be_right_is_refused_with_its_place(
    tmp_path: Path, command: str, change: Callable[[Table], Table], message: str
) -> None:
    path = write(tmp_path / "ops.csv", change(recording()))
    with pytest.raises(RecordingError, match=message):
        read_operations(path)
    result = CliRunner().invoke(app, [command, str(path), "--format", "ops"])
    assert isinstance(result.exception, CommandError)


def test_rows_that_are_there_twice_are_taken_once(tmp_path: Path) -> None:
    expected = analyze(read_operations(write(tmp_path / "a.csv", recording())).operations)
    read = read_operations(write(tmp_path / "b.csv", repeated(recording())))
    assert len(read.notes) == 1
    assert read.notes[0].startswith("4 rows repeat others, the first ")
    assert analyze(read.operations) == expected


def test_a_rank_that_several_workers_have_is_not_used(tmp_path: Path) -> None:
    table = recording()
    expected = analyze(read_operations(write(tmp_path / "a.csv", table)).operations)
    read = read_operations(write(tmp_path / "b.csv", {**table, "rank": table["stage"]}))
    assert read.notes == (
        "rank 0 stands for 3 workers: the column is not used, workers are numbered by dp_rank and stage",
    )
    assert analyze(read.operations) == expected


def test_numbers_of_replicas_may_be_as_large_as_they_like(tmp_path: Path) -> None:
    table = recording()
    expected = analyze(read_operations(write(tmp_path / "a.csv", table)).operations)
    table["dp_rank"] = np.array([7, 2_000, 10**12])[table["dp_rank"]]
    found = analyze(read_operations(write(tmp_path / "b.csv", table)).operations)
    assert found.slowdown == expected.slowdown
    assert len(found.ill_ranks) == len(expected.ill_ranks) == 1


def test_the_end_of_a_file_that_is_cut_off_within_a_line_is_left_out(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.csv", recording())
    content = whole.read_bytes()
    rest = content[: content.rindex(b",")]  # before the last line's last value
    (tmp_path / "b.csv").write_bytes(rest)
    read = read_operations(tmp_path / "b.csv")
    last = content.count(b"\n")
    assert read.notes[0] == f"the file ends in the middle of line {last}: left out"
    assert len(read.operations) >= len(read_operations(whole).operations) * 3 // 4


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_short_line_that_is_whole_is_an_error_also_at_the_end(tmp_path: Path, ending: bytes) -> None:
    content = write(tmp_path / "a.csv", recording()).read_bytes()
    (tmp_path / "b.csv").write_bytes(content[: content.rindex(b",")] + ending)
    with pytest.raises(RecordingError, match="5 values for 6 columns"):
        read_operations(tmp_path / "b.csv")


def test_a_step_in_which_a_worker_says_nothing_is_left_out(tmp_path: Path) -> None:
    table = recording()
    silent = (table["step"] == 2) & (table["dp_rank"] == 1) & (table["stage"] == 2)
    read = read_operations(write(tmp_path / "ops.csv", without(table, silent)))
    assert read.notes == ("step 2 left out: operations are missing that other steps have",)
    assert analyze(read.operations).ill_ranks == (4,)


def test_steps_that_lost_an_operation_are_left_out_of_the_analysis_and_told(tmp_path: Path) -> None:
    table = recording()
    lost = np.flatnonzero((table["step"] == 1) & (table["optype"] == "forward-recv"))[3]
    path = write(tmp_path / "ops.csv", without(table, np.arange(len(table["step"])) == lost))
    result = CliRunner().invoke(app, ["-o", "json", "analyze", str(path)])
    found = json.loads(result.stdout)
    assert [step["step"] for step in found["per_step"]] == [0, 2, 3]
    assert found["ill_ranks"] == [4]
    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("1 of 4 steps left out, operations are missing: step 1: ")


@pytest.mark.parametrize("began", [0.0, 1.7e9])
@pytest.mark.parametrize(("unit", "size"), [("milliseconds", 1e-3), ("microseconds", 1e-6), ("nanoseconds", 1e-9)])
def test_times_in_another_unit_are_read_as_what_they_are(tmp_path: Path, unit: str, size: float, began: float) -> None:
    table = recording()
    expected = analyze(read_operations(write(tmp_path / "a.csv", table)).operations)
    other = {**table, "start_ts": (table["start_ts"] + began) / size, "duration": table["duration"] / size}
    recorded = read_operations(write(tmp_path / "b.csv", other))
    found = analyze(recorded.operations)
    assert recorded.notes[0].startswith(f"start_ts and duration are taken for {unit}: a step usually takes ")
    assert found.observed_seconds == pytest.approx(expected.observed_seconds, rel=1e-4)
    assert found.slowdown == pytest.approx(expected.slowdown, rel=1e-4)
    assert found.ill_ranks == expected.ill_ranks == (4,)


@pytest.mark.parametrize("nothing", ["", "nan"])
def test_an_operation_without_a_micro_batch_may_leave_it_empty(tmp_path: Path, nothing: str) -> None:
    table = pipeline(num_steps=3)
    expected = analyze(read_operations(write(tmp_path / "a.csv", table)).operations)
    table["mb_id"] = np.where(table["mb_id"] < 0, nothing, table["mb_id"].astype(np.str_))
    assert analyze(read_operations(write(tmp_path / "b.csv", table)).operations) == expected


def test_rows_of_several_jobs_are_refused_by_name(tmp_path: Path) -> None:
    table = recording()
    table["job_id"] = np.where(table["step"] < 2, "first", "second")
    with pytest.raises(RecordingError, match=r"2 values in the column job_id \(first, second\): keep the rows of one"):
        read_operations(write(tmp_path / "a.csv", table))
    table["job_id"] = np.full(len(table["step"]), "first")
    assert read_operations(write(tmp_path / "b.csv", table)).notes == ()


def test_a_transfer_of_which_one_end_is_missing_is_named_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "ops.csv", without_receives(recording()))
    result = CliRunner().invoke(app, ["analyze", str(path)])
    assert isinstance(result.exception, CommandError)
    assert "ops.csv: step 0: dp_rank 0 has 4 forward-send on stage 0 but 0 forward-recv" in str(result.exception)
