"""What every command keeps to: an example that can be run, stable exit statuses, errors that say what to do next."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.machine import stack
from evenkeel.cli.main import COMMANDS as ROOT_COMMANDS
from evenkeel.cli.main import app, load_command, main
from evenkeel.stack import paths
from evenkeel.stack.addresses import Addresses
from evenkeel.stack.processes.locks import try_lock
from evenkeel.stack.state import Phase, StackState, lock_path, read_state, write_state

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt.json"


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that lead to it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from commands(child, (*path, name))


COMMANDS = {path: command for name in ROOT_COMMANDS for path, command in commands(load_command(name), (name,))}


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["evenkeel", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_URL", "FLEET_ADDRESS", "FLEET_TOKEN"):
        monkeypatch.delenv(f"EVENKEEL_{name}", raising=False)
    monkeypatch.setattr(paths, "checkout_root", lambda: tmp_path)


def test_the_commands_that_the_documentation_promises_exist() -> None:
    promised = (
        "stack up, stack down, stack status, run, launch, demo, jobs list, jobs register, jobs finish, "
        "jobs describe, jobs watch, incidents list, "
        "verdicts list, verdicts explain, plans list, plans explain, topics apply, topics check, db upgrade, "
        "db prune, "
        "inject slow, inject slow-input, inject slow-link, inject slow-endpoint, inject kill, inject stop, "
        "inject cont, inject hang, doctor, "
        "analyze, replay, record, simulate, schedule, plan, why"
    )
    assert {" ".join(path) for path in COMMANDS} == set(promised.split(", "))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_help_has_one_example_of_the_command_itself_that_parses(path: tuple[str, ...]) -> None:
    (example,) = re.findall(r"Example: (.*)", COMMANDS[path].help)
    called = example.split("&&")[-1].strip()
    words = shlex.split(called.removeprefix('eval "$(').removesuffix(')"'))
    assert tuple(words[1 : 1 + len(path)]) == path
    arguments = words[1 + len(path) :]
    # Parses without running: an option or argument that does not exist raises here.
    with COMMANDS[path].make_context(" ".join(path), arguments, resilient_parsing=False):
        pass


def test_a_wrong_option_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "jobs", "list", "--nonsense") == ExitStatus.USAGE
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("plans", "list"),
        ("incidents", "list"),
        ("verdicts", "list"),
        ("topics", "check"),
        ("db", "upgrade"),
        ("db", "prune", "--older-than-days", "7"),
    ],
)
def test_without_addresses_a_command_is_unhealthy_and_says_what_to_do(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *words) == ExitStatus.UNHEALTHY
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "is not set" in shown.err
    assert "next: evenkeel stack up" in shown.err


@pytest.mark.parametrize("words", [("db", "upgrade"), ("db", "prune", "--older-than-days", "7")])
def test_a_database_that_does_not_answer_is_one_line_and_unhealthy(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql://nobody:secret@127.0.0.1:1/nothing")
    assert run_main(monkeypatch, *words) == ExitStatus.UNHEALTHY
    first, *rest = capsys.readouterr().err.splitlines()
    assert "Connection refused" in first
    assert "secret" not in first
    assert all(line.startswith("next: ") for line in rest)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://nobody:secret@127.0.0.1:1/nothing"),
        ("DATABASE_URL", "secret"),
        ("KAFKA_BOOTSTRAP_SERVERS", "kafka"),
        ("KAFKA_BOOTSTRAP_SERVERS", "kafka:9092,kafka:port"),
        ("FLEET_ADDRESS", "http://127.0.0.1:7600"),
        ("FLEET_ADDRESS", "scheduler"),
    ],
)
def test_an_address_that_is_none_is_one_line_that_says_its_form_and_no_password(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"EVENKEEL_{name}", value)
    words = {"DATABASE_URL": ("db", "upgrade"), "FLEET_ADDRESS": ("jobs", "list")}.get(name, ("topics", "check"))
    assert run_main(monkeypatch, *words) == ExitStatus.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"EVENKEEL_{name} is not " in line
    assert "secret" not in line


def test_a_token_that_no_call_can_carry_is_one_line_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVENKEEL_FLEET_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", "a secret\nof two lines")
    assert run_main(monkeypatch, "jobs", "list") == ExitStatus.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "EVENKEEL_FLEET_TOKEN holds" in line
    assert "secret" not in line


def test_a_stack_of_another_name_is_pointed_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("demo", "ended"):
        write_state(StackState(name=name, phase=Phase.RUNNING, owner_id=1))
    owner = try_lock(lock_path("demo"), timeout_seconds=1.0)
    assert owner is not None
    with owner:
        assert run_main(monkeypatch, "jobs", "list") == ExitStatus.UNHEALTHY
    assert "next: evenkeel --stack demo ..., evenkeel stack up, or " in capsys.readouterr().err


@pytest.mark.parametrize("words", [("why", "job"), ("record", "job", "-o", "kept"), ("topics", "check")])
def test_a_kafka_that_does_not_answer_is_unhealthy_and_costs_no_recording(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").write_text("an earlier recording")
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run_main(monkeypatch, *words) == ExitStatus.UNHEALTHY
    first, *_rest = capsys.readouterr().err.splitlines()
    assert first.startswith("evenkeel: Kafka at 127.0.0.1:1 ")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("kept", "an earlier recording")]


@pytest.mark.parametrize(
    "words",
    [("stack", "up"), ("stack", "up", "--servers"), ("--stack", "other", "stack", "up", "--name", "dev")],
)
def test_bringing_up_a_stack_that_runs_says_so_and_prints_its_addresses(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = Addresses(kafka_bootstrap_servers="k:1", fleet_address="f:2", fleet_token="a token")
    write_state(StackState(name="dev", phase=Phase.RUNNING, owner_id=1, addresses=addresses))
    owner = try_lock(lock_path("dev"), timeout_seconds=1.0)
    assert owner is not None
    with owner:
        assert run_main(monkeypatch, *words) == ExitStatus.OK
    shown = capsys.readouterr()
    assert "'dev' runs already" in shown.err
    assert shown.out.splitlines() == [
        "export EVENKEEL_KAFKA_BOOTSTRAP_SERVERS=k:1",
        "export EVENKEEL_FLEET_ADDRESS=f:2",
        "export EVENKEEL_FLEET_TOKEN='a token'",
    ]


def test_a_stack_that_runs_without_services_is_not_taken_for_one_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(StackState(name="dev", phase=Phase.RUNNING, owner_id=1, addresses=Addresses()))
    owner = try_lock(lock_path("dev"), timeout_seconds=1.0)
    assert owner is not None
    with owner:
        assert run_main(monkeypatch, "stack", "up") == ExitStatus.FAILURE
    shown = capsys.readouterr()
    assert "without the services" in shown.err
    assert shown.out == ""


def test_status_of_no_stack_is_unhealthy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "stack", "status") == ExitStatus.UNHEALTHY
    assert "no stack runs" in capsys.readouterr().err


def test_status_shows_why_a_stack_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_state(StackState(name="dev", phase=Phase.FAILED, owner_id=1, error="there is no Java"))
    assert run_main(monkeypatch, "-o", "json", "stack", "status") == ExitStatus.UNHEALTHY
    shown = capsys.readouterr()
    assert json.loads(shown.out)[0]["state"] == "failed"
    assert "there is no Java" in shown.err


def test_stopping_a_stack_that_does_not_run_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "stack", "down") == ExitStatus.OK
    assert "does not run" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "down"])
def test_the_stack_named_before_the_noun_is_the_one_meant(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = Addresses(kafka_bootstrap_servers="k:1", fleet_address="f:2", fleet_token="a token")
    for name in ("dev", "mine"):
        write_state(StackState(name=name, phase=Phase.FAILED, owner_id=1, addresses=addresses, error=f"of {name}"))
    monkeypatch.setattr(stack, "running_stack", lambda name, **_: read_state(name))
    monkeypatch.setattr(stack, "stop_in_background", lambda name: False)
    run_main(monkeypatch, "--stack", "mine", "stack", command)
    said = capsys.readouterr().err
    assert "mine" in said
    assert "dev" not in said


def test_a_bad_stack_name_is_wrong_usage_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "stack", "up", "--name", "../up") == ExitStatus.USAGE
    assert capsys.readouterr().err.startswith("evenkeel: stack name")


def test_doctor_reports_each_check_as_json() -> None:
    result = CliRunner().invoke(app, ["doctor", "-o", "json"])
    checks = json.loads(result.stdout)
    assert {"Python", "Java", "Kafka", "PostgreSQL", "torch", "disk", "memory", "ports"} <= {
        each["name"] for each in checks
    }
    missing = [each for each in checks if each["outcome"] == "missing"]
    assert all(each["advice"] for each in missing)
    assert result.exit_code == (ExitStatus.UNHEALTHY if missing else ExitStatus.OK)


def test_doctor_says_how_to_get_java_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("evenkeel.stack.kafka.java.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == ExitStatus.UNHEALTHY
    assert "openjdk-17-jre-headless" in result.stdout
    assert "brew install" in result.stdout


def test_a_command_loads_no_library_that_it_does_not_use_nor_does_what_supervises_a_job() -> None:
    # In this order each loads what the ones before it may not.
    heavy = ("numpy", "psycopg", "torch", "sqlalchemy", "alembic", "scipy", "river")
    steps = (("run", ("grpc", "aiokafka", *heavy)), ("jobs", ("aiokafka", *heavy)), ("stack", heavy))
    code = f"""
import sys
from evenkeel.cli.main import load_command
for command, heavy in {steps}:
    load_command(command)
    print(command, *(name for name in heavy if name in sys.modules))
from pathlib import Path
from evenkeel.trainer_sdk.launcher.__main__ import load_job
load_job(Path({str(EXAMPLE)!r}), {{}})
print("launcher", *(name for name in {heavy} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["run", "jobs", "stack", "launcher"]


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "jbos", "list") == ExitStatus.USAGE
    assert "'jobs'" in capsys.readouterr().err


def test_a_kind_of_verdicts_that_does_not_exist_is_answered_with_those_that_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "verdicts", "list", "--kind", "slow") == ExitStatus.USAGE
    first, advice = capsys.readouterr().err.splitlines()
    assert first == "evenkeel: there is no kind 'slow'"
    assert advice.startswith("next: one of: fail_stop, hang, compute_slow, ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--speed", "20", "--job-id", "mine"), "--speed, --job-id: only with --emit"),
        (("--seconds", "1"), "--seconds: only with --emit"),
        (("--emit", "-s", "Evenkeel"), "--strategy: nothing is compared"),
    ],
)
def test_an_option_of_simulate_that_would_do_nothing_is_refused(
    words: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text("hours: 1\njob: {model: llama2-7b, tensor: 1, pipeline: 1, data: 2, micro_batches: 1}\n")
    assert run_main(monkeypatch, "simulate", str(scenario), *words) == ExitStatus.USAGE
    assert named in capsys.readouterr().err


def run_with(path: Path, *arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    """The command with a file for its standard input and one for its output."""
    with path.open("rb") as given, output.open("wb") as written:
        return subprocess.run(
            [sys.executable, "-m", "evenkeel.cli", *arguments],
            stdin=given,
            stdout=written,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=600,
        )


def test_a_recording_may_come_through_standard_input(tmp_path: Path) -> None:
    path, output = tmp_path / "steps.csv", tmp_path / "out"
    path.write_text("iteration,seconds\n" + "".join(f"{i},{1.0 + 0.3 * (i >= 60)}\n" for i in range(90)))
    done = run_with(path, "-o", "json", "replay", "-", "--format", "series", output=output)
    assert done.returncode == 0, done.stderr
    verdict, summary = (json.loads(line) for line in output.read_text().splitlines())
    assert (verdict["job_id"], verdict["kind"], verdict["first_iteration"]) == ("stdin", "job_slow", 60)
    assert summary["summary"]["num_iterations"] == 90


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("iteration,seconds\n" + "".join(f"{i},1.0\n" for i in range(30)))
    done = run_with(path, "-o", "json", "replay", "-", "--format", "series", output=Path("/dev/full"))
    assert done.returncode == 1
    assert done.stderr == "evenkeel: cannot write: No space left on device\n"
