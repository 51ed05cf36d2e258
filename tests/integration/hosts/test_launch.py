"""``evenkeel launch``: ranks are replaced, agents may die, and what a script ends with is said."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from tests.integration.hosts.agents import Agents
from tests.integration.hosts.network import Network, why_not
from tests.integration.replicas.torchruns import LAST_PLACE, ROOT, children_of, train_alone

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
        assert {replica for replica, step, _ in agents.lines if step == STEPS} == set(range(6))
        for _, step, loss in agents.lines:
            assert float(loss) == pytest.approx(wanted[step], rel=1e-5, abs=LAST_PLACE)
    finally:
        agents.close()


def test_what_a_script_ends_with_is_said(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nif os.environ['EVENKEEL_REPLICA'] == '1': raise ValueError('no such data')\n")
    command = [sys.executable, "-m", "evenkeel.trainer_sdk.launcher.agent", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--max-restarts", "0", str(script)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "replica 1: rank 1.0 ended: exit status 1: ValueError: no such data" in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_hosts": 2}, "--rdzv-endpoint is missing"),
        ({"num_hosts": 2, "stores": ("nonsense",)}, "--rdzv-endpoint nonsense: expected host:port"),
        ({"num_hosts": 2, "host": 2, "stores": ("a:1",)}, "--node-rank 2: 0 to --nnodes - 1, which is 1"),
        ({"num_ranks": 3, "replica_size": 2}, "is no multiple of"),
        ({"script": "nothing.py"}, "there is no such file"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ScriptJob(**{"job_id": "job", "script": SCRIPT, **options})
