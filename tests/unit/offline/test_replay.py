import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evenkeel.attribution import Operations
from evenkeel.cli.errors import CommandError
from evenkeel.cli.main import app
from evenkeel.contracts.columns import HAS_FLOPS, HAS_INPUT
from evenkeel.contracts.frames import frames_of, members_of, read_frames, write_frames
from evenkeel.contracts.mac import JobKey, signed
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.operations.file import read_operations
from evenkeel.offline.samples.file import BATCH_LINE, OBSERVATION_LINE, read_messages, write_messages
from evenkeel.services.detector.domain.findings.verdict import VerdictKind
from evenkeel.simulator.live.rank_batches import batch_of
from evenkeel.telemetry.v2 import batch_pb2, frames_pb2
from tests.unit.attribution.synthetic import pipeline, replayed_with
from tests.unit.offline.replaying import run

TRACE = Path(__file__).parents[2] / "data" / "straggler_trace" / "trace-ST.parquet"


def frames(*, slow_rank: int, slow_from: int, num_ranks: int = 8, count: int = 60) -> list[frames_pb2.Observation]:
    random = np.random.default_rng(2)
    members = members_of(
        range(num_ranks),
        nodes=["n0"] * num_ranks,
        devices=[f"gpu-{rank}" for rank in range(num_ranks)],
        replica=range(num_ranks),
        forward_flops_per_token=[1e9] * num_ranks,
        backward_multiple=[2.0] * num_ranks,
    )
    found = []
    for i in range(count):
        tokens = random.integers(3000, 4000, num_ranks)
        seconds = 1e-4 * tokens * np.exp(0.01 * random.standard_normal(num_ranks))
        if i >= slow_from and slow_rank >= 0:
            seconds[slow_rank] *= 1.5
        frame = frames_of(
            members,
            [i],
            closed_at_unix_seconds=[1000.0 + i],
            flags=HAS_FLOPS | HAS_INPUT,
            started_at_unix_seconds=1000.0 + i,
            wall_seconds=0.9,
            forward_seconds=seconds / 3,
            backward_seconds=2 * seconds / 3,
            wait_vote_seconds=0.05,
            tokens=tokens,
            sum_of_squares=1e6,
            num_micro_batches=1,
            num_listed=1,
            listed_index=[0] * num_ranks,
            listed_tokens=tokens,
            listed_squares=[1e6] * num_ranks,
            listed_kept=[0] * num_ranks,
        )
        message = frames_pb2.Observation(job_id="job", sequence=i)
        write_frames(message.frames, frame)
        found.append(message)
    return found


def records(observations: list[frames_pb2.Observation]) -> list[batch_pb2.Batch]:
    """What the ranks sent, had the observations been made from it."""
    told = [read_frames(one.frames) for one in observations]
    return [
        batch_of(frame, place, job_id="job", incarnation=0, sequence=int(frame.iteration[0]))
        for frame in told
        for place in range(len(frame.members))
    ]


def samples_file(path: Path, first_line: bytes, messages: list) -> Path:
    with path.open("wb") as file:
        write_messages(file, first_line, (message.SerializeToString() for message in messages))
    return path


@pytest.mark.parametrize("first_line", [OBSERVATION_LINE, b""])
def test_recorded_observations_accuse_the_slow_rank(tmp_path: Path, first_line: bytes) -> None:
    path = samples_file(tmp_path / "job.samples", first_line, frames(slow_rank=5, slow_from=30))
    found, summary = run(path, RecordingFormat.SAMPLES)
    assert [culprit.rank for culprit in found[0].culprits] == [5]
    assert 30 <= found[0].decided_iteration < 35
    assert found[0].throughput == pytest.approx(1 / 1.5, abs=0.03)
    assert summary.num_rank_samples == 8 * 60
    assert summary.still_slow == ["job/5"]


@pytest.mark.parametrize("key", [None, JobKey(1, b"k" * 32)])
@pytest.mark.parametrize("first_line", [BATCH_LINE, b""])
def test_recorded_records_are_joined_first_and_give_the_same_verdicts(
    tmp_path: Path, first_line: bytes, key: JobKey | None
) -> None:
    observed = frames(slow_rank=2, slow_from=25)
    from_frames, _ = run(samples_file(tmp_path / "a", OBSERVATION_LINE, observed), RecordingFormat.SAMPLES)
    told = [batch_pb2.Batch.FromString(signed(one.SerializeToString(), key)) for one in records(observed)]
    from_records, summary = run(samples_file(tmp_path / "b", first_line, told), RecordingFormat.SAMPLES)
    assert [(one.kind, one.culprits, one.decided_iteration) for one in from_records] == [
        (one.kind, one.culprits, one.decided_iteration) for one in from_frames
    ]
    assert from_records
    assert summary.num_iterations == 60


def test_a_healthy_recording_accuses_nobody(tmp_path: Path) -> None:
    path = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=-1, slow_from=0))
    assert run(path, RecordingFormat.SAMPLES)[0] == []


def test_a_recording_that_is_cut_off_says_where(tmp_path: Path) -> None:
    path = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=0, slow_from=5, count=3))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RecordingError, match="cut off in message 3"):
        list(read_messages(path))


def poisoned(messages: list) -> list[bytes]:
    """The messages of a recording, four of which nobody can use."""
    nobodys = type(messages[0])()
    nobodys.CopyFrom(messages[0])
    if isinstance(nobodys, batch_pb2.Batch):
        nobodys.job_id[0] = ""
    else:
        nobodys.job_id = ""
    values = [message.SerializeToString() for message in messages]
    values[20:20] = [b"\xff\xff\xff", nobodys.SerializeToString()]
    values[40:40] = [b"\x07", b"\xff" * 9]
    return values


def test_poisoned_observations_are_skipped_and_told_and_the_verdicts_are_those_without_them(tmp_path: Path) -> None:
    observed = frames(slow_rank=5, slow_from=30)
    clean, _ = run(samples_file(tmp_path / "job.a", OBSERVATION_LINE, observed), RecordingFormat.SAMPLES)
    path = tmp_path / "job.b"
    newer = frames_pb2.Observation(job_id="job", sequence=999)
    with path.open("wb") as file:
        write_messages(file, OBSERVATION_LINE, [*poisoned(observed), newer.SerializeToString()])
    found, summary = run(path, RecordingFormat.SAMPLES)
    assert [one.verdict_id for one in found] == [one.verdict_id for one in clean]
    assert summary.skipped.reasons == {"malformed": 3, "no_job": 1, "empty": 1}
    assert summary.skipped.first.startswith("message 21 at byte ")
    assert summary.to_plain()["skipped"]["count"] == 5


def test_poisoned_records_are_skipped_by_the_rules_of_the_service(tmp_path: Path) -> None:
    sent = records(frames(slow_rank=2, slow_from=25))
    clean, _ = run(samples_file(tmp_path / "job.a", BATCH_LINE, sent), RecordingFormat.SAMPLES)
    hostile = batch_pb2.Batch()
    hostile.CopyFrom(sent[100])
    hostile.wall_seconds[0] = -1.0
    path = tmp_path / "job.b"
    with path.open("wb") as file:
        write_messages(file, BATCH_LINE, [*poisoned(sent), hostile.SerializeToString()])
    found, summary = run(path, RecordingFormat.SAMPLES)
    assert [one.verdict_id for one in found] == [one.verdict_id for one in clean]
    assert summary.skipped.count == 5
    assert "5 messages skipped" in summary.skipped.text


def test_the_end_of_a_recording_that_is_cut_off_is_skipped(tmp_path: Path) -> None:
    path = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=5, slow_from=30))
    path.write_bytes(path.read_bytes()[:-7])
    found, summary = run(path, RecordingFormat.SAMPLES)
    assert [culprit.rank for culprit in found[0].culprits] == [5]
    assert summary.num_iterations == 59
    assert summary.skipped.reasons == {"cut_off": 1}
    assert summary.skipped.first.endswith("the file ends 7 bytes before the message does")


def test_a_recording_of_which_nothing_can_be_used_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_bytes(BATCH_LINE)
    with pytest.raises(RecordingError, match="holds no messages"):
        run(path, RecordingFormat.SAMPLES)
    newer = [frames_pb2.Observation(job_id="job", sequence=number) for number in range(3)]
    samples_file(path, OBSERVATION_LINE, newer)
    with pytest.raises(RecordingError, match=r"no iteration that can be used: 3 messages skipped \(3 empty\); "):
        run(path, RecordingFormat.SAMPLES)
    with path.open("wb") as file:
        write_messages(file, BATCH_LINE, [b"\xff\xff\xff"] * 2)
    with pytest.raises(RecordingError, match=r"2 messages skipped \(2 malformed\); the first: message 1 at"):
        run(path, RecordingFormat.SAMPLES)


def test_observations_among_records_are_skipped_by_what_the_first_line_says(tmp_path: Path) -> None:
    observed = frames(slow_rank=-1, slow_from=0, count=20)
    path = samples_file(tmp_path / "job", BATCH_LINE, [*records(observed), *observed])
    _, summary = run(path, RecordingFormat.SAMPLES)
    assert summary.num_iterations == 20
    assert summary.skipped.reasons == {"other_kind": 20}


def test_observations_that_were_read_before_are_skipped_and_told(tmp_path: Path) -> None:
    observed = frames(slow_rank=5, slow_from=30)
    clean, _ = run(samples_file(tmp_path / "job.a", OBSERVATION_LINE, observed), RecordingFormat.SAMPLES)
    found, summary = run(samples_file(tmp_path / "job.b", OBSERVATION_LINE, observed * 2), RecordingFormat.SAMPLES)
    assert [one.verdict_id for one in found] == [one.verdict_id for one in clean]
    assert summary.num_iterations == 60
    assert summary.skipped.reasons == {"repeated": 60}
    assert summary.skipped.first.startswith("message 61 at byte ")


def test_a_recording_compressed_with_gzip_is_read_and_one_that_is_cut_off_is_called_so(tmp_path: Path) -> None:
    path = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=5, slow_from=30))
    zipped = gzip.compress(path.read_bytes())
    path.write_bytes(zipped)
    assert run(path, RecordingFormat.SAMPLES)[1].accused_ranks == {"job": [5]}
    path.write_bytes(zipped[:-1000])
    _, summary = run(path, RecordingFormat.SAMPLES)
    assert summary.accused_ranks == {"job": [5]}
    assert summary.num_iterations > 40
    assert summary.skipped.reasons == {"cut_off": 1}
    path.write_bytes(zipped[:40])
    with pytest.raises(RecordingError, match="damaged, or cut off, as a gzip file"):
        run(path, RecordingFormat.SAMPLES)


@pytest.mark.parametrize("num_bytes_left", [1, 2, 40])
def test_a_recording_cut_off_anywhere_in_a_message_is_read_up_to_there(tmp_path: Path, num_bytes_left: int) -> None:
    whole = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=5, slow_from=30)).read_bytes()
    begun = samples_file(tmp_path / "job", OBSERVATION_LINE, frames(slow_rank=5, slow_from=30, count=50)).read_bytes()
    (tmp_path / "job").write_bytes(whole[: len(begun) + num_bytes_left])
    _, summary = run(tmp_path / "job", RecordingFormat.SAMPLES)
    assert summary.num_iterations == 50
    assert summary.skipped.reasons == {"cut_off": 1}
    assert summary.skipped.first.startswith(f"message 51 at byte {len(begun)}")


def test_samples_that_are_repeated_or_late_are_left_out_and_told(tmp_path: Path) -> None:
    sent = records(frames(slow_rank=-1, slow_from=0, count=40))
    again = [*sent[:85], sent[84], *sent[85:]]
    _, summary = run(samples_file(tmp_path / "job.a", BATCH_LINE, again), RecordingFormat.SAMPLES)
    assert summary.skipped.reasons == {"repeated": 1}
    late = [*sent[:80], *sent[84:280], *sent[80:84], *sent[280:]]
    _, summary = run(samples_file(tmp_path / "job.b", BATCH_LINE, late), RecordingFormat.SAMPLES)
    assert summary.skipped.reasons == {"late": 4}
    assert "the sample of rank 0, iteration 10, comes after its frame was closed" in summary.skipped.first


@pytest.mark.parametrize("content", [b"", b"iteration,seconds\n1,2\n", b"evenkeel.telemetry.v9.Thing\n", b"\xff" * 40])
def test_something_that_is_no_samples_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job").write_bytes(content)
    with pytest.raises(RecordingError):
        run(tmp_path / "job", RecordingFormat.SAMPLES)


def test_the_production_job_with_a_heavy_last_stage_accuses_nobody() -> None:
    found, summary = run(TRACE, RecordingFormat.OPS)
    assert found == []
    assert summary.num_iterations == 32
    assert summary.num_rank_samples == 32 * 8


def operations_file(path: Path, operations: Operations) -> Path:
    names = ("step", "dp_rank", "stage", "optype", "start_seconds", "duration_seconds", "micro_batch")
    header = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    columns = [getattr(operations, name).tolist() for name in names]
    with gzip.open(path, "wt") as file:
        file.write(
            ",".join(header) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))
        )
    return path


@pytest.mark.parametrize(
    ("onset", "num_steps", "num_micro_batches", "patience"), [(80, 110, 2, 6), (20, 40, 4, 8)], ids=["grown", "young"]
)
def test_a_worker_that_becomes_slow_in_recorded_operations_is_accused(
    tmp_path: Path, onset: int, num_steps: int, num_micro_batches: int, patience: int
) -> None:
    table = pipeline(num_steps=num_steps, num_dp=4, num_stages=2, num_micro_batches=num_micro_batches, seed=9)
    operations = Operations.from_columns(table)
    victim = (operations.dp_rank == 1) & (operations.stage == 1) & (operations.step >= onset)
    slow = replayed_with(operations, np.where(victim & (operations.micro_batch >= 0), 1.3, 1.0))
    found, _ = run(operations_file(tmp_path / "ops.csv.gz", slow), RecordingFormat.OPS)
    assert [culprit.rank for culprit in found[0].culprits] == [3]
    assert onset <= found[0].first_iteration <= onset + 1
    assert found[0].decided_iteration < onset + patience


def test_a_stage_that_becomes_heavier_in_all_replicas_is_told_as_that_and_accuses_nobody(tmp_path: Path) -> None:
    table = pipeline(num_steps=80, num_dp=2, num_stages=3, num_micro_batches=3, seed=9)
    operations = Operations.from_columns(table)
    heavier = (operations.stage == 1) & (operations.step >= 30) & (operations.micro_batch >= 0)
    slow = replayed_with(operations, np.where(heavier, 1.5, 1.0))
    found, summary = run(operations_file(tmp_path / "ops.csv.gz", slow), RecordingFormat.OPS)
    assert [(one.kind, one.culprits) for one in found] == [(VerdictKind.STAGE_IMBALANCE, ())]
    assert "of stage 1's work to lighter stages" in found[0].evidence[-1].text
    assert [note[:45] for note in summary.notes] == ["stage 1 computes 50% longer from step 30 on, "[:45]]


def test_a_stage_that_becomes_a_little_heavier_is_told_by_one_note(tmp_path: Path) -> None:
    table = pipeline(num_steps=60, num_dp=2, num_stages=3, num_micro_batches=3, seed=9)
    operations = Operations.from_columns(table)
    heavier = (operations.stage == 1) & (operations.step >= 30) & (operations.micro_batch >= 0)
    slow = replayed_with(operations, np.where(heavier, 1.12, 1.0))
    slow = replace(slow, start_seconds=slow.start_seconds + 10.0 * slow.step)
    found, summary = run(operations_file(tmp_path / "ops.csv.gz", slow), RecordingFormat.OPS)
    assert found == []
    assert [note[:40] for note in summary.notes] == ["stage 1 computes 12% longer from step 30"]


def test_a_slow_worker_that_has_no_peer_is_accused_with_the_reservation_that_it_may_be_its_work(tmp_path: Path) -> None:
    table = pipeline(num_steps=60, num_dp=1, num_stages=3, num_micro_batches=3, seed=9)
    operations = Operations.from_columns(table)
    slower = (operations.stage == 1) & (operations.step >= 30) & (operations.micro_batch >= 0)
    found, summary = run(
        operations_file(tmp_path / "ops.csv.gz", replayed_with(operations, np.where(slower, 1.5, 1.0))),
        RecordingFormat.OPS,
    )
    assert {culprit.rank for one in found for culprit in one.culprits} == {1}
    assert [note[:43] for note in summary.notes] == ["nobody else runs the stage of rank 1: heavi"]


def test_what_befalls_all_workers_alike_accuses_nobody_and_is_noted(tmp_path: Path) -> None:
    table = pipeline(num_steps=70, num_dp=2, num_stages=2, num_micro_batches=3, seed=9)
    healthy = Operations.from_columns(table)
    healthy = replace(healthy, start_seconds=healthy.start_seconds + 10.0 * healthy.step)
    computes = healthy.micro_batch >= 0
    slow = replayed_with(healthy, np.where(computes & (healthy.step >= 40), 1.3, 1.0))
    for operations, notes in ((healthy, []), (slow, ["from about 40 on, and no worker or link stands out"])):
        found, summary = run(operations_file(tmp_path / "ops.csv.gz", operations), RecordingFormat.OPS)
        assert found == []
        assert len(summary.notes) == len(notes)
        assert all(part in note for part, note in zip(notes, summary.notes, strict=True))


def test_a_missing_column_of_operations_is_named_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text("step,dp_rank,stage,optype,start_ts\n0,0,0,forward-compute,0.0\n")
    result = CliRunner().invoke(app, ["analyze", str(path)])
    assert isinstance(result.exception, CommandError)
    assert "lacks the column duration" in str(result.exception)


def test_analysis_as_json_has_the_shares() -> None:
    result = CliRunner().invoke(app, ["-o", "json", "analyze", str(TRACE), "--format", "ops"])
    found = json.loads(result.stdout)
    assert found["slowdown"] == pytest.approx(1.1787, rel=0.001)
    assert found["causes"] == ["last_stage"]


def test_a_damaged_parquet_file_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ops.parquet"
    path.write_bytes(TRACE.read_bytes()[:5000])
    with pytest.raises(RecordingError, match="damaged parquet"):
        read_operations(path)


def test_messages_survive_writing_and_reading() -> None:
    buffer = io.BytesIO()
    assert write_messages(buffer, OBSERVATION_LINE, [b"x" * 300]) == 1
    assert buffer.getvalue() == OBSERVATION_LINE + b"\xac\x02" + b"x" * 300
