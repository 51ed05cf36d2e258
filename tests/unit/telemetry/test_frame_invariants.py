"""What holds for frames however samples come."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.telemetry.domain.frames import FrameJoiner
from evenkeel.services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from tests.unit.telemetry.blocks import block_of_arrived
from tests.unit.telemetry.joining import add_all, ranks_of, settled_joiner
from tests.unit.telemetry.samples import sample


@st.composite
def journeys(draw: st.DrawFn) -> tuple[int, int, list[ArrivedSample], set[tuple[int, int]]]:
    """Ranks, iterations, an interleaving that keeps each rank's order, and the (rank, iteration) that are lost."""
    num_ranks = draw(st.integers(1, 5))
    num_iterations = draw(st.integers(1, 8))
    pairs = [(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)]
    lost = draw(st.sets(st.sampled_from(pairs), max_size=4))
    queues: dict[int, list[ArrivedSample]] = defaultdict(list)
    for rank, iteration in pairs:
        if (rank, iteration) not in lost:
            # A record that is sent again comes right after itself or later, but never out of its rank's order.
            copies = draw(st.integers(1, 2))
            queues[rank].extend([sample(rank, iteration)] * copies)
    order: list[ArrivedSample] = []
    # The vote keeps ranks at most one iteration apart; transport may lag a little more.
    while any(queues.values()):
        slowest = min(queue[0].iteration for queue in queues.values() if queue)
        ready = [rank for rank, queue in queues.items() if queue and queue[0].iteration <= slowest + 2]
        order.append(queues[draw(st.sampled_from(ready))].pop(0))
    return num_ranks, num_iterations, order, lost


@settings(max_examples=300, deadline=None)
@given(journeys())
def test_however_samples_interleave_each_complete_frame_closes_once_and_in_order(
    journey: tuple[int, int, list[ArrivedSample], set[tuple[int, int]]],
) -> None:
    num_ranks, num_iterations, order, lost = journey
    joiner = settled_joiner(num_ranks)
    shifted = [each._replace(iteration=each.iteration + 2) for each in order]
    closed = add_all(joiner, shifted, 1.0)
    while tail := joiner.tick(1e6):
        closed += tail
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    seen = [(entry.rank, entry.iteration - 2) for each in closed for entry in each.entries]
    assert len(seen) == len(set(seen))
    arrived = {(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)} - lost
    assert set(seen) == arrived
    for frame in closed:
        iteration = frame.iteration - 2
        assert set(ranks_of(frame)) == {rank for rank in range(num_ranks) if (rank, iteration) not in lost}
        gone_missing = {rank for rank in range(num_ranks) if (rank, iteration) in lost}
        assert set(frame.missing_ranks) == gone_missing


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=60))
def test_whatever_comes_no_sample_is_used_twice_and_frames_never_go_back(
    arrivals: list[tuple[int, int, int, bool]],
) -> None:
    joiner = FrameJoiner()
    closed: list[ClosedFrame] = []
    for index, (rank, iteration, epoch, dies) in enumerate(arrivals):
        now_seconds = index * 0.05
        closed += joiner.add(sample(rank, iteration, epoch=epoch), now_seconds)
        if dies:
            closed += joiner.gone(rank, 0, now_seconds)
        closed += joiner.tick(now_seconds)
    closed += joiner.tick(1e6)
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    used = [(entry.rank, entry.epoch, entry.iteration) for each in closed for entry in each.entries]
    assert len(used) == len(set(used))
    assert all(not set(ranks_of(each)) & set(each.missing_ranks) for each in closed)
    assert joiner.oldest_offset is None


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[str, list[ArrivedSample]]]:
    """Batches of samples as a job of many ranks sends them, nearly in order, with deaths and passing time between."""
    told, incarnations = [], [0] * 8
    num_ranks, num_iterations = draw(st.integers(5, 8)), draw(st.integers(3, 6))
    # What is odd about a few of the samples, by number.
    odd = draw(
        st.dictionaries(st.integers(0, 47), st.sampled_from(["later", "early", "again", "lost", "twice"]), max_size=4)
    )
    newer_epoch_from = draw(st.sampled_from([3, 9, 9, 9]))
    for iteration in range(num_iterations):
        for rank in draw(st.permutations(range(num_ranks))):
            oddity = odd.get(iteration * num_ranks + rank)
            incarnations[rank] += oddity == "again"
            for _ in range({"lost": 0, "twice": 2}.get(oddity or "", 1)):
                told.append(
                    sample(
                        rank,
                        max(0, iteration + (oddity == "early") - (oddity == "later")),
                        epoch=int(iteration >= newer_epoch_from),
                        incarnation=incarnations[rank],
                        offset=len(told),
                    )
                )
    if draw(st.booleans()):  # ranks tell several iterations at once
        at_once = draw(st.integers(2, 4))
        told = sorted(told, key=lambda each: (each.iteration // at_once, each.rank))
    batches = []
    while told:
        size = draw(st.integers(1, 40))
        what = draw(st.sampled_from(["samples"] * 8 + ["tick", "long tick", "death"]))
        batches.append((what, told[:size]))
        told = told[size:]
    return batches


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_samples_that_come_together_make_the_frames_of_samples_one_by_one(
    batches: list[tuple[str, list[ArrivedSample]]],
) -> None:
    together, one_by_one, now_seconds = FrameJoiner(), FrameJoiner(), 100.0
    for what, samples in batches:
        now_seconds += 1.0 if what == "long tick" else 0.05
        block = block_of_arrived(samples)
        at_once = together.add_rows(block, 0, len(samples), now_seconds)
        assert at_once == add_all(one_by_one, block.samples(0, len(samples)), now_seconds)
        if what == "death":
            gone = samples[0].rank, samples[0].incarnation
            assert together.gone(*gone, now_seconds) == one_by_one.gone(*gone, now_seconds)
        elif "tick" in what:
            assert together.tick(now_seconds) == one_by_one.tick(now_seconds)
        assert together.outcomes == one_by_one.outcomes
        assert together.oldest_offset == one_by_one.oldest_offset
    assert together.tick(1e6) == one_by_one.tick(1e6)
