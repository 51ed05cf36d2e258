"""One rule for all commands: 2 when it was asked wrongly, 1 when what came of it is wrong, 3 when something is away."""

import json
import sys
from pathlib import Path

import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.main import main
from evenkeel.trainer_sdk.devices.links import LinkTable
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.launcher.description.run_state import RunState

_DONE, _FAILED, _USAGE, _AWAY = ExitStatus.OK, ExitStatus.FAILURE, ExitStatus.USAGE, ExitStatus.UNHEALTHY
_BLOCK = {
    "forward_flops_per_token": 1e5,
    "forward_flops_per_squared_length": 0,
    "parameter_bytes": 1_000_000,
    "count": 4,
}
_DEAD_JOB = {
    "model": {"blocks": [_BLOCK]},
    "layout": {"tensor": 1, "pipeline": 1, "data": 1, "num_micro_batches": 4},
    "throughputs": {"0": 0},
}
_CASE = {"layers": [{"forward": 1, "backward_input": 1, "backward_weight": 1}] * 2, "devices": 1, "micro_batches": 1}

TABLE = [
    # A file that is not there, is a folder, or is something else.
    ("replay nothing --format ops", _USAGE),
    ("replay nothing --format series", _USAGE),
    ("replay nothing --format samples", _USAGE),
    ("replay . --format ops", _USAGE),
    ("replay words --format ops", _USAGE),
    ("replay words --format series", _USAGE),
    ("replay words --format samples", _USAGE),
    ("analyze nothing", _USAGE),
    ("analyze .", _USAGE),
    ("analyze words", _USAGE),
    ("plan nothing", _USAGE),
    ("plan words", _USAGE),
    ("schedule nothing", _USAGE),
    ("schedule words", _USAGE),
    ("simulate nothing", _USAGE),
    ("simulate words", _USAGE),
    ("inject kill nothing 0", _USAGE),
    ("inject slow . 0 0.5", _USAGE),
    # Numbers that cannot be.
    ("replay series --format series --iterations-per-false-alarm 9", _USAGE),
    ("replay series --format series --iterations-per-false-alarm nan", _USAGE),
    ("inject slow job 0 7", _USAGE),
    ("inject slow job 0 0", _USAGE),
    ("inject slow job 0 nan", _USAGE),
    ("inject slow job 0 inf", _USAGE),
    ("inject slow job 0 half", _USAGE),
    ("inject slow job 2 0.5", _USAGE),
    ("inject slow-input job 0 1e9", _USAGE),
    ("inject slow-input job 0 nan", _USAGE),
    ("inject slow-link job 0 1 0.5", _USAGE),
    ("inject slow-link job 0 1 inf", _USAGE),
    ("inject slow-link job 1 1 2", _USAGE),
    ("inject slow-link job 0 2 2", _USAGE),
    ("inject slow-endpoint job 0 1e9", _USAGE),
    ("inject slow-endpoint job 9 2", _USAGE),
    ("schedule case --deadline 0", _USAGE),
    ("schedule case --deadline nan", _USAGE),
    ("schedule case --evaluations 0", _USAGE),
    ("schedule case --layout layout --replicas 0", _USAGE),
    ("simulate nothing --emit --speed nan", _USAGE),
    ("db prune --older-than-days 999999999999", _USAGE),
    ("jobs list -n 0", _USAGE),
    ("jobs list -n 999999999999999999999", _USAGE),
    ("jobs register mine --ranks 0", _USAGE),
    ("jobs register mine --ranks 1000000000", _USAGE),
    ("why mine -n 1", _USAGE),
    # Options that contradict each other, names that nothing has.
    ("schedule case --replicas 2", _USAGE),
    ("stack status --name ../up", _USAGE),
    ("verdicts list --kind nonsense", _USAGE),
    # Asked rightly, with another end than one would wish for.
    ("plan dead-job", _FAILED),
    # What it needs is away.
    ("jobs list", _AWAY),
    ("record mine -o mine.samples", _AWAY),
    ("stack status", _AWAY),
    # Done.
    ("replay series --format series", _DONE),
    ("schedule case --evaluations 2 --layout layout --replicas 2", _DONE),
    ("inject slow job 1 0.5", _DONE),
    ("inject slow-link job 0 1 2", _DONE),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each; the local stack of the checkout is not looked for."""
    (tmp_path / "words").write_text("nothing that anybody\nhas asked for\n")
    (tmp_path / "series").write_text("iteration,seconds\n" + "".join(f"{i},1.0\n" for i in range(40)))
    (tmp_path / "dead-job").write_text(json.dumps(_DEAD_JOB))
    (tmp_path / "case").write_text(json.dumps(_CASE))
    run_dir = tmp_path / "job"
    run_dir.mkdir()
    speeds, links = run_dir / "speeds", run_dir / "links"
    SpeedTable.create(speeds, 2).close()
    LinkTable.create(links, 2).close()
    RunState(job_id="mine", supervisor_pid=1, speed_table=str(speeds), link_table=str(links)).write(run_dir)
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_URL", "FLEET_ADDRESS", "FLEET_TOKEN"):
        monkeypatch.delenv(f"EVENKEEL_{name}", raising=False)
    monkeypatch.setattr("evenkeel.stack.paths.checkout_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "status"), TABLE, ids=[words for words, _ in TABLE])
def test_a_command_ends_as_the_rule_says(
    words: str, status: ExitStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evenkeel", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (int(ended.value.code or 0), "Traceback" in said) == (status, False), said


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("inject slow job 0 7", "speed 7: give 1 for healthy, 0.5 for half as fast"),
        ("inject slow-input job 0 -- -1", "-1 seconds: give 0 for healthy, 3600 at most"),
        ("inject slow-link job 0 1 0.5", "factor 0.5: give 1 for healthy, 2 for twice as slow"),
        ("inject slow job 9 0.5", "rank 9 is not in 0..1"),
    ],
)
def test_a_size_that_cannot_be_is_answered_with_what_can(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evenkeel", *words.split()])
    with pytest.raises(SystemExit):
        main()
    assert told in capsys.readouterr().err
