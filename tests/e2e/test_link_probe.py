"""A link of a live job gets slow: the two ranks that share it are probed beside two others, and the verdict says so."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.model.model import model_spec_of
from evenkeel.trainer_sdk.launcher.inject import slow_link
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from tests.e2e.live_run import LiveRun, example_job, narrowed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

VICTIMS = (0, 1)
FACTOR = 6.0
HEALTHY_ITERATIONS = 50


@dataclass
class ProbedRun(LiveRun):
    """A job of four ranks, one of whose links is slow."""

    def probes(self) -> list[tuple[Any, ...]]:
        """Evidence of probes of links, with the ranks that its verdict names."""
        return self.ask(
            "SELECT ARRAY(SELECT rank FROM verdict_culprits WHERE verdict_id = v.verdict_id ORDER BY rank), one "
            "FROM verdicts v, jsonb_array_elements(v.evidence::jsonb) one WHERE v.job_id = %s "
            "AND v.kind = 'communication_slow' AND one->>'name' = 'probe against a healthy link'"
        )

    def of_victims(self) -> list[dict[str, Any]]:
        """Evidence of probes of the link that is slow; on a busy machine another one may be so too, for a while."""
        return [evidence for ranks, evidence in self.probes() if ranks == [*VICTIMS]]


@pytest.fixture(scope="module")
def run(stack: Stack) -> ProbedRun:
    spec = narrowed(example_job(stack, "link-probe"))
    spec = replace(
        spec,
        layout=uniform_layout(num_blocks=8, tensor=1, pipeline=2, data=2, num_micro_batches=8),
        flops_per_second=4 * spec.flops_per_second,
        link_bytes_per_second=1e8,
        link_latency_seconds=0.004,
    )
    with Launcher(spec, model_spec_of(spec.config)) as launcher:
        run = ProbedRun(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow_link(spec.run_dir, *VICTIMS, FACTOR)
        run.until(lambda: bool(run.of_victims()), "a verdict with a probe of the slow link")
    return run


def test_the_verdict_names_the_link_and_holds_what_the_probe_found(run: ProbedRun) -> None:
    evidence = run.of_victims()[0]
    # What a busy machine adds, it adds to both; what holds up one of them for a moment, to one.
    assert 1.3 < evidence["value"] < 2 * FACTOR
    assert "between ranks 0 and 1" in evidence["text"]
    assert "between ranks 2 and 3" in evidence["text"]
