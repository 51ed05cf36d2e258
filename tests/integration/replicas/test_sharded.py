"""Replicas of several ranks each, sharded by FSDP2: they live and die as one."""

from collections.abc import Callable
from multiprocessing.sharedctypes import RawValue
from typing import Any

import pytest
import torch
from torch import nn

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.replicas import Replicas
from evenkeel.trainer_sdk.replicas.buckets import local
from tests.integration.replicas.crew import NUM_STEPS, Crew, Fate, Report, batch_of, make_sharded_model

pytestmark = pytest.mark.integration


def check(crew: Crew, failure_free: Report, ranks: tuple[int, ...]) -> None:
    for each in ranks:
        report = crew.reports[each]
        assert report.status == 0, report
        assert NUM_STEPS - 1 in report.losses
        for step, loss in report.losses.items():
            assert loss == pytest.approx(failure_free.losses[step], rel=1e-5)
    for step in range(NUM_STEPS):
        for index in range(2):
            ran = [each for rank in (index, 2 + index) for each in crew.reports[rank].ran.get(step, [])]
            assert len(ran) == len(set(ran)), f"step {step}: {ran}"


def test_sharded_replicas_train_like_one_process(start_crew: Callable[..., Crew], failure_free: Report) -> None:
    crew = start_crew(2, make=make_sharded_model, size=2)
    crew.finish()
    check(crew, failure_free, (0, 1, 2, 3))


@pytest.mark.parametrize(
    "fate",
    [
        Fate(moment="backward", step=2, index=0),
        Fate(moment="exchange", step=2, index=1),
        Fate(moment="voted", step=2, index=0),
        Fate(moment="border", step=2, index=0),
        Fate(moment="border", step=2, index=1),
        Fate(moment="border", step=2, index=1, what=0),
    ],
    ids=str,
)
def test_a_rank_ends_and_its_replica_with_it_and_comes_back(
    start_crew: Callable[..., Crew], failure_free: Report, fate: Fate
) -> None:
    leash = RawValue("i", fate.step + 2)
    crew = start_crew(2, {1: fate}, make=make_sharded_model, size=2, pause_seconds=0.2, leash=leash)
    crew.until(lambda: None not in (crew.reports[2].status, crew.reports[3].status), "the replica's end")
    assert crew.reports[2 + fate.index].status == (-fate.what or 1)
    assert crew.reports[3 - fate.index].status == EXIT_EVICTED
    crew.start(1)
    crew.until(lambda: crew.reports[2].num_lives == crew.reports[3].num_lives == 2, "it is about to join")
    leash.value = NUM_STEPS
    crew.finish()
    check(crew, failure_free, (0, 1, 2, 3))
    assert any(crew.reports[2].ran.get(step) for step in range(3, NUM_STEPS))


def kept_of_each_kind(
    run: Replicas, model: nn.Module, kept: list[Any], told: Callable[[str, Any], None], fate: Fate | None
) -> None:
    """Averages and an optimizer of parts, which every replica has begun by itself."""
    average = make_sharded_model(model[0].weight.device_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.seed()
    with torch.no_grad():
        for each in average.parameters():
            local(each).normal_()
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
        local(each.grad).normal_()
    optimizer.step()
    optimizer.zero_grad()
    kept.extend((average, optimizer))
    for batch in run.micro_batches(batch_of):
        run.backward(model(batch).square().mean())
    optimizer.step()
    moments = [optimizer.state[each]["exp_avg"] for each in model.parameters()]
    told("weights", torch.cat([local(each.detach()).flatten() for each in (*average.parameters(), *moments)]).tolist())


def test_what_is_kept_in_parts_begins_alike(start_crew: Callable[..., Crew]) -> None:
    crew = start_crew(2, body=kept_of_each_kind, make=make_sharded_model, size=2)
    crew.finish()
    assert [crew.reports[each].error for each in range(4)] == [""] * 4
    assert crew.reports[0].weights == crew.reports[2].weights != []
    assert crew.reports[1].weights == crew.reports[3].weights != []
