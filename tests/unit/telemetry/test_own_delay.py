"""A service that is behind with its work does not take that for the ranks' delay."""

import pytest

from tests.unit.telemetry.handled import PARTITION, Service


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds_to_send", [0.0, 30.0])
async def test_a_frame_does_not_lose_the_samples_that_wait_while_the_one_before_is_sent(seconds_to_send: float) -> None:
    service = Service(seconds_to_send=seconds_to_send)
    await service.handler.assigned([PARTITION])
    for iteration in range(3):
        await service.iteration((0, 0, iteration), (1, 0, iteration))
    for iteration in range(3, 20):
        # Rank 1's samples lie in the topic until the batch with the one before them is done.
        await service.iteration((0, 0, iteration), *([(1, 0, iteration - 1)] if iteration > 3 else []))
    frames = service.frames()
    assert [frame.iteration for frame in frames] == list(range(19))
    assert all(frame.ranks == [0, 1] and not frame.missing for frame in frames)


@pytest.mark.asyncio
async def test_ranks_that_are_back_later_than_kafka_are_in_no_picture_until_they_are() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.report(iteration, 0, 1, 2)
        await service.iteration(*((rank, 0, iteration) for rank in range(3)))
    service.handler.kafka_changed(False)
    service.now += 20.0
    # Rank 0 is heard before the service knows that Kafka is back, and stands still then.
    await service.report(5, 0)
    service.handler.kafka_changed(True)
    for _ in range(12):
        service.now += 0.5
        await service.report(5, 0)
        await service.handler.tick(service.now)
    pictures = [each.liveness.rank for each in service.sent if each.HasField("liveness")]
    assert pictures
    assert {rank for picture in pictures for rank in picture} == {0}


@pytest.mark.asyncio
@pytest.mark.parametrize("group_is_new", [False, True])
async def test_a_frame_that_was_open_when_kafka_went_waits_for_the_ranks_that_are_back_later(
    group_is_new: bool,
) -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.iteration(*((rank, 0, iteration) for rank in range(3)))
    await service.iteration((0, 0, 5))
    service.handler.kafka_changed(False)
    service.now += 20.0
    if group_is_new:
        service.handler.kafka_changed(True)
        await service.handler.revoked([PARTITION])
        await service.handler.assigned([PARTITION])
        await service.iteration((0, 0, 5))
    else:
        await service.report(5, 0)
        service.handler.kafka_changed(True)
    service.now += 5.0
    await service.handler.tick(service.now)
    await service.iteration((1, 0, 5), (2, 0, 5))
    assert service.frames()[-1][1:] == (5, [0, 1, 2], [])


@pytest.mark.asyncio
async def test_a_long_outage_ends_no_window_of_a_rank_that_is_back_soon() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.iteration((0, 0, iteration))
    service.handler.kafka_changed(False)
    service.now += 100.0
    service.handler.kafka_changed(True)
    await service.handler.tick(service.now)
    assert service.rollups.rows == []
    for iteration in range(5, 11):
        await service.iteration((0, 0, iteration))
    assert [(row.record.first_iteration, row.record.num_iterations) for row in service.rollups.rows] == [(0, 10)]


@pytest.mark.asyncio
async def test_a_rank_that_is_silent_while_the_service_listens_is_still_missing() -> None:
    service = Service(seconds_to_send=30.0)
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.iteration((0, 0, iteration), (1, 0, iteration))
    await service.iteration((0, 0, 5))
    for _ in range(3):
        service.now += 1.0
        await service.handler.tick(service.now)
    assert service.frames()[-1][1:] == (5, [0], [1])
