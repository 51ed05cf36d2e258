"""The examples for Slurm and Kubernetes, as far as they can be tried without either."""

import os
import subprocess
from pathlib import Path

import yaml

from evenkeel.trainer_sdk.groups.store.store_place import StorePlace
from tests.integration.replicas.torchruns import ROOT

_SCONTROL = "#!/bin/bash\nfor each in ${3//,/ }; do echo $each; done\n"
_SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do SLURM_NODEID=$node "$@"; done
"""
_TORCHRUN = """#!/bin/bash
echo "$EVENKEEL_JOB_ID $EVENKEEL_REPLICA of $EVENKEEL_NUM_REPLICAS at $EVENKEEL_STORE: ${@: -1}"
mkdir "$TRIED/$EVENKEEL_REPLICA" 2>/dev/null && exit 1  # each ends once before it has finished
exit 0
"""


def test_each_node_of_a_slurm_job_is_a_replica_that_is_started_again(tmp_path: Path) -> None:
    for name, text in {"scontrol": _SCONTROL, "srun": _SRUN, "torchrun": _TORCHRUN, "sleep": "#!/bin/bash\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for nodes, stores in {"a,b": "a:29400", "a,b,c,d": "a:29400,b:29400,c:29400"}.items():
        tried = tmp_path / nodes
        tried.mkdir()
        number = nodes.count(",") + 1
        settings = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "TRIED": str(tried),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": nodes,
            "SLURM_NNODES": str(number),
        }
        command = ["bash", str(ROOT / "examples/slurm/replicas.sbatch"), "train.py"]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        lines = [f"slurm-7 {each} of {number} at {stores}: train.py" for each in range(number) for _ in range(2)]
        assert done.stdout.splitlines() == lines


def test_the_stores_of_a_jobset_are_at_its_pods() -> None:
    jobset = yaml.safe_load((ROOT / "examples/kubernetes/replicas.yaml").read_text())
    (jobs,) = jobset["spec"]["replicatedJobs"]
    (container,) = jobs["template"]["spec"]["template"]["spec"]["containers"]
    settings = {each["name"]: each.get("value", "") for each in container["env"]}
    name = jobset["metadata"]["name"]
    # JobSet names a pod's host after the set, the replicated job, the job's index and the pod's in it.
    pods = [f"{name}-{jobs['name']}-{index}-0.{name}" for index in range(jobs["replicas"])]
    (port,) = [each["containerPort"] for each in container["ports"]]
    assert [(each.host, each.port) for each in StorePlace.all_of(settings["EVENKEEL_STORE"], name)] == [
        (pod, port) for pod in pods
    ]
    assert settings["EVENKEEL_NUM_REPLICAS"] == str(jobs["replicas"])
    assert f"--rdzv-endpoint=localhost:{port}" in container["command"]
