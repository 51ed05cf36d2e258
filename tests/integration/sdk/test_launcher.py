"""The launcher with real processes: start, death, return, end, and nothing left behind."""

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from torch.distributed import TCPStore

from evenkeel.control.v1 import control_pb2, control_pb2_grpc
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.launcher import inject
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import read_run_state
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED
from tests.warm import launched_warm

pytestmark = pytest.mark.integration

ENTRY_POINTS = str(Path(__file__).parent / "entry_points")
LAYOUT = uniform_layout(num_blocks=2, tensor=1, pipeline=1, data=2, num_micro_batches=2)


def eventually(holds: Callable[[], bool], what: str, timeout_seconds: float = 200.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def job(run_dir: Path, **options: object) -> JobSpec:
    return JobSpec(
        job_id="launched",
        entry_point="launched_ranks:until_told",
        layout=LAYOUT,
        run_dir=run_dir,
        python_path=(ENTRY_POINTS,),
        devices_per_node=1,
        **options,  # type: ignore[arg-type]
    )


def all_processes(launcher: Launcher) -> list[int]:
    state = read_run_state(launcher.spec.run_dir)
    return [state.zygote_pid, *launcher.pids.values()]


@pytest.fixture
def warm() -> Iterator[None]:
    """The parent of all ranks begins with torch loaded."""
    with launched_warm():
        yield


@pytest.fixture
def launcher(warm: None, tmp_path: Path) -> Iterator[Launcher]:
    with Launcher(job(tmp_path, job_token="a-token-of-this-job")) as launcher:
        yield launcher


def wait_for_ranks(launcher: Launcher, *names: str) -> None:
    for name in names:
        path = launcher.spec.run_dir / f"rank-{name}"
        eventually(path.exists, f"{path} does not appear")


def wait_for_end(run_dir: Path, rank: int, exit_code: int) -> None:
    eventually(lambda: read_run_state(run_dir).ranks[rank].exit_code == exit_code, f"rank {rank} does not end")


def test_a_killed_rank_is_reported_at_once_and_it_and_a_stopped_one_come_back_as_new_incarnations(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    wait_for_ranks(launcher, "0-0", "1-0")
    killed = inject.kill(launcher.spec.run_dir, 1)
    wait_for_end(launcher.spec.run_dir, 1, -signal.SIGKILL)
    assert 1 not in launcher.pids
    with pytest.raises(ValueError, match="has no process now"):
        inject.kill(launcher.spec.run_dir, 1)
    launcher.restart(1)
    wait_for_ranks(launcher, "1-1")
    # The new process may be further than the news of it.
    eventually(lambda: launcher.pids.get(1, killed) != killed, "the launcher does not hear of the new process")
    other, process = read_run_state(launcher.spec.run_dir).ranks
    assert other.incarnation == 0
    assert (process.incarnation, process.pid, process.alive) == (1, launcher.pids[1], True)
    assert (process.node, process.device) == ("node-1", "gpu-0")
    inject.stop(launcher.spec.run_dir, 0)
    launcher.restart(0)
    wait_for_ranks(launcher, "0-1")
    eventually(lambda: "rank 0.0 ended: killed by SIGKILL" in caplog.text, "the end is not told")
    (launcher.spec.run_dir / "finish").touch()
    assert launcher.wait(200) == 0


def test_stopping_ends_every_process_even_a_stopped_one(warm: None, tmp_path: Path) -> None:
    launcher = Launcher(job(tmp_path))
    launcher.start()
    wait_for_ranks(launcher, "0-0", "1-0")
    inject.stop(tmp_path, 0)
    processes = all_processes(launcher)
    launcher.stop()
    assert not [pid for pid in processes if exists(pid)]
    launcher.stop()


def test_a_failing_rank_restarts_by_itself(warm: None, tmp_path: Path) -> None:
    with Launcher(job(tmp_path, restart_delay_seconds=0.0, logs_to_files=True)) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        (tmp_path / "fail-0").touch()
        eventually(lambda: read_run_state(tmp_path).ranks[0].incarnation >= 1, "no restart")
        (tmp_path / "fail-0").unlink()
        log = tmp_path / "logs" / "rank-0-0.log"
        assert "told to fail" in log.read_text()


def test_while_no_process_can_be_had_the_others_work_on_and_the_rank_comes_back_when_there_is_one(
    warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_forks = tmp_path / "no-forks"
    monkeypatch.setenv("NO_FORKS", str(no_forks))
    spec = replace(job(tmp_path, restart_delay_seconds=0.0), entry_point="no_forks:until_told")
    with Launcher(spec) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        no_forks.touch()
        inject.kill(tmp_path, 1)
        eventually(lambda: "rank 1 gets no new process" in caplog.text, "nobody tries")
        done = (tmp_path / "segments-0").read_text()
        eventually(lambda: (tmp_path / "segments-0").read_text() > done, "rank 0 does not work on")
        assert launcher.wait(0.0) is None
        no_forks.unlink()
        wait_for_ranks(launcher, "1-1")
        (tmp_path / "finish").touch()
        assert launcher.wait(200) == 0


def test_a_killed_store_comes_back_at_its_address_and_knows_that_somebody_has_finished(
    warm: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Launcher(job(tmp_path)) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        before = read_run_state(tmp_path)

        def kill_store(starts: int) -> None:
            os.kill(read_run_state(tmp_path).store_pid, signal.SIGKILL)
            eventually(lambda: read_run_state(tmp_path).store_starts == starts, f"store {starts} does not start")

        def is_finished() -> bool:
            host, _, port = before.store_address.rpartition(":")
            return bool(TCPStore(host, int(port), is_master=False).check([f"launched/{JOB_FINISHED}"]))

        kill_store(2)
        assert not is_finished()
        inject.stop(tmp_path, 1)
        (tmp_path / "finish").touch()
        eventually(is_finished, "the store does not hear of the rank that finished")
        kill_store(3)
        eventually(is_finished, "a later store does not know it")
        assert read_run_state(tmp_path).store_address == before.store_address
        assert launcher.pids.keys() == {1}
        inject.cont(tmp_path, 1)
        assert launcher.wait(200) == 0
    said = [one for one in caplog.messages if "the rendezvous store" in one]
    assert said[0].startswith(
        f"the rendezvous store, process {before.store_pid}, ended (killed by SIGKILL): it is started"
    )


def test_when_the_parent_of_the_ranks_is_killed_the_job_is_over_and_that_is_said(
    warm: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Launcher(job(tmp_path, restart_delay_seconds=0.0)) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        processes = all_processes(launcher)
        os.kill(processes[0], signal.SIGKILL)
        assert launcher.wait(200) == 1
        eventually(lambda: not any(exists(pid) for pid in processes[1:]), "a rank is left")
    (said,) = [one for one in caplog.messages if "the parent of all ranks" in one]
    assert "ended (killed by SIGKILL), and they with it: the job is over" in said


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    description = tmp_path / "job.description.json"
    description.write_text(
        json.dumps(
            {
                "job_id": "foreground",
                "entry_point": "launched_ranks:until_told",
                "layout": {"num_blocks": 2, "tensor": 1, "pipeline": 1, "data": 2, "num_micro_batches": 2},
                "python_path": [ENTRY_POINTS],
            }
        )
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENKEEL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "evenkeel.trainer_sdk.launcher", str(description), "--run-dir", str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
    )
    # Nobody reads what it says, which must not matter to the job.
    assert process.stdout is not None
    process.stdout.close()
    yield process
    process.kill()
    process.wait()


def started_processes(run_dir: Path) -> list[int]:
    """All of a job, once its file names them: a rank may be further than the news of it."""

    def named() -> list[int]:
        state = read_run_state(run_dir)
        return [state.zygote_pid, *(process.pid for process in state.ranks)]

    eventually((run_dir / "job.json").exists, "no state of the job")
    eventually(lambda: all(named()), "the launcher does not hear of all ranks")
    return named()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_the_supervisor_ends_no_process_is_left(
    supervisor: "subprocess.Popen[bytes]", tmp_path: Path, number: int, status: int
) -> None:
    for name in ("rank-0-0", "rank-1-0"):
        eventually((tmp_path / name).exists, f"{name} does not appear")
    processes = started_processes(tmp_path)
    supervisor.send_signal(number)
    assert supervisor.wait(100) == status
    eventually(lambda: not any(exists(pid) for pid in processes), "a process is left")


def test_a_job_that_finishes_ends_its_supervisor_with_success_though_nobody_reads_its_output(
    supervisor: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    eventually((tmp_path / "rank-1-0").exists, "rank 1 does not start")
    (tmp_path / "finish").touch()
    assert supervisor.wait(200) == 0


def test_a_slow_device_slows_down_at_once_and_a_hanging_one_goes_on_when_released(warm: None, tmp_path: Path) -> None:
    with Launcher(job(tmp_path)) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        inject.slow(tmp_path, 1, 0.5)
        inject.hang(tmp_path, 0)
        speeds = SpeedTable(launcher.spec.speed_table_path)
        assert [speeds.speed(rank) for rank in (0, 1)] == [1.0, 0.5]

        def segments(rank: int) -> int:
            done = tmp_path / f"segments-{rank}"  # there once the rank has done its first one
            return int(done.read_text() or 0) if done.exists() else 0

        def stands_still() -> bool:
            before, others = segments(0), segments(1)
            eventually(lambda: segments(1) >= others + 5, "the slow rank does not work")
            return segments(0) == before

        eventually(stands_still, "the device does not hang")
        (tmp_path / "finish").touch()
        eventually(lambda: 1 not in launcher.pids, "the slow rank does not finish")
        assert 0 in launcher.pids, "a hanging rank cannot finish"
        inject.cont(tmp_path, 0)
        assert launcher.wait(200) == 0
        with pytest.raises(ValueError, match="rank 7 is not in"):
            inject.slow(tmp_path, 7, 0.5)


def test_a_stop_does_not_wait_for_a_start_that_still_loads_its_libraries(tmp_path: Path) -> None:
    launcher = Launcher(job(tmp_path, job_token="a-token-of-this-job"))
    with ThreadPoolExecutor(max_workers=1) as pool:
        starting = pool.submit(launcher.start)
        eventually(lambda: launcher._link is not None, "no zygote")
        zygote_pid = launcher._link.pid
        launcher.stop()
        with pytest.raises(RuntimeError, match="did not start"):
            starting.result(timeout=60)
    assert not os.path.exists(f"/proc/{zygote_pid}")


class ListeningFleet(scheduler_pb2_grpc.FleetServiceServicer):
    """A fleet API that takes everything in."""

    def __init__(self) -> None:
        self.ranks: queue.Queue[scheduler_pb2.RegisterRanksRequest] = queue.Queue()
        self.exits: queue.Queue[scheduler_pb2.RankExit] = queue.Queue()
        self.failures: queue.Queue[str] = queue.Queue()

    def RegisterJob(  # noqa: N802
        self, request: scheduler_pb2.RegisterJobRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.RegisterJobResponse:
        assert ("authorization", "Bearer fleet-token") in context.invocation_metadata()
        return scheduler_pb2.RegisterJobResponse()

    def RegisterRanks(  # noqa: N802
        self, request: scheduler_pb2.RegisterRanksRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.RegisterRanksResponse:
        self.ranks.put(request)
        return scheduler_pb2.RegisterRanksResponse()

    def ReportExits(  # noqa: N802
        self, request: scheduler_pb2.ReportExitsRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.ReportExitsResponse:
        assert ("authorization", "Bearer a-token-of-this-job") in context.invocation_metadata()
        for one in request.exits:
            self.exits.put(one)
        return scheduler_pb2.ReportExitsResponse()

    def FinishJob(  # noqa: N802
        self, request: scheduler_pb2.FinishJobRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.FinishJobResponse:
        self.failures.put(request.failure)
        return scheduler_pb2.FinishJobResponse()


@pytest.fixture
def listening() -> Iterator[tuple[ListeningFleet, int]]:
    fleet, server = ListeningFleet(), grpc.server(ThreadPoolExecutor(max_workers=4))
    scheduler_pb2_grpc.add_FleetServiceServicer_to_server(fleet, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield fleet, port
    server.stop(None).wait(5)


def registered_launcher(run_dir: Path, port: int, entry_point: str = "launched_ranks:until_told") -> Launcher:
    block = BlockCost(forward_flops_per_token=1, forward_flops_per_squared_length=1)
    spec = job(run_dir, job_token="a-token-of-this-job", fleet_address=f"127.0.0.1:{port}", fleet_token="fleet-token")
    return Launcher(replace(spec, entry_point=entry_point), ModelSpec(blocks=(block, block)))


def test_an_evicted_rank_leaves_although_its_device_hangs(
    warm: None, tmp_path: Path, listening: tuple[ListeningFleet, int]
) -> None:
    fleet, port = listening
    with registered_launcher(tmp_path, port) as launcher:
        registered, *_ = fleet.ranks.get(timeout=100).processes
        wait_for_ranks(launcher, f"{registered.rank}-0")
        inject.hang(tmp_path, registered.rank)
        with grpc.insecure_channel(registered.address) as channel:
            stub = control_pb2_grpc.RankControlServiceStub(channel)
            metadata = (("authorization", "Bearer a-token-of-this-job"),)
            request = control_pb2.InterruptRequest(job_id="launched", epoch=0, leave=True)
            stub.Interrupt(request, timeout=60, metadata=metadata)
        wait_for_end(tmp_path, registered.rank, EXIT_EVICTED)


def test_the_fleet_api_hears_how_ranks_ended_and_why_the_job_failed(
    warm: None, tmp_path: Path, listening: tuple[ListeningFleet, int]
) -> None:
    fleet, port = listening
    with registered_launcher(tmp_path, port) as launcher:
        wait_for_ranks(launcher, "0-0", "1-0")
        inject.kill(tmp_path, 0)
        killed = fleet.exits.get(timeout=100)
        assert (killed.rank, killed.incarnation, killed.code, killed.signal, killed.last_line) == (0, 0, 0, 9, "")
        (tmp_path / "fail-1").touch()
        failed = fleet.exits.get(timeout=100)
        assert (failed.rank, failed.code, failed.last_line) == (1, 1, "RuntimeError: told to fail")
        assert launcher.wait(100) == 1
    assert fleet.failures.get(timeout=100) == "exit status 1: RuntimeError: told to fail"
    assert not list(tmp_path.glob("last-words-*"))


def test_a_wrong_import_is_told_for_every_rank_though_none_was_born(
    warm: None, tmp_path: Path, listening: tuple[ListeningFleet, int]
) -> None:
    fleet, port = listening
    launcher = registered_launcher(tmp_path, port, "no_such_module:train")
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        launcher.start()
    told = [fleet.exits.get(timeout=100) for _ in range(2)]
    assert sorted(one.rank for one in told) == [0, 1]
    assert {one.last_line for one in told} == {"ModuleNotFoundError: No module named 'no_such_module'"}
    assert "No module named" in fleet.failures.get(timeout=100)
