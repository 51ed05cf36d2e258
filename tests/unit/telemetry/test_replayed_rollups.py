"""A restart, or a group that Kafka forms anew, makes the rows again that were not finished."""

import pytest

from evenkeel.services.telemetry.handler import ROLLUP_HOLD_RECORDS
from tests.unit.telemetry.handled import PARTITION, Service


@pytest.mark.asyncio
async def test_the_window_of_a_slow_job_is_whole_though_the_service_starts_again_in_the_middle_of_it() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(14):
        await service.iteration((0, 0, iteration), (1, 0, iteration))
        service.now += 20.0
    [first, _] = service.rollups.rows
    assert first.record.num_iterations == 10
    allowed = (await service.handler.checkpoint({PARTITION: service.offset}))[PARTITION]
    assert allowed == 20, "the open windows began with iteration 10"


@pytest.mark.asyncio
async def test_what_is_read_again_is_bounded() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    await service.iteration((0, 0, 0))
    service.offset += ROLLUP_HOLD_RECORDS
    service.now += 100.0
    await service.iteration((0, 0, 1))
    assert (await service.handler.checkpoint({PARTITION: service.offset}))[PARTITION] == service.offset
