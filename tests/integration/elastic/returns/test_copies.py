"""One replica, so every rank is the only holder of something: what a death costs with copies, with disk, with none."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pytest

from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.rank_codec import rank_state_from_proto, rank_state_to_proto
from evenkeel.layouts.rank_state import RankPhase, StandIn
from evenkeel.services.scheduler.dispatch.agreement import NothingLeftError, recovery_decision
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.elastic.config import (
    CheckpointConfig,
    CopiesConfig,
    ModelConfig,
    TrainingConfig,
    WorkloadConfig,
)
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import MANIFEST, CheckpointFolder
from evenkeel.trainer_sdk.elastic.model.model import model_spec_of
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses

pytestmark = pytest.mark.integration

BASE = TrainingConfig(
    dtype="float64",
    num_iterations=40,
    model=ModelConfig(num_layers=2, num_heads=6, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=20.0, corpus_bytes=300_000),
)
TOLERANCE = 1e-12
FOUR = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=4)


@lru_cache
def expected(num_iterations: int) -> list[float]:
    return [*islice(reference_losses(BASE), num_iterations)]


def with_copies(
    every: int, *, num_iterations: int = 16, directory: Path | None = None, each: int = 5
) -> TrainingConfig:
    checkpoint = CheckpointConfig(directory=str(directory or ""), every_iterations=each, keep=2)
    return replace(
        BASE, num_iterations=num_iterations, copies=CopiesConfig(every_iterations=every), checkpoint=checkpoint
    )


def without(*dead: int) -> Layout:
    """The four ranks less some; a stage that loses both goes to its neighbour."""
    kept = [tuple(rank for rank in stage.ranks if rank not in dead) for stage in FOUR.replicas[0].stages]
    borders = [(stage.first_block, stage.stop_block) for stage in FOUR.replicas[0].stages]
    alive = [(ranks, border) for ranks, border in zip(kept, borders, strict=True) if ranks]
    if len(alive) == 1:
        alive = [(alive[0][0], (0, 4))]
    stages = tuple(
        Stage(first_block=first, stop_block=stop, ranks=ranks, shares=(1,) * len(ranks))
        for ranks, (first, stop) in alive
    )
    return Layout(num_blocks=4, replicas=(Replica(stages=stages, num_micro_batches=4),))


def recover(fleet, to_layout: Layout, layouts: dict[int, Layout]) -> Commit:
    """What the scheduler does with the ranks' answers."""
    reshape, states = fleet.prepare_recovery(to_layout)
    answers = {rank: rank_state_from_proto(rank_state_to_proto(state)) for rank, state in states.items()}
    decision = recovery_decision(
        answers, layouts=layouts, to_layout=to_layout, model=model_spec_of({"model": {"num_layers": 2, "num_heads": 6}})
    )
    commit = Commit(
        reshape=reshape,
        from_epoch=decision.from_epoch,
        from_layout=decision.from_layout,
        sources=decision.sources,
        steps_applied=decision.steps_applied,
        stand_ins=tuple(StandIn(owner=one.owner, keeper=one.keeper) for one in decision.stand_ins),
        from_checkpoint=decision.from_checkpoint,
    )
    fleet._ask(sorted(states), "commit", commit)
    fleet.layout = to_layout
    return commit


def write_checkpoints(fleet, folder: CheckpointFolder) -> None:
    """Let the job train until those of steps 5 and 10 are complete; it passes over one that comes too early."""
    for step in (5, 10):
        fleet.pump_until(lambda step=step: step in folder.steps(), f"a checkpoint of step {step}", step + 2)


def final_losses(fleet) -> list[float]:
    """Loss of each iteration as it counts in the end: a roll back leaves samples of steps that were run again."""
    losses = []
    for iteration in range(len(fleet.samples)):
        samples = [sample for sample in fleet.samples[iteration].values() if sample.loss is not None]
        newest = max(sample.place.epoch for sample in samples)
        values = {sample.loss for sample in samples if sample.place.epoch == newest}
        assert len(values) == 1, f"ranks disagree on iteration {iteration}: {values}"
        losses.append(values.pop())
    return losses


def assert_as_if_nothing_happened(losses: list[float], num_iterations: int, first: int = 0) -> None:
    assert len(losses) == num_iterations - first
    reference = expected(num_iterations)[first:]
    worst = max(abs(a - b) / b for a, b in zip(losses, reference, strict=True))
    assert worst < TOLERANCE, f"worst relative difference {worst}"


@pytest.mark.parametrize("dead", [1, 2])  # a shard of each stage; 0 and 3 are those of replacements below
def test_the_only_holder_of_a_shard_dies_and_training_goes_on_from_its_peers_copy(
    start_fleet: Callable, dead: int
) -> None:
    fleet = start_fleet(with_copies(1), FOUR)
    fleet.reached(4 + dead)
    fleet.kill(dead)
    commit = recover(fleet, without(dead), {0: FOUR})
    fleet.finish()

    assert [one.owner for one in commit.stand_ins] == [dead]
    assert_as_if_nothing_happened(final_losses(fleet), 16)


@pytest.mark.parametrize(("every", "keepers"), [(1, {0: (1,), 1: (0,)}), (0, {0: (), 1: ()})])
def test_ranks_say_of_whom_they_keep_copies(
    start_fleet: Callable, every: int, keepers: dict[int, tuple[int, ...]]
) -> None:
    two = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=4)
    fleet = start_fleet(with_copies(every), two)
    fleet.reached(2)
    _, states = fleet.prepare_recovery(two)
    said = {rank: rank_state_from_proto(rank_state_to_proto(state)).keeper_of for rank, state in states.items()}
    assert said == keepers


def test_copies_of_every_third_step_cost_the_steps_since(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(3), FOUR)
    fleet.reached(7)
    fleet.kill(2)
    commit = recover(fleet, without(2), {0: FOUR})
    fleet.finish()

    assert commit.steps_applied % 3 == 0
    assert_as_if_nothing_happened(final_losses(fleet), 16)


def test_a_second_death_right_after_the_first_recovery_is_one_more_recovery(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(1), FOUR)
    fleet.reached(5)
    fleet.kill(1)
    recover(fleet, without(1), {0: FOUR})
    fleet.kill(2)
    recover(fleet, without(1, 2), {0: FOUR, 1: without(1)})
    fleet.reached(9)
    fleet.kill(3)
    recover(fleet, without(1, 2, 3), {0: FOUR, 1: without(1), 2: without(1, 2)})
    fleet.finish()

    assert_as_if_nothing_happened(final_losses(fleet), 16)


EIGHT = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=4)
SIX = Layout(
    num_blocks=4,
    replicas=tuple(
        replace(one, stages=(replace(one.stages[0], ranks=one.stages[0].ranks[1:], shares=(1,)), one.stages[1]))
        for one in EIGHT.replicas
    ),
)


@pytest.mark.parametrize("is_recovered_between", [False, True])
def test_a_rank_and_its_twin_on_the_other_node_die_one_after_the_other_and_nothing_is_lost(
    start_fleet: Callable, is_recovered_between: bool
) -> None:
    """Each was the only other holder of what the other had; with the second death the first recovery is not over."""
    fleet = start_fleet(with_copies(1), EIGHT, node_of=lambda rank: f"node-{rank // 4}")
    fleet.reached(4)
    fleet.kill(0)
    if is_recovered_between:
        seven = replace(SIX, replicas=(SIX.replicas[0], EIGHT.replicas[1]))
        reshape, states = fleet.prepare_recovery(seven)
        fleet.kill(4)
        del states[4]
        fleet.commit_recovery(reshape, states, {0: EIGHT})
    else:
        fleet.kill(4)
    commit = recover(fleet, SIX, {0: EIGHT})
    fleet.finish()

    assert {0, 4} & {one.owner for one in commit.stand_ins}
    assert_as_if_nothing_happened(final_losses(fleet), 16)


def test_a_replacement_gets_the_place_and_the_slices_of_the_rank_that_died(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(1, num_iterations=20), FOUR)
    for incarnation, dead in enumerate((3, 0, 2), start=1):
        fleet.reached(max(fleet.samples, default=0) + 3)
        fleet.kill(dead)
        fleet.start_rank(dead, incarnation, None)
        recover(fleet, FOUR, dict.fromkeys(range(incarnation), FOUR))
    fleet.finish()

    assert_as_if_nothing_happened(final_losses(fleet), 20)


def test_replacements_that_follow_one_another_at_once_lose_nothing(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(1), FOUR)
    fleet.reached(5)
    for incarnation, dead in enumerate((3, 0), start=1):
        fleet.kill(dead)
        fleet.start_rank(dead, incarnation, None)
        recover(fleet, FOUR, dict.fromkeys(range(incarnation), FOUR))
    fleet.finish()

    assert_as_if_nothing_happened(final_losses(fleet), 16)


def test_without_copies_everybody_goes_back_to_the_checkpoint_and_no_loss_changes(
    start_fleet: Callable, tmp_path: Path
) -> None:
    fleet = start_fleet(with_copies(0, num_iterations=25, directory=tmp_path), FOUR)
    folder = CheckpointFolder(tmp_path, BASE.job_id)
    write_checkpoints(fleet, folder)
    fleet.kill(1)
    commit = recover(fleet, without(1), {0: FOUR})
    fleet.finish()

    assert commit.from_checkpoint
    assert commit.steps_applied == 10
    assert_as_if_nothing_happened(final_losses(fleet), 25)
    older, newest = folder.steps()
    assert 5 < older < newest, "only as many as the job wants stay"


def test_with_neither_the_plan_is_refused_with_words_and_everybody_stays_parked(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(0), FOUR)
    fleet.reached(4)
    fleet.kill(3)
    with pytest.raises(NothingLeftError, match=r"blocks \[2, 3\].*held by nobody alive.*rank.*3.*no checkpoint"):
        recover(fleet, without(3), {0: FOUR})
    states = {rank: process.call("status") for rank, process in fleet.ranks.items()}
    assert {state.phase for state in states.values()} == {RankPhase.PARKED}
    assert {state.epoch for state in states.values()} == {0}


def test_before_the_first_step_the_seed_makes_what_died(start_fleet: Callable) -> None:
    fleet = start_fleet(with_copies(0), FOUR, fates={3: {"iteration": 0, "operation": "backward"}})
    fleet.mourn(3)
    commit = recover(fleet, without(3), {0: FOUR})
    assert (commit.from_checkpoint, commit.steps_applied) == (True, 0)
    fleet.finish()
    assert_as_if_nothing_happened(final_losses(fleet), 16)


def test_a_rank_that_cannot_carry_out_a_commit_says_why_and_the_next_plan_goes_on(
    start_fleet: Callable, tmp_path: Path
) -> None:
    fleet = start_fleet(with_copies(0, num_iterations=20, directory=tmp_path), FOUR)
    folder = CheckpointFolder(tmp_path, BASE.job_id)
    write_checkpoints(fleet, folder)
    fleet.kill(1)
    older, newer = folder.steps()
    for path in folder.find(newer).path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-8] + b"damaged.")
    first = recover(fleet, without(1), {0: FOUR})
    assert first.steps_applied == newer

    def somebody_refused() -> bool:
        return any("were written" in process.call("status").failed_reason for process in fleet.ranks.values())

    fleet.pump_until(somebody_refused, "a refusal")
    second = recover(fleet, without(1), {0: FOUR, 1: without(1)})
    fleet.finish()

    assert second.steps_applied == older
    assert_as_if_nothing_happened(final_losses(fleet), 20)


def test_a_whole_job_goes_on_from_disk_under_another_layout(start_fleet: Callable, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, BASE.job_id)
    first = start_fleet(with_copies(1, directory=tmp_path), FOUR)
    write_checkpoints(first, folder)
    for rank in FOUR.ranks:
        first.kill(rank)
    sound = folder.newest_sound()
    assert sound is not None
    steps = sound.manifest.steps_applied
    folder.clear_after(steps)
    wide = uniform_layout(num_blocks=4, tensor=3, pipeline=1, data=2, num_micro_batches=4)
    second = start_fleet(replace(with_copies(1, directory=tmp_path), resume_steps=steps), wide)
    second.finish()

    assert min(second.samples) == steps
    losses = [next(iter(second.samples[i].values())).loss for i in range(steps, 16)]
    assert_as_if_nothing_happened(losses, 16, first=steps)


def test_kill_9_while_checkpoints_are_written_leaves_only_whole_ones(start_fleet: Callable, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, BASE.job_id)
    fleet = start_fleet(with_copies(0, num_iterations=4000, directory=tmp_path, each=1), FOUR)
    fleet.pump_until(lambda: any(folder.root.glob("step-*/*.new")) and folder.steps(), "a file that is being written")
    for rank in FOUR.ranks:
        os.kill(fleet.ranks[rank].pid, signal.SIGKILL)
    for rank in FOUR.ranks:
        fleet.kill(rank)
    sound = folder.newest_sound()
    assert sound is not None
    assert sound.manifest.steps_applied == max(folder.steps()), "nothing that looks complete is damaged"
    folder.clear_after(sound.manifest.steps_applied)
    assert all((path / MANIFEST).exists() for path in folder.root.glob("step-*"))
    assert not list(folder.root.glob("*/*.new"))
    assert json.loads((sound.path / MANIFEST).read_text())["steps_applied"] == sound.manifest.steps_applied
