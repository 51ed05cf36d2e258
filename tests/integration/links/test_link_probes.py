"""Probes of links between real ranks on gloo: what they tell, and that nobody ever waits alone for one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_state import LinkProbe
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, LinkTable
from tests.integration.elastic.fleet import Fleet
from tests.integration.elastic.rank_process import ANY
from tests.integration.elastic.reshapes.test_reshape import (
    UNIFORM,
    assert_as_if_nothing_happened,
    config,
    replica,
    stage,
    without,
)

pytestmark = pytest.mark.integration

NUM_BYTES = 100_000
# Tensor parallel pairs of different replicas: each has a group of two.
SUSPECT, PEER = (0, 1), (4, 5)
# One group of four, so that no two ranks have a group of their own.
FOUR = uniform_layout(num_blocks=4, tensor=1, pipeline=1, data=4, num_micro_batches=4)
THREE = Layout(num_blocks=4, replicas=tuple(replica(n, stage(0, 4, (rank,))) for rank, n in enumerate((2, 1, 1))))


def ask(fleet: Fleet, links: Sequence[tuple[int, int]], *, probe_id: int = 7, of: int | None = None) -> None:
    """Ask both ends of each link; ``of`` is how many they are told that there are."""
    num_ranks = of or 2 * len(links)
    for ends in links:
        for rank, partner in (ends, ends[::-1]):
            probe = LinkProbe(
                probe_id=probe_id, partner_rank=partner, num_bytes=NUM_BYTES, num_ranks=num_ranks, repetitions=3
            )
            fleet.ranks[rank].call("ask_link", probe)


def answer(fleet: Fleet, rank: int) -> list[float]:
    """What a rank says of the link that it was asked for last."""
    fleet.pump_until(lambda: fleet.ranks[rank].call("link_answered"), f"the answer of rank {rank}")
    return fleet.ranks[rank].call("link_answer")


def new_epoch(fleet: Fleet) -> bool:
    """Whether everybody has voted in the newest epoch."""
    return any(sample.place.epoch == fleet.epoch for of in fleet.samples.values() for sample in of.values())


def test_the_probe_tells_a_slow_link_from_a_healthy_one_and_changes_no_loss(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    table = LinkTable.create(tmp_path / "links", 8)
    table.set_factor(*SUSPECT, 5.0)
    links = EmulatedLinks(bytes_per_second=1e7, factor=table.factor)
    fleet = start_fleet(config(30), UNIFORM, make_links=lambda: links)
    fleet.reached(2)
    slow, healthy = [], []
    for probe_id in (1, 2, 3):
        ask(fleet, [SUSPECT, PEER], probe_id=probe_id)
        taken = {rank: answer(fleet, rank) for rank in (*SUSPECT, *PEER)}
        assert all(len(seconds) in (1, 2) for seconds in taken.values())
        slow += [seconds for rank in SUSPECT for seconds in taken[rank]]
        healthy += [seconds for rank in PEER for seconds in taken[rank]]
    # A busy machine only ever adds: to the quickest of some the least.
    assert min(healthy) > 2 * NUM_BYTES / 1e7
    assert min(slow) > 5 * 2 * NUM_BYTES / 1e7
    assert 1.5 < min(slow) / min(healthy) < 8.0
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 30)
    # The probes are no operations of an iteration: every iteration has as many as the first.
    for rank in SUSPECT:
        counts = {tuple(len(each.entered_seconds) for each in of[rank].channels) for of in fleet.samples.values()}
        assert len(counts) == 1


def test_who_is_asked_alone_is_told_so_and_trains_on(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(config(20), UNIFORM)
    fleet.reached(2)
    ask(fleet, [SUSPECT], of=4)
    for rank in SUSPECT:
        with pytest.raises(RuntimeError, match="not ready within 4 iterations"):
            answer(fleet, rank)
    ask(fleet, [(0, 7)], of=2)
    for rank in (0, 7):
        with pytest.raises(RuntimeError, match="have no group in common"):
            answer(fleet, rank)
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 20)


def test_a_rank_that_dies_in_a_probe_is_a_rank_that_dies_in_an_iteration(start_fleet: Callable[..., Fleet]) -> None:
    in_levels = replace(config(24), vote_width=2)
    fleet = start_fleet(in_levels, UNIFORM, fates={1: {"iteration": ANY, "operation": "wait:probe"}})
    fleet.reached(2)
    ask(fleet, [SUSPECT, PEER])
    fleet.mourn(1)
    fleet.recover(without(1))
    with pytest.raises(RuntimeError, match="not run"):
        answer(fleet, 0)
    ask(fleet, [PEER, (6, 7)], probe_id=8)
    assert all(answer(fleet, rank) for rank in (*PEER, 6, 7))
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 24)


def test_a_plan_goes_before_a_probe_that_is_armed(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(config(12), UNIFORM)
    fleet.reached(2)
    ask(fleet, [SUSPECT], of=4)
    fleet.boundary(without(7))
    for rank in SUSPECT:
        with pytest.raises(RuntimeError, match="not run"):
            answer(fleet, rank)
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 12)


def test_links_inside_a_group_of_four_are_told_apart(start_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    table.set_factor(1, 2, 5.0)
    links = EmulatedLinks(bytes_per_second=1e7, factor=table.factor)
    fleet = start_fleet(config(24), FOUR, make_links=lambda: links)
    fleet.reached(2)
    quickest: dict[tuple[int, int], float] = {}
    for probe_id, asked in enumerate([[(0, 1), (2, 3)], [(1, 2), (0, 3)]], start=1):
        ask(fleet, asked, probe_id=probe_id)
        for ends in asked:
            quickest[ends] = min(seconds for rank in ends for seconds in answer(fleet, rank))
    # A busy machine only ever adds: to the quickest of some the least.
    assert min(quickest.values()) > 2 * NUM_BYTES / 1e7
    assert quickest[1, 2] > 5 * 2 * NUM_BYTES / 1e7
    assert quickest[1, 2] > 1.5 * min(quickest.values())
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 24)


def test_a_plan_goes_before_a_group_that_is_being_built_for_a_probe(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(config(20), FOUR)
    fleet.reached(2)
    # The other ends are not asked: nobody comes to the groups.
    for rank, partner in ((0, 1), (2, 3)):
        probe = LinkProbe(probe_id=7, partner_rank=partner, num_bytes=NUM_BYTES, num_ranks=4, repetitions=3)
        fleet.ranks[rank].call("ask_link", probe)
    fleet.boundary(THREE)
    for rank in (0, 2):
        with pytest.raises(RuntimeError, match="not run"):
            answer(fleet, rank)
    fleet.pump_until(lambda: new_epoch(fleet), "an iteration of the plan")
    ask(fleet, [(0, 1)], probe_id=8)
    assert all(answer(fleet, rank) for rank in (0, 1))
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 20)


def test_a_rank_that_dies_in_a_probe_inside_a_group_holds_nobody_up(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(config(16), FOUR, fates={3: {"iteration": ANY, "operation": "wait:probe"}})
    fleet.reached(2)
    ask(fleet, [(0, 1), (2, 3)])
    fleet.mourn(3)
    assert all(answer(fleet, rank) for rank in (0, 1))
    with pytest.raises(RuntimeError, match="given up"):
        answer(fleet, 2)
    fleet.recover(THREE)
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 16)
