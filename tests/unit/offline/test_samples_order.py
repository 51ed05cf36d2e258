"""Recorded topics whose messages are not in the order in which they were sent."""

from pathlib import Path

import numpy as np
import pytest

from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.samples.file import BATCH_LINE, OBSERVATION_LINE
from tests.unit.offline.replaying import run
from tests.unit.offline.test_replay import frames, records, samples_file


def shuffled(messages: list) -> list:
    return [messages[place] for place in np.random.default_rng(5).permutation(len(messages))]


def rank_after_rank(messages: list) -> list:
    return sorted(messages, key=lambda one: one.rank[0])


@pytest.mark.parametrize("disorder", [shuffled, rank_after_rank])
def test_records_in_any_order_give_the_verdicts_of_those_in_order(tmp_path: Path, disorder) -> None:
    sent = records(frames(slow_rank=5, slow_from=30))
    expected, _ = run(samples_file(tmp_path / "a", BATCH_LINE, sent), RecordingFormat.SAMPLES)
    found, summary = run(samples_file(tmp_path / "b", BATCH_LINE, disorder(sent)), RecordingFormat.SAMPLES)
    assert expected
    assert [(one.kind, one.culprits, one.decided_iteration) for one in found] == [
        (one.kind, one.culprits, one.decided_iteration) for one in expected
    ]
    assert summary.skipped.count <= 7  # the first iteration has no members yet
    assert summary.notes[0].startswith("messages were not in the order in which they were sent: all 480 sorted by time")


def test_observations_in_any_order_give_the_verdicts_of_those_in_order(tmp_path: Path) -> None:
    observed = frames(slow_rank=5, slow_from=30)
    expected, _ = run(samples_file(tmp_path / "a", OBSERVATION_LINE, observed), RecordingFormat.SAMPLES)
    path = samples_file(tmp_path / "b", OBSERVATION_LINE, shuffled(observed))
    found, summary = run(path, RecordingFormat.SAMPLES)
    assert found == expected != []
    assert summary.num_iterations == 60
    assert summary.notes == ["messages were not in the order in which they were sent: all 60 sorted by number"]


@pytest.mark.parametrize("times", [1, 2])
def test_messages_in_order_are_left_as_they_are_also_where_they_repeat(tmp_path: Path, times: int) -> None:
    observed = frames(slow_rank=5, slow_from=30) * times
    _, of_observations = run(samples_file(tmp_path / "a", OBSERVATION_LINE, observed), RecordingFormat.SAMPLES)
    _, of_records = run(samples_file(tmp_path / "b", BATCH_LINE, records(observed)), RecordingFormat.SAMPLES)
    assert of_observations.notes == of_records.notes == []
    assert of_observations.num_iterations == of_records.num_iterations == 60
