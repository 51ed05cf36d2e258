"""``make test-compose``: the unmodified docker-compose.yml, brought up, used from outside, and taken down.

A job of 8 ranks runs on this machine, talks to Kafka and the fleet API through the published ports, and is slowed down.
Then the verdict, the applied plan and the SQL history are looked for. Needs Docker with the compose plugin.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import psycopg

from evenkeel.cli.fleet.client import FleetClient
from evenkeel.scheduler.v1 import scheduler_pb2
from evenkeel.stack.processes.ports import LOOPBACK, free_ports
from evenkeel.trainer_sdk.launcher.inject import slow

ROOT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_SECONDS = 1800
STOP_TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.5
SLOW_RANK, SLOW_SPEED = 3, 0.5
# The detector learns first; then a slow device must be seen.
LEARNING_ITERATIONS = 40
JOB_ID = "compose-test"
Answer = TypeVar("Answer")


class FailedError(Exception):
    """Something that should have happened did not."""


def main() -> int:
    """Runs the test; returns the exit status."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        print("test-compose needs Docker with the compose plugin: docker compose version fails", file=sys.stderr)
        return 3
    try:
        with composed() as (environment, database_url):
            client = FleetClient(environment["EVENKEEL_FLEET_ADDRESS"], environment["EVENKEEL_FLEET_TOKEN"])
            with running_job(environment) as run_dir:
                check_repair(client, database_url, run_dir)
            client.close()
    except (FailedError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("compose: 1 passed")
    return 0


@contextmanager
def composed() -> Iterator[tuple[dict[str, str], str]]:
    """Brings the stack up on free ports; yields the settings of a client outside and the database's address."""
    kafka_port, database_port, *fleet_ports = free_ports(4)
    fleet_address = ",".join(f"{LOOPBACK}:{port}" for port in fleet_ports)
    password, token = secrets.token_urlsafe(18), secrets.token_urlsafe(24)
    # The compose file's own settings only: nothing of the caller's may leak in.
    shell = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    settings = {
        "EVENKEEL_KAFKA_PORT": str(kafka_port),
        "EVENKEEL_DATABASE_PORT": str(database_port),
        "EVENKEEL_FLEET_PORT": str(fleet_ports[0]),
        "EVENKEEL_SECOND_FLEET_PORT": str(fleet_ports[1]),
        "EVENKEEL_DATABASE_PASSWORD": password,
        "EVENKEEL_FLEET_TOKEN": token,
    }
    compose = ["docker", "compose", "--project-name", f"evenkeel-test-{secrets.token_hex(4)}"]

    def run(*arguments: str) -> None:
        subprocess.run(
            [*compose, *arguments], cwd=ROOT, env={**shell, **settings}, check=True, timeout=UP_TIMEOUT_SECONDS
        )

    try:
        # Not --wait: some versions take a one-shot service that has done its work for one that failed.
        run("up", "--detach", "--build")
        client = FleetClient(fleet_address, token)
        wait_for("the fleet API through its published ports", lambda: fleet_answers(client), timeout_seconds=180)
        client.close()
        yield (
            {
                "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": f"localhost:{kafka_port}",
                "EVENKEEL_FLEET_ADDRESS": fleet_address,
                "EVENKEEL_FLEET_TOKEN": token,
            },
            f"postgresql://evenkeel:{password}@{LOOPBACK}:{database_port}/evenkeel",
        )
    except BaseException:
        run("ps", "--all")
        run("logs", "--tail", "30")
        raise
    finally:
        run("down", "--volumes", "--timeout", "20")


@contextmanager
def running_job(environment: dict[str, str]) -> Iterator[Path]:
    """The example job on this machine, with controllers that the scheduler's container can reach."""
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-compose-"))
    job = json.loads((ROOT / "examples" / "hybrid" / "job.json").read_text())
    # Half as fast: this machine has to keep the speeds of devices, or the history rightly says something else.
    job["flops_per_second"] /= 2
    job |= {"controller_bind_host": "0.0.0.0", "controller_advertise_host": "host.docker.internal"}
    (folder / "description.json").write_text(json.dumps({**job, "job_id": JOB_ID}))
    command = [sys.executable, "-m", "evenkeel.trainer_sdk.launcher", str(folder / "description.json")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    launcher = subprocess.Popen([*command, "--run-dir", str(folder / "run")], env={**clean, **environment})
    try:
        yield folder / "run"
        if launcher.poll() is not None:
            raise FailedError(f"the job ended by itself with status {launcher.returncode}")
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(STOP_TIMEOUT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def check_repair(client: FleetClient, database_url: str, run_dir: Path) -> None:
    """Slows a rank and follows it: verdict, plan, applied, in the API and in the history."""
    wait_for("eight registered ranks", lambda: sum(rank.alive for rank in ranks(client)) == 8, timeout_seconds=120)
    # Rollups cover iterations, so they say from outside how far the job is.
    wait_for(
        "a job that the detector knows", lambda: iterations(database_url) >= LEARNING_ITERATIONS, timeout_seconds=300
    )
    if list(client.incidents(JOB_ID)):
        raise FailedError("there was an incident before anything was done to the job")
    slow(run_dir, SLOW_RANK, SLOW_SPEED)
    plan = wait_for("an applied plan", lambda: applied_plan(client), timeout_seconds=180)
    with psycopg.connect(database_url) as connection:
        accused = connection.execute(
            "SELECT c.rank, v.throughput FROM verdicts v JOIN verdict_culprits c USING (verdict_id) "
            "WHERE v.job_id = %s AND v.kind = 'compute_slow' ORDER BY v.decided_at LIMIT 1",
            (JOB_ID,),
        ).fetchone()
        states = connection.execute(
            "SELECT array_agg(state ORDER BY at) FROM plan_events WHERE plan_id = %s", (plan.plan_id,)
        ).fetchone()
    if accused is None or accused[0] != SLOW_RANK or abs(accused[1] - SLOW_SPEED) > 0.1 * SLOW_SPEED:
        raise FailedError(f"the history accuses {accused} instead of rank {SLOW_RANK} at {SLOW_SPEED}")
    if states is None or states[0][:3] != ["proposed", "committed", "applied"]:
        raise FailedError(f"the history of plan {plan.plan_id} is {states}")
    print(f"rank {accused[0]} found at {accused[1]:.3f}; plan {plan.plan_id}: {' -> '.join(states[0])}")
    print(client.explain_plan(plan.plan_id).text)


def ranks(client: FleetClient) -> list[scheduler_pb2.Rank]:
    """Ranks of the job as the fleet API knows them."""
    return [rank for job in client.jobs() if job.job_id == JOB_ID for rank in job.ranks]


def applied_plan(client: FleetClient) -> scheduler_pb2.Plan | None:
    """The newest plan that every rank runs."""
    done = (scheduler_pb2.PLAN_STATE_APPLIED, scheduler_pb2.PLAN_STATE_MEASURED)
    return next((plan for plan in client.plans(JOB_ID) if plan.state in done), None)


def iterations(database_url: str) -> int:
    """Iterations of the job that the history has summed up."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT max(stop_iteration) FROM rank_rollups WHERE job_id = %s", (JOB_ID,)).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def fleet_answers(client: FleetClient) -> bool:
    """Whether the fleet API answers."""
    try:
        list(client.jobs())
    except grpc.RpcError:
        return False
    return True


def wait_for(what: str, ask: Callable[[], Answer | None], *, timeout_seconds: float) -> Answer:
    """Asks until the answer is true; returns it."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise FailedError(f"waited {timeout_seconds:.0f} s for {what}")
        time.sleep(POLL_SECONDS)
    print(f"ok: {what}", flush=True)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
