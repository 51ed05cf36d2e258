"""What is told with advice never leads to a plan: workload, input, pauses and wrong numbers are nobody's illness."""

import pytest

from evenkeel.services.detector.domain.findings.verdict import VerdictKind
from evenkeel.services.scheduler.domain.job_state import PlanNeed
from evenkeel.services.scheduler.domain.transitions import on_verdict
from tests.unit.detector.synthetic import REPORT_ONLY
from tests.unit.scheduler.domain.test_transitions import fresh_job, verdict


@pytest.mark.parametrize("kind", sorted(REPORT_ONLY))
def test_a_report_opens_no_incident_and_asks_for_no_plan(kind: VerdictKind) -> None:
    before = fresh_job()
    transition = on_verdict(before, verdict(kind, 3, throughput=0.6))
    assert transition.records == ()
    assert transition.job.incidents == before.incidents == ()
    assert transition.job.need is before.need is PlanNeed.NONE
    assert transition.job.ranks == before.ranks
