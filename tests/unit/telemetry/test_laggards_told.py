"""A rank that falls behind its peers is told: a line in the log, a metric, and a line when it is back."""

import pytest
from structlog.testing import capture_logs

from tests.unit.telemetry.handled import PARTITION, Service


@pytest.mark.asyncio
async def test_who_starts_over_while_the_others_go_on_is_told_once_and_again_when_it_has_caught_up() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(60):
        await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 0, iteration))
    with capture_logs() as told:
        for iteration in range(60, 90):
            await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 1, iteration - 60))
        (warning,) = told
        assert warning["log_level"] == "warning"
        assert "in no frame until it has caught up" in warning["event"]
        assert (warning["job_id"], warning["rank"], warning["incarnation"]) == ("job", 2, 1)
        assert warning["peers_at_iteration"] - warning["iteration"] in (59, 60)
        assert "index=" in warning["what_to_do"]
        assert service.num_behind == 1.0
        for iteration in range(90, 110):
            await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 1, iteration))
    assert [line["event"] for line in told[1:]] == ["a rank has caught up"]
    assert told[1]["late_samples"] == service.late() == 30
    assert service.num_behind == 0.0
    assert {(row.record.rank, row.record.incarnation) for row in service.rollups.rows} >= {(2, 0), (2, 1)}
