"""The authors' own answers for one of their production jobs; see tests/data/straggler_trace/README.md."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from evenkeel.attribution import Attribution, Operations, analyze
from tests.unit.attribution.synthetic import replayed_with

DATA = Path(__file__).parents[2] / "data" / "straggler_trace"
WITHIN = 1e-5


@pytest.fixture(scope="module")
def operations() -> Operations:
    table = pq.read_table(DATA / "trace-ST.parquet")
    return Operations.from_columns({name: np.asarray(table[name].to_pylist()) for name in table.column_names})


@pytest.fixture(scope="module")
def found(operations: Operations) -> Attribution:
    return analyze(operations)


def published(name: str) -> dict:
    return json.loads((DATA / name).read_text())


def test_the_slowdown_is_the_authors(found: Attribution) -> None:
    theirs = published("result-ST.json")
    assert found.slowdown == pytest.approx(theirs["blocking_slowdown"], rel=WITHIN)
    assert found.launch_slowdown == pytest.approx(theirs["launch_slowdown"], rel=WITHIN)
    assert found.waste == pytest.approx(1 - 1 / theirs["blocking_slowdown"], rel=WITHIN)


def test_the_shares_of_slow_workers_and_of_the_last_stage_are_the_authors(found: Attribution) -> None:
    assert found.last_stage_share == pytest.approx(published("ms-ST.json")["Ms"], rel=WITHIN)
    assert found.worker_share == pytest.approx(published("mw-ST.json")["Mw"], rel=1e-3)


def test_every_steps_times_are_the_authors(found: Attribution) -> None:
    theirs = published("result-ST.json")
    assert len(found.per_step) == len(theirs["step_t_base"]) == 32
    for step in found.per_step:
        assert step.observed_seconds == pytest.approx(theirs["step_t_base"][str(step.step)], rel=WITHIN)
        assert step.replayed_seconds == pytest.approx(theirs["step_t_nodelay"][str(step.step)], rel=WITHIN)
        assert step.ideal_seconds == pytest.approx(theirs["step_t_noblk"][str(step.step)], rel=WITHIN)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("by_operation", "optype"), ("by_stage", "stage"), ("by_dp_rank", "dp_rank")]
)
def test_each_suspects_slowdown_is_the_authors(found: Attribution, ours: str, theirs: str) -> None:
    slowdowns = {suspect.name: suspect.slowdown for suspect in getattr(found, ours)}
    assert slowdowns == pytest.approx(published("result-ST.json")[f"blocking_decompose_by_{theirs}"], rel=WITHIN)


def test_the_last_stage_is_too_heavy_and_no_rank_is_ill(found: Attribution) -> None:
    assert found.causes == ("last_stage",)
    assert found.ill_ranks == ()


def test_a_worker_made_slow_in_every_step_is_accused(operations: Operations) -> None:
    victim = (operations.dp_rank == 1) & (operations.stage == 1)
    computes = np.char.endswith(operations.optype, "compute")
    slow = replayed_with(operations, np.where(victim & computes, 3.0, 1.0))
    found = analyze(slow)
    assert found.ill_ranks == (int(operations.rank[victim][0]),)
    assert "slow_workers" in found.causes


def test_its_gaps_are_not_those_of_transfers_in_turn(found: Attribution) -> None:
    assert not found.in_turn
