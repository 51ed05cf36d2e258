"""Assemblies, meetings and deliveries on a real store and real groups, in one level and in several."""

from collections.abc import Callable, Sequence

import pytest
import torch

from evenkeel.layouts.ranks.levels import levels_of
from evenkeel.trainer_sdk.groups.building.assembly import Assembly, assembly_specs
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.delivery import Delivery
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from tests.integration.elastic.rank_process import build, run_together

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
RANKS = (1, 2, 4, 5, 8, 9, 11)


def _builder(rank: int, address: str, widest: int) -> GroupBuilder:
    waiter = Waiter(lambda: False)
    return GroupBuilder(rank, Rendezvous(address, "job"), device=CPU, waiter=waiter, widest=widest)


def _run(body: Callable[[int], None], ranks: Sequence[int] = RANKS) -> None:
    assert run_together(body, ranks) == [0] * len(ranks)


def _least_and_sum(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack((rows[:, 0].min(), rows[:, 1].sum()))


@pytest.mark.parametrize("widest", [2, 3, 4, 7])
def test_everybody_hears_everybody_in_however_many_levels(widest: int, start_store: Callable[[], str]) -> None:
    address = start_store()
    texts = {rank: bytes([rank]) * (1000 * rank * (rank % 2)) for rank in RANKS}

    def body(rank: int) -> None:
        specs = assembly_specs("all", RANKS, widest)
        groups, told = build(_builder(rank, address, widest), 0, RANKS, specs, [rank % 2, 7])
        assert told == [[0, 7], [1, 7]], "equal values are told once"
        assembly = Assembly("all", RANKS, widest, rank=rank, groups=groups, device=CPU)
        assert (assembly.whole is not None) == (widest == 7)
        for offset in (0.0, 0.1):
            least, total = assembly.fold([10.0 - rank, rank + offset], _least_and_sum)
            assert least == 10.0 - max(RANKS)
            assert total == pytest.approx(sum(RANKS) + len(RANKS) * offset, rel=1e-15)
        assert assembly.gather((texts[rank], b"")) == {each: (text, b"") for each, text in texts.items()}
        heard = assembly.gather((b"same", bytes([rank // 5])))
        assert heard == {each: (b"same", bytes([each // 5])) for each in RANKS}

    _run(body)


def test_one_rank_alone_agrees_with_itself() -> None:
    assembly = Assembly("all", (3,), 2, rank=3, groups={}, device=CPU)
    assert assembly.fold([1.0, 2.0], _least_and_sum) == [1.0, 2.0]
    assert assembly.gather((b"said",)) == {3: (b"said",)}


@pytest.mark.parametrize("widest", [2, 7])
def test_what_is_sent_arrives_in_order_at_whom_it_is_for(widest: int, start_store: Callable[[], str]) -> None:
    address = start_store()
    # Sender, receiver, elements: both ways between 1 and 4, to itself, further peers, and 5 that has nobody.
    parcels = [(1, 4, 3), (4, 1, 2), (1, 4, 5), (2, 2, 4), (11, 1, 1), (1, 9, 6), (8, 9, 2)]

    def body(rank: int) -> None:
        builder = _builder(rank, address, widest)
        groups = build(builder, 0, RANKS, assembly_specs("all", RANKS, widest), 0)[0]
        whole = Assembly("all", RANKS, widest, rank=rank, groups=groups, device=CPU).whole
        delivery = Delivery(rank, 0, builder, groups, whole)
        for turn in (0, 1):
            outgoing: dict[int, list[torch.Tensor]] = {}
            expected: dict[int, int] = {}
            due: dict[int, list[float]] = {}
            for number, (sender, receiver, size) in enumerate(parcels):
                if sender == rank:
                    outgoing.setdefault(receiver, []).append(torch.full((size,), float(number + turn)))
                if receiver == rank:
                    expected[sender] = expected.get(sender, 0) + size
                    due.setdefault(sender, []).extend([float(number + turn)] * size)
            arrived = delivery.exchange(outgoing, expected, torch.empty(0))
            assert {sender: arrived[sender].tolist() for sender in due} == due
        widths = {len(groups[name].ranks) for name in groups if name.startswith("pair/")}
        assert widths == ({2} if widest == 2 and rank in (1, 4, 8, 9, 11) else set())
        builder.meet(1, RANKS, 0)  # whoever has nobody to talk to would end while others still connect to it

    _run(body)


def test_a_meeting_in_levels_waits_for_the_last_and_nobody_reads_more_than_a_group(
    start_store: Callable[[], str],
) -> None:
    address, ranks = start_store(), tuple(range(12))
    assert len(levels_of(ranks, 3)) == 3

    def body(rank: int) -> None:
        rendezvous = Rendezvous(address, "job")
        if rank == 7:
            assert not any(rendezvous.heard(f"meeting/told/{leader}") for leader in ranks), "before the last came"
        said = rendezvous.meet(
            "meeting", rank, ranks, rank // 4, waiter=Waiter(lambda: False), timeout_seconds=60.0, widest=3
        )
        assert said == [0, 1, 2]

    _run(body, ranks)
