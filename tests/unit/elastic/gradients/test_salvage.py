"""What survivors keep of an interrupted iteration, with real sums: micro-batch m has the gradient 8^m everywhere.

So the digits of an element's sum, written in base 8, say how often each micro-batch was counted there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, Replica, uniform_layout
from evenkeel.layouts.ranks.spread import spread_micro_batches
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.exchange import plan_exchange
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, ledger_to_texts, ledgers_from_texts
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan, SumMove, plan_salvage
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from tests.unit.layouts.strategies import orders_one_by_one

CPU = torch.device("cpu")
ITERATION = 3
SPECS = (
    ParameterSpec(name="embedding", block=0, shape=(5, 2)),
    ParameterSpec(name="early.rows", block=1, shape=(7, 2), axis=0),
    ParameterSpec(name="middle.heads", block=2, shape=(2, 12), axis=1, granule=3),
    ParameterSpec(name="middle.norm", block=2, shape=(3,)),
    ParameterSpec(name="late.columns", block=3, shape=(2, 6), axis=1),
    ParameterSpec(name="head", block=4, shape=(9, 2), axis=0),
)
NAMES = [spec.name for spec in SPECS]
Plans = dict[int, SalvagePlan]


def digit(micro_batch: int) -> float:
    return float(8**micro_batch)


@dataclass
class Epoch:
    """All ranks of a layout in an iteration."""

    layout: Layout
    sums: dict[int, GradientSums]
    due: tuple[tuple[int, ...], ...]

    @property
    def ownership(self) -> OwnershipMap:
        return OwnershipMap(SPECS, self.layout)

    def run(self, rank: int, count: int, num_late: int = 0) -> None:
        """Finish the first ``count`` micro-batches of a rank's replica there, and the next in its last stages only."""
        position = self.layout.position_of(rank)
        stages, cell = self.layout.replicas[position.replica].stages, self.layout.cell_at(position)
        for index, micro_batch in enumerate(self.due[position.replica][: count + 1]):
            for s in cell if index < count else cell[max(1, len(cell) - num_late) :]:
                parameters = {}
                for name, held in self.ownership.held_by(rank).items():
                    spec = self.ownership.specs[name]
                    if stages[s].first_block <= spec.block < stages[s].stop_block:
                        shape = spec.slice_shape(len(held))
                        parameters[name] = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
                        parameters[name].grad = torch.full(shape, digit(micro_batch), dtype=torch.float64)
                self.sums[rank].accumulate(parameters, micro_batch)
                if s == len(stages) - 1:
                    self.sums[rank].losses[micro_batch] = float(micro_batch)

    def total(self, name: str) -> torch.Tensor:
        """The sum over replicas of what contributors hold."""
        spec = self.ownership.specs[name]
        whole = torch.zeros(spec.shape, dtype=torch.float64)
        for start, stop, _, contributors in self.ownership.stretches(name):
            for rank in contributors:
                whole.narrow(spec.cut_axis, start, stop - start).add_(self.sums[rank].local(name, start, stop))
        return whole

    def settle(self, rank: int) -> None:
        """Let a rank have the reduced gradients."""
        for bucket in plan_exchange(self.ownership):
            for piece in bucket.pieces if rank in bucket.ranks else ():
                axis = self.ownership.specs[piece.name].cut_axis
                reduced = self.total(piece.name).narrow(axis, piece.start, piece.stop - piece.start)
                self.sums[rank].settle(piece.name, piece.start, piece.stop, reduced)


def first_epoch(layout: Layout) -> Epoch:
    sums = {rank: GradientSums(OwnershipMap(SPECS, layout), rank, CPU) for rank in layout.ranks}
    for each in sums.values():
        each.begin(ITERATION)
    due = tuple(tuple(layout.micro_batches_of(d)) for d in range(len(layout.replicas)))
    return Epoch(layout=layout, sums=sums, due=due)


def salvage(old: Epoch, sources: set[int], layout: Layout) -> tuple[Epoch, Plans]:
    """What the engine does, without processes: ledgers over the wire, each rank's plan, and the moves."""
    texts = {rank: ledger_to_texts(old.sums[rank].ledger(), NAMES) for rank in sorted(sources)}
    ledgers = ledgers_from_texts(texts, NAMES)
    plans = {
        rank: plan_salvage(SPECS, ledgers, layout, iteration=ITERATION, rank=rank) for rank in sources | {*layout.ranks}
    }
    some = next(iter(plans.values()))
    assert all(replace(plan, moves=()) == replace(some, moves=()) for plan in plans.values()), "all decide alike"
    assert some.keeps_any == any(plan.moves for plan in plans.values())
    new = first_epoch(layout)
    for rank, sums in new.sums.items():
        sums.resume(plans[rank])
    num_moved = 0
    for rank, plan in plans.items():
        assert all(rank in (move.source, move.destination) for move in plan.moves)
        for move in plan.moves:
            others = plans[move.source if rank == move.destination else move.destination]
            assert between(plan, move) == between(others, move), "both ends in one order"
            if rank == move.destination:
                assert move.source in sources
                num_moved += move.source != move.destination
                kept = old.sums[move.source].read(move.name, move.start, move.stop)
                new.sums[move.destination].add(move.name, move.start, move.stop, kept, move.micro_batches)
    assert num_moved == some.num_moved
    new.due = spread_micro_batches(layout, some.again)
    return new, plans


def between(plan: SalvagePlan, move: SumMove) -> list[SumMove]:
    ends = (move.source, move.destination)
    return [other for other in plan.moves if (other.source, other.destination) == ends]


def assert_complete_with_what_runs_again(epoch: Epoch, plan: SalvagePlan) -> None:
    """Every element has each micro-batch once: kept, or due again just there."""
    everything = sum(digit(m) for m in range(epoch.layout.num_micro_batches))
    for spec in SPECS:
        whole = epoch.total(spec.name)
        for gap in plan.gaps[spec.name]:
            whole.narrow(spec.cut_axis, gap.start, gap.stop - gap.start).add_(sum(map(digit, gap.micro_batches)))
            assert gap.micro_batches <= set(plan.again)
        assert torch.equal(whole, torch.full(spec.shape, everything, dtype=torch.float64)), spec.name


def with_quotas(data: st.DataObject, layout: Layout, total: int) -> Layout:
    left, replicas = total, []
    for replica in layout.replicas[1:]:
        quota = data.draw(st.integers(0, left))
        replicas.append(with_quota(replica, quota))
        left -= quota
    return replace(layout, replicas=(with_quota(layout.replicas[0], left), *replicas))


def with_quota(replica: Replica, quota: int) -> Replica:
    orders = orders_one_by_one(replica.cells, quota) if replica.orders else ()
    return replace(replica, num_micro_batches=quota, orders=orders)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whoever_dies_whenever_each_micro_batch_counts_once_everywhere(
    data: st.DataObject, any_layout: st.SearchStrategy
) -> None:
    epoch = first_epoch(data.draw(any_layout))
    total = epoch.layout.num_micro_batches
    for _ in range(data.draw(st.integers(1, 3), label="failures")):
        if data.draw(st.booleans(), label="everything ran, and some hold the result"):
            for rank in epoch.layout.ranks:
                epoch.run(rank, total)
            for rank in data.draw(st.sets(st.sampled_from(epoch.layout.ranks)), label="hold the result"):
                epoch.settle(rank)
        else:
            for rank in epoch.layout.ranks:
                progress = data.draw(st.integers(0, total), label=f"progress of rank {rank}")
                epoch.run(rank, progress, data.draw(st.integers(0, 2), label="stages that are further"))
        sources = data.draw(st.sets(st.sampled_from(epoch.layout.ranks)), label="survivors")
        layout = with_quotas(data, data.draw(any_layout), total)
        epoch, plans = salvage(epoch, sources, layout)
        plan = plans[layout.ranks[0]]
        assert_complete_with_what_runs_again(epoch, plan)
        assert sorted(index for share in epoch.due for index in share) == list(plan.again)
        assert sorted([*plan.losses, *plan.again]) == list(range(total))
        assert sum(plan.losses.values()) == sum(plan.losses), "each kept micro-batch's loss, once"
    for rank in epoch.layout.ranks:
        epoch.run(rank, total)
    everything = sum(digit(m) for m in range(total))
    for spec in SPECS:
        assert torch.equal(epoch.total(spec.name), torch.full(spec.shape, everything, dtype=torch.float64))


@settings(deadline=None)
@given(data=st.data())
def test_a_sum_goes_to_one_contributor_and_stays_where_its_holder_is_one(
    data: st.DataObject, any_layout: st.SearchStrategy
) -> None:
    old = first_epoch(data.draw(any_layout))
    for rank in old.layout.ranks:
        old.run(rank, data.draw(st.integers(0, 3), label=f"progress of rank {rank}"))
    sources = data.draw(st.sets(st.sampled_from(old.layout.ranks)), label="survivors")
    new, plans = salvage(old, sources, with_quotas(data, data.draw(any_layout), old.layout.num_micro_batches))
    for move in {move for plan in plans.values() for move in plan.moves}:
        contributors = next(
            each.contributors
            for each in new.ownership.stretches(move.name)
            if each.start <= move.start and move.stop <= each.stop
        )
        assert move.destination in contributors
        assert move.destination == move.source or move.source not in contributors, "moved without need"


TWO_BY_TWO = uniform_layout(num_blocks=5, tensor=2, pipeline=2, data=2, num_micro_batches=4)


def after(progress: Mapping[int, int]) -> Epoch:
    epoch = first_epoch(TWO_BY_TWO)
    for rank in TWO_BY_TWO.ranks:
        epoch.run(rank, progress.get(rank, 2))
    return epoch


def test_what_only_the_dead_rank_had_is_all_that_runs_again() -> None:
    epoch, plans = salvage(after({}), set(TWO_BY_TWO.ranks) - {1}, TWO_BY_TWO)
    plan = plans[0]
    assert plan.again == (0, 1)
    assert epoch.due == ((0,), (1,)), "both replicas share the work"
    lost = {name: [gap for gap in plan.gaps[name] if gap.micro_batches] for name in NAMES}
    assert {name for name, gaps in lost.items() if gaps} == {"early.rows", "middle.heads"}
    assert {(gap.start, gap.stop) for gap in lost["middle.heads"]} == {(6, 12)}


def test_nothing_runs_again_once_survivors_hold_the_reduced_gradients_and_the_losses() -> None:
    epoch = after({})
    for rank in TWO_BY_TWO.ranks:
        epoch.settle(rank)
    epoch, plans = salvage(epoch, set(TWO_BY_TWO.ranks) - {1}, TWO_BY_TWO)
    plan = plans[0]
    assert plan.again == ()
    assert epoch.due == ((), ())
    assert tuple(plan.losses) == (0, 1, 2, 3)


def test_a_micro_batch_whose_loss_nobody_alive_knows_runs_again_and_is_added_nowhere() -> None:
    epoch = after({})
    for rank in TWO_BY_TWO.ranks:
        epoch.settle(rank)
    survivors = set(TWO_BY_TWO.ranks) - {2, 3}
    new, plans = salvage(epoch, survivors, TWO_BY_TWO)
    plan = plans[0]
    assert plan.again == (0, 1)
    before = {spec.name: new.total(spec.name) for spec in SPECS}
    for rank in TWO_BY_TWO.ranks:
        new.run(rank, 4)
    assert all(torch.equal(new.total(name), before[name]) for name in NAMES)


def test_a_shard_that_got_further_than_its_partner_speaks_for_what_both_hold_whole() -> None:
    _, plans = salvage(after({0: 1}), set(TWO_BY_TWO.ranks), TWO_BY_TWO)
    plan = plans[0]
    assert plan.again == (1,), "rank 0 lacks it in its own slices"
    (gap,) = plan.gaps["middle.norm"]
    assert not gap.micro_batches


def test_sums_of_another_iteration_count_for_nothing() -> None:
    epoch = after({})
    ledgers = {rank: epoch.sums[rank].ledger() for rank in TWO_BY_TWO.ranks} | {0: GradientLedger()}
    plan = plan_salvage(SPECS, ledgers, TWO_BY_TWO, iteration=ITERATION + 1, rank=1)
    assert plan.again == (0, 1, 2, 3)
    assert plan.moves == ()
    assert not plan.keeps_any


def test_an_iteration_keeps_its_mix_to_the_end_through_two_failures() -> None:
    first, second, third = (
        replace(TWO_BY_TWO, mix=Mix(counts=(2, 2), weights=weights)) for weights in ((1, 2), (2, 1), (1, 1))
    )
    epoch = first_epoch(first)
    epoch.run(4, 2)
    epoch, plans = salvage(epoch, set(first.ranks), second)
    assert plans[0].mix == first.mix
    _, plans = salvage(epoch, set(first.ranks), third)
    assert plans[0].mix == first.mix
