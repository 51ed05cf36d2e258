"""A link of a live job gets slow: the two ranks that share it are probed beside two others, and the verdict says so."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from layouts.layout import uniform_layout
from stack.paths import checkout_root
from stack.stack import Stack
from trainer_sdk.elastic.config import config_from_json
from trainer_sdk.elastic.model import model_spec
from trainer_sdk.launcher.inject import slow_link
from trainer_sdk.launcher.job_file import load_job
from trainer_sdk.launcher.launcher import Launcher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VICTIMS = (0, 1)
FACTOR = 6.0
HEALTHY_ITERATIONS = 50
PATIENCE_SECONDS = 240.0


@dataclass
class Run:
    """A stack with a job of four ranks, one of whose links is slow."""

    stack: Stack
    launcher: Launcher

    def iteration(self) -> int:
        note = self.launcher.progress.newest()
        return -1 if note is None else note.iteration

    def probes(self) -> list[tuple[Any, ...]]:
        """Evidence of probes of links, with the ranks that its verdict names."""
        with psycopg.connect(self.stack.addresses.database_url, connect_timeout=5) as connection:
            return connection.execute(
                "SELECT ARRAY(SELECT rank FROM verdict_culprits WHERE verdict_id = v.verdict_id ORDER BY rank), one "
                "FROM verdicts v, jsonb_array_elements(v.evidence::jsonb) one WHERE v.job_id = %s "
                "AND v.kind = 'communication_slow' AND one->>'name' = 'probe against a healthy link'",
                (self.launcher.spec.job_id,),
            ).fetchall()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < PATIENCE_SECONDS, f"waited in vain: {what}"
            assert self.launcher.wait(0.05) is None, "the job ended"


@pytest.fixture(scope="module")
def run(stack: Stack) -> Run:
    environment = {**stack.addresses.environment(), "EVENKEEL_JOB_ID": "link-probe"}
    spec, _ = load_job(checkout_root() / "examples/hybrid/job.json", environment, stack.folder / "link-probe")
    spec = replace(
        spec,
        layout=uniform_layout(num_blocks=8, tensor=1, pipeline=2, data=2, num_micro_batches=8),
        logs_to_files=True,
        flops_per_second=4 * spec.flops_per_second,
        link_bytes_per_second=1e8,
        link_latency_seconds=0.002,
    )
    with Launcher(spec, model_spec(config_from_json(spec.config))) as launcher:
        run = Run(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow_link(spec.run_dir, *VICTIMS, FACTOR)
        run.until(lambda: bool(run.probes()), "a verdict with a probe")
    return run


def test_the_verdict_names_the_link_and_holds_what_the_probe_found(run: Run) -> None:
    ranks, evidence = run.probes()[0]
    assert ranks == [*VICTIMS]
    assert 1.5 < evidence["value"] < FACTOR + 0.5
    assert "between ranks 0 and 1" in evidence["text"]
    assert "between ranks 2 and 3" in evidence["text"]
