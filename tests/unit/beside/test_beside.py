"""Folders in processes of their own, one report: nothing that fails in any may get lost."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

INI = "[pytest]\naddopts = --import-mode=importlib\n"
# Other plugins take longer to load than all the rest of a run.
ALONE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
PASSES = "def test_it_passes():\n    pass\n"
FAILS = "def test_it_fails():\n    assert 1 == 2, 'one is not two'\n"
OF_ALL_KINDS = f"""
import pytest

@pytest.fixture
def thing():
    yield
    raise OSError('too late')

def test_it_fails_to_tear_down(thing):
    pass

def test_it_skips():
    pytest.skip('not here')

{PASSES}
{FAILS}"""
CANNOT_BE_READ = "import no_such_module\n"
HAS_THE_SAME_RIGHT = (
    "\nimport os\n\ndef test_its_right():\n"
    f"    assert os.getpriority(os.PRIO_PROCESS, 0) == {os.getpriority(os.PRIO_PROCESS, 0)}\n"
)
WAITS = (
    "import pathlib\nimport threading\nimport pytest\n\n@pytest.fixture\ndef thing():\n    yield\n"
    "    pathlib.Path('tidied').touch()\n\n"
    "def test_it_waits(thing):\n    pathlib.Path('started').touch()\n    threading.Event().wait()\n"
)
INTERRUPTS = (
    "import pathlib\nimport time\n\n"
    "def test_it_interrupts():\n    while not pathlib.Path('started').exists():\n        time.sleep(0.01)\n"
    "    raise KeyboardInterrupt\n"
)
MEETS = (
    "import pathlib\nimport time\n\n"
    "def test_all_are_there():\n    pathlib.Path(pathlib.Path(__file__).stem + '.here').touch()\n"
    "    while len(list(pathlib.Path().glob('*.here'))) < 3:\n        time.sleep(0.01)\n"
)
MEETS_TESTS = (
    "import pathlib\nimport time\n\n"
    "with open('times', 'a') as times:\n    times.write('once')\n"
    "pathlib.Path('command.here').touch()\n"
    "while len(list(pathlib.Path().glob('*.here'))) < 3:\n    time.sleep(0.01)\n"
)
NOTES_ITSELF = (
    "import os\nimport pathlib\nimport sys\n\n"
    "pathlib.Path('noted').write_text(str(os.getpid()))\npathlib.Path('noted').rename('command')\n"
)
OUTLIVES = (
    "import pathlib\nimport time\n\n"
    "def test_it_outlives_the_command():\n"
    "    while not pathlib.Path('command').exists():\n        time.sleep(0.01)\n"
    "    stat = pathlib.Path('/proc', pathlib.Path('command').read_text(), 'stat')\n"
    "    while ') Z ' not in stat.read_text():\n        time.sleep(0.01)\n\n"
)
ENDS = "import os\n\ndef test_it_ends_the_process():\n    os._exit(3)\n"


@pytest.fixture
def run(tmp_path: Path):
    def run(beside: str, own: str, *flags: str, also: str = "") -> tuple[int, list[str]]:
        folders = ["--beside", "beside", *(["--beside", "also"] if also else [])]
        for name, content in (("beside", beside), ("own", own), *([("also", also)] if also else [])):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"test_{name}.py").write_text(content)
        (tmp_path / "pytest.ini").write_text(INI)
        plugins = ("-p", "pytest_timeout", "-p", "tests.beside")
        command = [sys.executable, "-m", "pytest", *plugins, *folders, "own", *flags]
        done = subprocess.run(command, cwd=tmp_path, env=ALONE, capture_output=True, text=True, check=False)
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()

    return run


def test_each_test_beside_is_told_and_counted_as_the_others_are(run) -> None:
    status, lines = run(OF_ALL_KINDS, PASSES, "-rs")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "beside/test_beside.py .Es.F" in [line.split("  ")[0] for line in lines]
    assert any(line.startswith("SKIPPED") and "not here" in line for line in lines)
    assert all(any(said in line for line in lines) for said in ("too late", "one is not two"))
    assert "1 failed, 3 passed, 1 skipped, 1 error" in lines[-1]


@pytest.mark.parametrize(
    ("beside", "own", "said", "counted"),
    [
        (PASSES, FAILS, "one is not two", "1 failed, 1 passed"),
        (CANNOT_BE_READ, PASSES, "no_such_module", "1 passed, 1 error"),
    ],
    ids=["own", "import beside"],
)
def test_what_fails_in_either_is_told_and_fails_the_run(run, beside: str, own: str, said: str, counted: str) -> None:
    status, lines = run(beside, own)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert any(said in line for line in lines)
    assert counted in lines[-1]


def test_each_folder_beside_has_a_process_and_all_run_at_once(run) -> None:
    status, lines = run(MEETS, MEETS, also=MEETS)
    assert status == pytest.ExitCode.OK, "\n".join(lines)
    assert "3 passed" in lines[-1]


def test_of_two_folders_beside_each_is_told_what_went_wrong_and_one_that_just_ends_fails_the_run(run) -> None:
    status, lines = run(ENDS, PASSES, also=PASSES)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert any("tests of beside ended with 3" in line for line in lines)
    assert "2 passed" in lines[-1]


def test_flags_hold_for_both(run) -> None:
    status, lines = run(PASSES + FAILS, PASSES + FAILS, "-k", "passes", "-q")
    assert status == pytest.ExitCode.OK
    assert lines[-1].startswith("2 passed")


def test_a_folder_along_has_the_same_right_to_the_processors_and_each_test_runs_once_and_is_read_by_its_process_alone(
    run, tmp_path: Path
) -> None:
    inner = tmp_path / "along" / "inner"
    inner.mkdir(parents=True)
    reads = "open(__file__ + '.read', 'a').write('once')\n"
    (inner / "test_inner.py").write_text(reads + PASSES)
    (inner.parent / "test_along.py").write_text(reads + HAS_THE_SAME_RIGHT)
    status, lines = run(PASSES, PASSES, "--beside", "along/inner", "--along", "along", "beside")
    assert status == pytest.ExitCode.OK
    assert "4 passed" in lines[-1]
    assert [each.read_text() for each in tmp_path.glob("along/**/*.read")] == ["once", "once"]


COMMAND = f"{sys.executable} -c "


@pytest.mark.parametrize(("command", "status"), [("print('never told')", 0), ("print('no such type'); exit(1)", 1)])
def test_a_command_beside_the_tests_has_to_succeed_and_is_told_where_it_does_not(
    run, command: str, status: int
) -> None:
    found, lines = run(PASSES, PASSES, "--beside-command", f'{COMMAND}"{command}"')
    assert found == status
    assert [line for line in lines if line in ("never told", "no such type")] == ["no such type"] * status
    assert "2 passed" in lines[-1]


def test_a_command_runs_once_and_at_the_same_time_as_the_tests(run, tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(MEETS_TESTS)
    status, _ = run(MEETS, MEETS, "--beside-command", f"{sys.executable} command.py")
    assert status == pytest.ExitCode.OK
    assert (tmp_path / "times").read_text() == "once"


def test_a_command_that_fails_ends_the_run_before_the_next_test(run, tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(NOTES_ITSELF + "sys.exit('no such type')\n")
    status, lines = run(WAITS, OUTLIVES + FAILS, "--beside-command", f"{sys.executable} command.py")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "no such type" in lines
    assert "1 passed" in lines[-1]
    assert "failed" not in lines[-1]


def test_an_interrupt_lets_the_tests_beside_tidy_up(run, tmp_path: Path) -> None:
    status, _ = run(WAITS, INTERRUPTS)
    assert status == pytest.ExitCode.INTERRUPTED
    assert (tmp_path / "tidied").exists()


def test_an_interrupt_ends_a_command_with_what_it_started(run, tmp_path: Path) -> None:
    (tmp_path / "command.sh").write_text("sleep 600 & echo $! > noted\nmv noted started\nwait\n")
    status, _ = run(PASSES, INTERRUPTS, "--beside-command", "bash command.sh")
    assert status == pytest.ExitCode.INTERRUPTED
    stat = Path("/proc", (tmp_path / "started").read_text().strip(), "stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while ") Z " not in stat.read_text():  # its new parent may take a while to notice that it has ended
            time.sleep(0.01)
