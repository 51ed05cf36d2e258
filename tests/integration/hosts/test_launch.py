"""``evenkeel launch``: ranks are replaced, agents may die, and what a script ends with is said."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from tests.integration.hosts.agents import Agents
from tests.integration.hosts.network import Network, why_not
from tests.integration.replicas.torchruns import LAST_PLACE, ROOT, children_of, train_alone
from tests.warm import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

STEPS = 60
SCRIPT = str(ROOT / "examples" / "replicas" / "ddp.py")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_ranks_that_die_and_hang_are_replaced_and_an_agent_dies_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", str(STEPS))
    monkeypatch.setenv("PAUSE", "0.3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("EVENKEEL_HANG_SECONDS", "4")
    wanted = train_alone("replicas/ddp.py")
    agents = Agents(Network(3), 2, SCRIPT)
    try:
        agents.until(lambda: any(step == 10 for _, step, _ in agents.lines))
        os.kill(children_of(agents.pids[1])[-1], signal.SIGKILL)
        agents.until(lambda: any("rank 3.0 ended: killed by SIGKILL" in line for line in agents.output))
        agents.until(lambda: agents.output.count("replica 3: begins\n") >= 2)
        agents.until(lambda: any(replica == 3 for replica, _, _ in agents.lines[-6:]))
        os.kill(children_of(agents.pids[2])[-1], signal.SIGSTOP)
        agents.until(lambda: any("rank 5.0 ended: killed by SIGKILL" in line for line in agents.output))
        agents.until(lambda: agents.output.count("replica 5: begins\n") >= 2)
        agents.kill(0)
        seen = len(agents.lines)
        agents.until(lambda: len(agents.lines) > seen)
        agents.start(0)
        assert [agents.wait(host) for host in (0, 1, 2)] == [0, 0, 0], "".join(agents.output[-40:])
        agents.join()
        finished = {replica for replica, step, _ in agents.lines if step == STEPS}
        # Where the machine is busy the others may be done before the agent that was started again has its ranks up.
        late = {each for each in (0, 1) if any(f"replica {each} ends: the job has" in line for line in agents.output)}
        assert finished | late == set(range(6)), "".join(agents.output[-40:])
        for _, step, loss in agents.lines:
            assert float(loss) == pytest.approx(wanted[step], rel=1e-5, abs=LAST_PLACE)
    finally:
        agents.close()


class Fleet(scheduler_pb2_grpc.FleetServiceServicer):
    """A fleet API that hears how processes end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, pb.RankExit]] = []

    def ReportExits(  # noqa: N802 - the contract's name
        self, request: pb.ReportExitsRequest, context: grpc.ServicerContext
    ) -> pb.ReportExitsResponse:
        assert ("authorization", "Bearer a-token-of-this-job") in context.invocation_metadata()
        self.heard += [(request.job_id, one) for one in request.exits]
        return pb.ReportExitsResponse()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    server, fleet = grpc.server(ThreadPoolExecutor(max_workers=2)), Fleet()
    scheduler_pb2_grpc.add_FleetServiceServicer_to_server(fleet, server)
    monkeypatch.setenv("EVENKEEL_FLEET_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    monkeypatch.setenv("EVENKEEL_JOB_TOKEN", "a-token-of-this-job")
    server.start()
    yield fleet
    server.stop(None).wait(5)


def test_what_a_script_ends_with_is_said_to_people_and_to_the_fleet_api(tmp_path: Path, fleet: Fleet) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "if os.environ['EVENKEEL_REPLICA'] == '0': raise SystemExit(3)\n"
        "if os.environ['EVENKEEL_REPLICA'] == '1': raise ValueError('no such data')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-m", "evenkeel.trainer_sdk.launcher.agent", "--nproc-per-node", "3"]
    command += ["--rdzv-id", "odd", "--max-restarts", "1", str(script)]
    agent = WarmProgram(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with agent.stdout as output:
        said = output.read()
    assert agent.wait() == 1
    assert "replica 1: rank 1.0 ended: exit status 1: ValueError: no such data" in said
    ends = {(0, 3, 0, ""), (1, 1, 0, "ValueError: no such data"), (2, 0, signal.SIGKILL, "")}
    told = {(job, one.rank, one.incarnation, one.code, one.signal, one.last_line) for job, one in fleet.heard}
    assert told == {("odd", rank, life, *rest) for rank, *rest in ends for life in (0, 1)}


def test_who_has_more_to_do_than_the_others_may_for_as_long_as_in_a_step(tmp_path: Path) -> None:
    script, program = tmp_path / "train.py", tmp_path / "program.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"started = pathlib.Path({str(tmp_path / 'started')!r})\n"
        "if os.environ['EVENKEEL_REPLICA'] == '1':\n"
        "    started.touch()\n"
        "    time.sleep(1.0)\n"
        "    print('saved', flush=True)\n"
        "    time.sleep(600.0)\n"
        "while not started.exists():\n"
        "    time.sleep(0.01)\n"
    )
    program.write_text(
        "import os\n"
        "from evenkeel.trainer_sdk.launcher.agent import __main__, agent\n"
        "agent.BEGIN_ANEW_SECONDS = 0.0\n"
        f"os._exit(__main__.main(['--nproc-per-node', '2', {str(script)!r}]))\n"
    )
    environment = {**os.environ, "EVENKEEL_HANG_SECONDS": "8"}
    command = [sys.executable, str(program)]
    agent = WarmProgram(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with agent.stdout as output:
        said = output.read()
    assert agent.wait() == 1
    assert said.startswith("saved\n"), said
    assert "rank 1.0 ended: killed by SIGKILL, 8 s after another replica had finished\n" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_hosts": 2}, "--rdzv-endpoint is missing"),
        ({"num_hosts": 2, "stores": ("nonsense",)}, "--rdzv-endpoint 'nonsense': expected host:port"),
        ({"num_hosts": 2, "host": 2, "stores": ("a:1",)}, "--node-rank 2: 0 to --nnodes - 1, which is 1"),
        ({"num_ranks": 3, "replica_size": 2}, "is no multiple of"),
        ({"num_hosts": 2, "stores": ("a:99999",)}, "--rdzv-endpoint 'a:99999': a port is at most 65535"),
        ({"num_hosts": 0}, "--nnodes 0: at least 1"),
        ({"num_ranks": 0}, "--nproc-per-node 0: at least 1"),
        ({"max_restarts": -1}, "--max-restarts -1: at least 0"),
        ({"script": "nothing.py"}, "there is no such file"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ScriptJob(**{"job_id": "job", "script": SCRIPT, **options})
