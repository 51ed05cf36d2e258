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
@pytest.mark.parametrize("read_at_seconds", [None, 5000.0], ids=["as it comes", "all at once, later"])
async def test_whoever_reads_late_says_what_was_so_then(read_at_seconds: float | None) -> None:
    service = Service()
    service.read_at_seconds = read_at_seconds
    await service.handler.assigned([PARTITION])
    for iteration in range(12):
        # Rank 1 is silent from its sixth iteration on, and rank 0 goes on.
        ranks = [0, 1] if iteration < 5 else [0]
        await service.report(iteration, *ranks)
        await service.iteration(*((rank, 0, iteration) for rank in ranks))
    frames = service.frames()
    assert [(frame.iteration, frame.ranks, frame.missing) for frame in frames[:8]] == [
        *((iteration, [0, 1], []) for iteration in range(5)),
        *((iteration, [0], [1]) for iteration in range(5, 8)),
    ]
    pictures = [each.liveness for each in service.sent if each.HasField("liveness")]
    assert pictures
    assert all(picture.seconds_since_heard[1] < 12.0 for picture in pictures)


@pytest.mark.asyncio
async def test_ranks_that_are_back_later_than_kafka_are_in_no_picture_until_they_are() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.report(iteration, 0, 1, 2)
        await service.iteration(*((rank, 0, iteration) for rank in range(3)))
    await service.kafka_goes_for(20.0)
    # Rank 0 is back before the others, and stands still then.
    await service.report(5, 0)
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
    await service.kafka_goes_for(20.0)
    if group_is_new:
        await service.handler.revoked([PARTITION])
        await service.handler.assigned([PARTITION])
        back_at_seconds, service.now = service.now, service.now - 20.0
        await service.iteration((0, 0, 5))  # read again, with the time at which it came
        service.now = back_at_seconds
    await service.report(5, 0)
    await service.pass_time(5.0)
    await service.iteration((1, 0, 5), (2, 0, 5))
    assert service.frames()[-1][1:] == (5, [0, 1, 2], [])


@pytest.mark.asyncio
async def test_a_long_outage_ends_no_window_of_a_rank_that_is_back_soon() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(5):
        await service.iteration((0, 0, iteration))
    await service.kafka_goes_for(100.0)
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
    service.seconds_to_send = 0.0
    await service.iteration((0, 0, 5))
    await service.pass_time(13.0)  # while Kafka took half a minute to answer ranks may have lost their way to it, too
    assert service.frames()[-1][1:] == (5, [0], [1])
