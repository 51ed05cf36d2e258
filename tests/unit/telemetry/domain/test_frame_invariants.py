"""What holds for frames however samples come."""

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.telemetry.domain.joiner import FrameJoiner
from tests.unit.telemetry.joining import Seen, add, add_all, seen, settled_joiner
from tests.unit.telemetry.samples import Sample, sample


@st.composite
def journeys(draw: st.DrawFn) -> tuple[int, int, list[Sample], set[tuple[int, int]]]:
    """Ranks, iterations, an interleaving that keeps each rank's order, and the (rank, iteration) that are lost."""
    num_ranks = draw(st.integers(1, 5))
    num_iterations = draw(st.integers(1, 8))
    pairs = [(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)]
    lost = draw(st.sets(st.sampled_from(pairs), max_size=4))
    queues: dict[int, list[Sample]] = defaultdict(list)
    for rank, iteration in pairs:
        if (rank, iteration) not in lost:
            # A record that is sent again comes right after itself or later, but never out of its rank's order.
            copies = draw(st.integers(1, 2))
            queues[rank].extend([sample(rank, iteration)] * copies)
    order: list[Sample] = []
    # The vote keeps ranks at most one iteration apart; transport may lag a little more.
    while any(queues.values()):
        slowest = min(queue[0].iteration for queue in queues.values() if queue)
        ready = [rank for rank, queue in queues.items() if queue and queue[0].iteration <= slowest + 2]
        order.append(queues[draw(st.sampled_from(ready))].pop(0))
    return num_ranks, num_iterations, order, lost


@settings(max_examples=300, deadline=None)
@given(journeys())
def test_however_samples_interleave_each_complete_frame_closes_once_and_in_order(
    journey: tuple[int, int, list[Sample], set[tuple[int, int]]],
) -> None:
    num_ranks, num_iterations, order, lost = journey
    joiner = settled_joiner(num_ranks)
    shifted = [each._replace(iteration=each.iteration + 2) for each in order]
    closed = add_all(joiner, shifted, 1.0)
    closed += seen(joiner.tick(1e6))
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    joined = [(rank, each.iteration - 2) for each in closed for rank in each.ranks]
    assert len(joined) == len(set(joined))
    arrived = {(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)} - lost
    assert set(joined) == arrived
    for frame in closed:
        iteration = frame.iteration - 2
        assert set(frame.ranks) == {rank for rank in range(num_ranks) if (rank, iteration) not in lost}
        gone_missing = {rank for rank in range(num_ranks) if (rank, iteration) in lost}
        assert set(frame.missing) == gone_missing


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=60))
def test_whatever_comes_no_sample_is_used_twice_and_frames_never_go_back(
    arrivals: list[tuple[int, int, int, bool]],
) -> None:
    joiner = FrameJoiner()
    closed: list[Seen] = []
    for index, (rank, iteration, epoch, dies) in enumerate(arrivals):
        now_seconds = index * 0.05
        closed += add_all(joiner, [sample(rank, iteration, epoch=epoch)], now_seconds)
        if dies:
            closed += seen(joiner.gone(rank, 0, now_seconds))
        closed += seen(joiner.tick(now_seconds))
    closed += seen(joiner.tick(1e6))
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    used = [(rank, each.epoch, each.iteration) for each in closed for rank in each.ranks]
    assert len(used) == len(set(used))
    assert all(not set(each.ranks) & set(each.missing) for each in closed)
    assert joiner.oldest_offset is None


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[str, list[Sample]]]:
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
def test_what_comes_together_makes_frames_at_least_as_whole_as_one_by_one(
    batches: list[tuple[str, list[Sample]]],
) -> None:
    together, one_by_one, now_seconds = FrameJoiner(), FrameJoiner(), 100.0
    at_once: list[Seen] = []
    singly: list[Seen] = []
    for what, samples in batches:
        now_seconds += 1.0 if what == "long tick" else 0.05
        at_once += seen(add(together, samples, now_seconds))
        singly += add_all(one_by_one, samples, now_seconds)
        if what == "death":
            gone = samples[0].rank, samples[0].incarnation
            at_once += seen(together.gone(*gone, now_seconds))
            singly += seen(one_by_one.gone(*gone, now_seconds))
        elif "tick" in what:
            at_once += seen(together.tick(now_seconds))
            singly += seen(one_by_one.tick(now_seconds))
    at_once += seen(together.tick(1e6))
    singly += seen(one_by_one.tick(1e6))
    keys = [(each.epoch, each.iteration) for each in at_once]
    assert keys == sorted(set(keys))
    whole = {(each.epoch, each.iteration): set(each.ranks) for each in at_once}
    if not (together.num_restarts or one_by_one.num_restarts or one_by_one.num_superseded):
        for each in singly:
            assert set(each.ranks) <= whole[each.epoch, each.iteration]
    assert sum(together.outcomes.values()) == sum(one_by_one.outcomes.values())


@settings(max_examples=100, deadline=None)
@given(crowds(), st.randoms())
def test_frames_hold_what_each_rank_measured(batches: list[tuple[str, list[Sample]]], random: Random) -> None:
    joiner, closed = FrameJoiner(), []
    told: dict[tuple[int, ...], set[float]] = defaultdict(set)
    for _, samples in batches:
        marked = [each._replace(wall_seconds=random.randrange(64) / 64) for each in samples]
        for each in marked:
            told[each.rank, each.incarnation, each.epoch, each.iteration].add(each.wall_seconds)
        closed += add(joiner, marked, 1.0)
    closed += joiner.tick(1e6)
    for frames in closed:
        for place, column in zip(*frames.present.nonzero(), strict=True):
            rank, incarnation = int(frames.members.rank[column]), int(frames.members.incarnation[column])
            assert frames.members.devices[column] == f"device-{rank}"
            key = (rank, incarnation, frames.epoch, int(frames.iteration[place]))
            assert frames.wall_seconds[place, column] in told[key]
