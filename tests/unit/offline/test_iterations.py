import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from evenkeel.cli.main import app
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.iterations.clocks import ClockChoice, clocks_of
from evenkeel.offline.iterations.file import read_iterations
from tests.unit.offline.replaying import run

HEADER = "iteration,rank,compute_seconds,wall_seconds,wait_seconds,cpu_seconds,queue_seconds,loop_wall_seconds"


def recording(*, sleeps_from: int, sleeps_seconds: float = 0.03, count: int = 300) -> dict[str, np.ndarray]:
    """Two ranks on a busy machine, of which rank 7 sleeps from some iteration on."""
    rng = np.random.default_rng(1)
    shape = count, 2
    cpu, queue = 0.02 * np.exp(0.02 * rng.standard_normal(shape)), 0.004 * rng.gamma(2.0, 1.0, shape)
    asleep = np.zeros(shape)
    asleep[sleeps_from:, 1] = sleeps_seconds
    compute = cpu + queue + asleep
    wait = compute.max(axis=1, keepdims=True) - compute
    iterations, ranks = np.meshgrid(np.arange(count), [3, 7], indexing="ij")
    columns = {"iteration": iterations, "rank": ranks, "compute_seconds": compute, "wall_seconds": compute + wait}
    columns |= {"wait_seconds": wait, "cpu_seconds": cpu, "queue_seconds": queue, "loop_wall_seconds": compute + wait}
    return {name: values.reshape(-1) for name, values in columns.items()}


def write_csv(path: Path, columns: dict[str, np.ndarray], *, without: tuple[str, ...] = ()) -> Path:
    names = [name for name in columns if name not in without]
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    text = ",".join(names) + "\n" + "".join(",".join(f"{value:.9g}" for value in row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def replayed(path: Path, *options: str) -> tuple[list[dict], dict]:
    result = CliRunner().invoke(app, ["-o", "json", "replay", str(path), "--format", "iterations", *options])
    assert result.exit_code == 0, result.output
    *verdicts, last = (json.loads(line) for line in result.stdout.splitlines())
    return verdicts, last["summary"]


def test_a_rank_that_sleeps_is_told_with_the_clock_that_says_so(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "job.csv.gz", recording(sleeps_from=200))
    (verdict,), summary = replayed(path)
    assert verdict["kind"] == "compute_slow"
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [7]
    assert 200 <= verdict["decided_iteration"] < 220
    assert verdict["throughput"] == pytest.approx(0.4, abs=0.05)
    assert verdict["evidence"][0]["name"].startswith("blocked")
    assert (summary["num_iterations"], summary["num_rank_samples"], summary["still_slow"]) == (300, 600, ["job/7"])


def test_what_a_recording_counts_twice_hides_no_sleep(tmp_path: Path) -> None:
    columns, rng = recording(sleeps_from=200, sleeps_seconds=0.006), np.random.default_rng(2)
    # Within a wait for the other, which is over, each was ready for a while and got no core.
    late = 0.03 * rng.random(600) * (rng.random(600) < 0.12)
    for name in ("queue_seconds", "wait_seconds", "loop_wall_seconds"):
        columns[name] = columns[name] + late
    (verdict,), _ = replayed(write_csv(tmp_path / "job.csv", columns))
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [7]
    assert 200 <= verdict["decided_iteration"] < 220
    assert verdict["evidence"][0]["name"].startswith("blocked")


@pytest.mark.parametrize("at", [60, 85])
def test_a_pause_of_one_rank_in_one_iteration_hides_no_other_and_ends_no_verdict(tmp_path: Path, at: int) -> None:
    iterations, ranks = np.meshgrid(np.arange(120), np.arange(4), indexing="ij")
    seconds = 0.1 * np.exp(0.01 * np.random.default_rng(1).standard_normal(ranks.shape))
    seconds[70:, 2] *= 1.5
    seconds[at, 0] = 3600.0
    columns = {"iteration": iterations, "rank": ranks, "compute_seconds": seconds}
    (verdict,), summary = replayed(
        write_csv(tmp_path / "job.csv", {name: values.reshape(-1) for name, values in columns.items()})
    )
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [2]
    assert verdict["throughput"] == pytest.approx(0.667, abs=0.02)
    assert summary["still_slow"] == ["job/2"]


@pytest.mark.parametrize(("num_ranks", "odd"), [(1, 1.5), (2, 3.0)])
def test_an_odd_first_iteration_is_forgotten(tmp_path: Path, num_ranks: int, odd: float) -> None:
    rng = np.random.default_rng(4)
    iterations, ranks = np.meshgrid(np.arange(200), np.arange(num_ranks), indexing="ij")
    tokens = np.broadcast_to(rng.integers(500, 4000, (200, 1)), ranks.shape)
    seconds = (0.02 + 5e-5 * tokens) * np.exp(0.01 * rng.standard_normal(ranks.shape))
    seconds[2, 0] *= odd
    seconds[120:, 0] *= 1.5
    columns = {"iteration": iterations, "rank": ranks, "tokens": tokens, "compute_seconds": seconds}
    verdicts, _ = replayed(
        write_csv(tmp_path / "job.csv", {name: values.reshape(-1) for name, values in columns.items()})
    )
    assert [one["culprits"][0]["rank"] for one in verdicts] == [0]
    assert 120 < verdicts[0]["decided_iteration"] < 140


def test_by_the_wall_alone_it_is_told_of_its_compute(tmp_path: Path) -> None:
    columns = recording(sleeps_from=200)
    chosen, _ = replayed(write_csv(tmp_path / "job.csv", columns), "--clocks", "wall")
    assert chosen[0]["evidence"][0]["name"].startswith("work")
    poor = write_csv(tmp_path / "poor.csv", columns, without=("cpu_seconds", "queue_seconds"))
    verdicts, summary = replayed(poor)
    assert [one["decided_iteration"] for one in verdicts] == [one["decided_iteration"] for one in chosen]
    assert "judged by the wall clock alone" in summary["notes"][0]


def test_csv_parquet_and_any_order_of_rows_are_the_same(tmp_path: Path) -> None:
    columns = recording(sleeps_from=200)
    straight = read_iterations(write_csv(tmp_path / "job.csv", columns))
    order = np.random.default_rng(2).permutation(len(columns["rank"]))
    mixed = {name: values[order] for name, values in columns.items()}
    pq.write_table(pa.table(mixed), tmp_path / "job.parquet")
    for other in (write_csv(tmp_path / "mixed.csv.gz", mixed), tmp_path / "job.parquet"):
        found = read_iterations(other)
        assert found.ranks.tolist() == [3, 7]
        for name, values in straight.columns.items():
            np.testing.assert_allclose(found.columns[name], values, rtol=1e-8)


def test_cells_that_were_not_read_are_no_clock(tmp_path: Path) -> None:
    columns = recording(sleeps_from=300)
    columns["queue_seconds"][:] = np.nan
    columns["cpu_seconds"][:10] = np.nan
    clocks = clocks_of(read_iterations(write_csv(tmp_path / "job.csv", columns)), ClockChoice.ALL)
    assert np.isnan(clocks.work[:5]).all()
    assert (clocks.blocked, clocks.waiting) == (None, None)
    assert "queue_seconds" in clocks.notes[0]


@pytest.mark.parametrize("held", [0.0, 0.7])
def test_a_rank_that_waits_for_a_core_is_slow_as_far_as_a_quota_holds_it(tmp_path: Path, held: float) -> None:
    columns = recording(sleeps_from=300)
    waits = np.where((columns["rank"] == 7) & (columns["iteration"] >= 150), 0.03, 0.0)
    for name in ("compute_seconds", "queue_seconds", "loop_wall_seconds", "wall_seconds"):
        columns[name] = columns[name] + waits
    totals = np.cumsum((held * waits).reshape(300, 2), axis=0)
    columns["throttled_seconds"] = np.repeat(totals[::15], 15, axis=0).reshape(-1)
    findings, _ = replayed(write_csv(tmp_path / "job.csv", columns))
    assert [finding["culprits"][0]["rank"] for finding in findings[:1]] == ([7] if held else [])
    assert all("waiting for a core" in finding["evidence"][0]["name"] for finding in findings[:1])
    without, _ = replayed(write_csv(tmp_path / "other.csv", columns, without=("throttled_seconds",)))
    assert without[0]["culprits"][0]["rank"] == 7


def test_marked_iterations_are_not_judged(tmp_path: Path) -> None:
    columns = recording(sleeps_from=250)
    columns["mark"] = (columns["iteration"] >= 250).astype(np.float64)
    verdicts, summary = replayed(write_csv(tmp_path / "job.csv", columns))
    assert (verdicts, summary["num_planned"]) == ([], 50)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("iteration,rank\n0,0\n", "lacks the column compute_seconds"),
        ("iteration,rank,compute_seconds\n", "no rows"),
        ("iteration,rank,compute_seconds\n0,0,1\n0,0,1\n", "line 3: iteration 0 of rank 0 is there already"),
        ("iteration,rank,compute_seconds\n0,0.5,1\n", "line 2: rank is 0.5, not a whole number"),
        ("iteration,rank,compute_seconds\n-1,0,1\n", "line 2: iteration is -1, not a whole number"),
        ("iteration,rank,compute_seconds\n0,0,-1\n", "line 2: compute_seconds is -1; it must be 0 or more"),
        ("iteration,rank,compute_seconds\n0,0,fast\n", "line 2: compute_seconds is 'fast', not a number"),
        ("iteration,rank,compute_seconds\n0,0,inf\n", "line 2: compute_seconds is inf; it must be 0 or more"),
        ("iteration,rank,compute_seconds\n0,0,\n", "has no compute_seconds above 0"),
        ("iteration,rank,compute_seconds\n0,0,0\n", "compute_seconds is 0 in every row"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "job.csv"
    path.write_text(rows)
    with pytest.raises(RecordingError, match=re.escape(message)) as caught:
        run(path, RecordingFormat.ITERATIONS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "lacks the columns iteration, rank, compute_seconds; it has none"),
        (
            {"iteration": [0, 1], "rank": [0, 0], "compute_seconds": [[1.0], [1.0]]},
            "compute_seconds is [1.0], not a number",
        ),
    ],
)
def test_a_parquet_file_without_columns_or_with_lists_in_its_cells_is_refused(
    tmp_path: Path, columns: dict[str, list], message: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "job.parquet")
    with pytest.raises(RecordingError, match=re.escape(message)):
        read_iterations(tmp_path / "job.parquet")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_iterations(tmp_path / "none.csv")
