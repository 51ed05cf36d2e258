"""What people have in their loops, with a death and a return in the middle; and what is refused, in one line."""

import copy
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from evenkeel.trainer_sdk.api import stop
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.replicas import Place, Replicas, join_replicas
from evenkeel.trainer_sdk.replicas.fitness import advice
from evenkeel.trainer_sdk.replicas.vote import Outcome
from evenkeel.trainer_sdk.trainers.steps import TrainerSteps
from evenkeel.trainer_sdk.watch.run import Run
from tests.integration.replicas.crew import NUM_STEPS, Crew, Fate, Report, _meet, alone, batch_of, make_model

pytestmark = pytest.mark.integration

Told = Callable[[str, Any], None]


def make_short() -> nn.Module:
    return make_model().to(torch.bfloat16)


def make_frozen() -> nn.Module:
    """Of two types, with buffers of others, and with a frozen layer of random values that no other process has."""
    model = make_model()
    torch.seed()
    frozen = nn.Linear(16, 16)
    nn.init.orthogonal_(frozen.weight)
    frozen.requires_grad_(False)
    for dtype in (torch.complex64, torch.int16, torch.bool, torch.float8_e4m3fn):
        frozen.register_buffer(str(dtype).removeprefix("torch."), torch.rand(3).to(dtype))
    return nn.Sequential(frozen, model[0].double(), model[1], model[3].double())


def loop(
    run: Replicas,
    model: nn.Module,
    told: Told,
    fate: Fate | None,
    pause_seconds: float,
    step: Callable[[], None],
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
) -> None:
    told("ran", (-1, []))
    while run.step < NUM_STEPS:
        number = run.step
        for batch in run.micro_batches(batch_of):
            _meet(fate, "backward", number)
            time.sleep(pause_seconds)
            run.backward(scale(loss_of(batch)))
        step()
        torch.manual_seed(0)  # of dropout
        told("loss", (run.step - 1, float(loss_of(batch_of(999, 0)).detach())))
    told("weights", torch.cat([each.detach().double().flatten() for each in model.parameters()]).tolist())


def short_sums_and_averages(
    run: Replicas, model: nn.Module, kept: list[Any], told: Told, fate: Fate | None = None, pause_seconds: float = 0.0
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    kept.append(average)

    def step() -> None:
        assert {each.grad.dtype for each in model.parameters()} == {torch.bfloat16}
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        average.update_parameters(model)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        short = batch.to(torch.bfloat16)
        module = model if torch.is_grad_enabled() and run._owes_backward else average
        return (module(short) - short).float().square().mean()

    loop(run, model, told, fate, pause_seconds, step, loss_of)


def scaler_and_checkpoints(
    run: Replicas, model: nn.Module, kept: list[Any], told: Told, fate: Fate | None = None, pause_seconds: float = 0.0
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    kept.append(scaler)
    compiled = torch.compile(model, backend="aot_eager")

    def step() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if run.is_complete:
            _, state = get_state_dict(model, optimizer)
            assert len(state["state"]) == len(list(model.parameters()))

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return (compiled(batch) - batch).square().mean()

    loop(run, model, told, fate, pause_seconds, step, loss_of, scaler.scale)


def types_and_frozen_parameters(
    run: Replicas, model: nn.Module, kept: list[Any], told: Told, fate: Fate | None = None, pause_seconds: float = 0.0
) -> None:
    optimizer = torch.optim.RMSprop([each for each in model.parameters() if each.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for each in model[3].parameters():
                each.add_(torch.randn_like(each), alpha=1e-3)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        frozen, *rest = model
        hidden = frozen(batch).double()
        for each in rest:
            hidden = each(hidden)
        return (hidden.norm() - frozen(batch).norm()).square()

    loop(run, model, told, fate, pause_seconds, step, loss_of)


@pytest.mark.parametrize(
    ("body", "make", "tolerance"),
    [
        (short_sums_and_averages, make_short, 2e-2),
        (scaler_and_checkpoints, make_model, 1e-4),
        (types_and_frozen_parameters, make_frozen, None),
    ],
)
def test_it_works_while_a_replica_dies_and_comes_back(
    start_crew: Callable[..., Crew], body: Callable[..., None], make: Callable[[], nn.Module], tolerance: float | None
) -> None:
    crew = start_crew(3, {1: Fate(moment="backward", step=2)}, body=body, make=make, pause_seconds=0.15)
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    assert crew.reports[1].status == -signal.SIGKILL
    crew.reports[1] = Report()
    for survivor in (0, 2):  # else they may be done before it is there
        os.kill(crew.pids[survivor], signal.SIGSTOP)
    crew.start(1)
    crew.until(lambda: -1 in crew.reports[1].ran, "a newcomer")
    for survivor in (0, 2):
        os.kill(crew.pids[survivor], signal.SIGCONT)
    crew.finish()
    assert [crew.reports[each].error for each in range(3)] == [""] * 3
    assert crew.reports[0].weights == crew.reports[1].weights == crew.reports[2].weights
    if tolerance is not None:
        wanted = alone(body, make)
        assert list(crew.reports[0].losses.values()) == pytest.approx(list(wanted.losses.values()), rel=tolerance)


def gradients_that_come_twice(
    run: Replicas, model: nn.Module, kept: list[Any], told: Told, fate: Fate | None = None, pause_seconds: float = 0.0
) -> None:
    """A layer in two checkpoints has its gradients in two parts, and a second backward of the loop's adds to them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        if run._owes_backward and run.step > 3:
            model(batch).square().mean().backward()
        hidden = batch.requires_grad_()
        for _ in range(2):
            hidden = checkpoint(model, hidden, use_reentrant=True)
        return (hidden - batch.detach()).square().mean()

    loop(run, model, told, fate, pause_seconds, step, loss_of)


def average_of_a_begin_of_its_own(
    run: Replicas, model: nn.Module, kept: list[Any], told: Told, fate: Fate | None = None
) -> None:
    """Made of a model that every replica has initialized by itself."""
    torch.seed()
    for layer in (model[0], model[3]):
        layer.reset_parameters()
    average = copy.deepcopy(model)
    kept.append(average)
    for batch in run.micro_batches(batch_of):
        run.backward(model(batch).square().mean())
    told("weights", torch.cat([each.detach().flatten() for each in average.parameters()]).tolist())


def test_gradients_that_come_after_their_exchange_began_count(start_crew: Callable[..., Crew]) -> None:
    crew = start_crew(2, body=gradients_that_come_twice)
    crew.finish()
    assert [crew.reports[each].error for each in range(2)] == [""] * 2
    wanted = alone(gradients_that_come_twice)
    assert list(crew.reports[0].losses.values()) == pytest.approx(list(wanted.losses.values()), rel=1e-5)


def test_what_is_kept_begins_alike(start_crew: Callable[..., Crew]) -> None:
    crew = start_crew(2, body=average_of_a_begin_of_its_own)
    crew.finish()
    assert crew.reports[0].weights == crew.reports[1].weights != []


def test_a_replica_with_another_model_ends_with_a_line(start_crew: Callable[..., Crew]) -> None:
    crew = start_crew(2, {1: Fate(moment="border", step=1)}, pause_seconds=0.1)
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    crew._make = make_short
    crew.start(1)
    crew.finish()
    assert "replica 1 has another model than replica 0" in crew.reports[1].error
    assert len(crew.reports[0].losses) == NUM_STEPS


# Made in the test: DataParallel looks for CUDA devices, and a process that has done so forks no ranks that use them.
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is a BatchNorm1d"),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(2, track_running_stats=True)),
            "1 is a InstanceNorm1d",
        ),
        (lambda: nn.Embedding(4, 2, sparse=True), "sparse gradients"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "weight is of torch.complex64"),
        (lambda: nn.LazyLinear(2), "has no values yet"),
        (lambda: nn.Linear(2, 2, device="meta"), "has no values yet"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "the module inside"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "nothing can be trained"),
    ],
)
def test_what_does_not_work_is_refused_before_anything_starts(make: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refusal:
        join_replicas(Place(), make())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"EVENKEEL_HANG_SECONDS": "0"}, "EVENKEEL_HANG_SECONDS is 0"),
        ({"EVENKEEL_REPLICA": "2"}, "EVENKEEL_REPLICA is 2, EVENKEEL_NUM_REPLICAS is 2: set how many"),
        ({"EVENKEEL_NUM_REPLICAS": ""}, "EVENKEEL_NUM_REPLICAS is None: set how many"),
        ({"EVENKEEL_STORE": ""}, "EVENKEEL_STORE is not"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], why: str) -> None:
    right = {"EVENKEEL_STORE": "127.0.0.1:1", "EVENKEEL_REPLICA": "0", "EVENKEEL_NUM_REPLICAS": "2"}
    for name, text in {**right, **settings}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=why):
        Place.from_environment()


def test_a_store_that_nobody_knows_is_named() -> None:
    place = Place(store_address="no.such.host.invalid:29400")
    with pytest.raises(OSError, match=r"no way to no.such.host.invalid:29400: "):
        join_replicas(place, nn.Linear(2, 2))


def test_ranks_that_would_compute_the_same_are_told() -> None:
    assert "each of this replica's 2 ranks" in advice(nn.Linear(2, 2), num_ranks=2)
    assert not advice(nn.Linear(2, 2), num_ranks=1)


def test_fewer_micro_batches_than_replicas_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for replica, num_micro_batches in ((0, 2), (0, 3), (1, 2)):
        join_replicas(
            Place(num_replicas=3, replica=replica), nn.Linear(2, 2), num_micro_batches=num_micro_batches
        ).close()
    assert [each.message for each in caplog.records if "some have none" in each.message] == [
        "3 replicas share 2 micro-batches in a step, so some have none: give each one at least"
    ]


def test_statistics_that_are_frozen_are_no_reason() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16).eval())
    before = model[0].weight.detach().clone()
    run_steps(model)
    assert not torch.equal(before, model[0].weight)


def run_steps(
    model: nn.Module,
    within: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
    after: Callable[[torch.optim.Optimizer], None] = lambda optimizer: optimizer.zero_grad(),
    num_micro_batches: int = 2,
) -> None:
    """Two steps, with something done after each micro-batch and something after each step."""
    run = join_replicas(Place(), model, num_micro_batches=num_micro_batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            for batch in run.micro_batches(batch_of):
                run.backward(model(batch).square().mean())
                within(optimizer)
            optimizer.step()
            after(optimizer)
    finally:
        run.close()


@pytest.mark.parametrize(
    ("within", "why"),
    [
        (lambda optimizer: optimizer.step(), "comes after the loop"),
        (lambda optimizer: optimizer.zero_grad(), "earlier micro-batches are gone"),
    ],
)
@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_what_belongs_behind_the_loop_is_refused_within_it(
    within: Callable[[torch.optim.Optimizer], None], why: str, num_micro_batches: int
) -> None:
    with pytest.raises(RuntimeError, match=why):
        run_steps(make_model(), within, num_micro_batches=num_micro_batches)


def test_a_first_micro_batch_that_no_parameter_has_a_part_in_is_none_that_lost_its_gradients() -> None:
    model = make_model()
    run = join_replicas(Place(), model, num_micro_batches=2)
    for index, batch in enumerate(run.micro_batches(batch_of)):
        run.backward(model(batch).square().mean() if index else torch.zeros((), requires_grad=True))
    assert all(parameter.grad is not None for parameter in model.parameters())
    run.close()


def test_a_backward_that_failed_is_none() -> None:
    model = make_model()
    model[0].bias.register_hook(lambda _: 1 / 0)
    run = join_replicas(Place(), model, num_micro_batches=2)
    batches = run.micro_batches(batch_of)
    with suppress(ZeroDivisionError):
        run.backward(model(next(batches)).square().mean())
    with pytest.raises(RuntimeError, match="or failed"):
        next(batches)
    run.close()


def test_a_micro_batch_without_tokens_counts_nothing() -> None:
    model = make_model()
    run = join_replicas(Place(), model, num_micro_batches=2)
    for index, batch in enumerate(run.micro_batches(batch_of)):
        run.backward(model(batch).square().mean() * (1.0 if index else float("nan")), weight=3.0 * index)
    assert run.loss == run.loss > 0.0
    assert all(bool(each.grad.isfinite().all()) for each in model.parameters())
    run.close()


def test_a_loss_of_no_tokens_is_refused_where_mates_would_spread_it() -> None:
    model = make_model()
    run = join_replicas(Place(), model, num_micro_batches=2)
    run.begin()
    run._epochs.place = replace(run._epochs.place, size=2)
    for index, batch in enumerate(run.micro_batches(batch_of)):
        loss = model(batch).square().mean()
        if not index:
            with pytest.raises(ValueError, match="mates need the backward") as refusal:
                run.backward(loss * float("nan"), weight=0.0)
            assert "\n" not in str(refusal.value)
        run.backward(loss, weight=3.0 * index)
    assert all(bool(each.grad.isfinite().all()) for each in model.parameters())
    run.close()


def test_a_weight_may_be_a_tensor_and_a_loss_is_one_value() -> None:
    run = Run(emitter=Emitter())
    model = run.replicate(make_model(), num_micro_batches=2)
    for batch in run.micro_batches(batch_of):
        losses = model(batch).square().mean(1)
        with pytest.raises(ValueError, match="one value, and not 4"):
            run.backward(losses)
        run.backward(losses.mean().reshape(1), weight=(batch > 0).sum())
    assert run.loss > 0.0
    run.close()


def test_a_step_that_is_set_when_training_has_begun_is_refused() -> None:
    run = Run(emitter=Emitter())
    model = run.replicate(make_model())
    run.step = 7
    for batch in run.micro_batches(batch_of):
        run.backward(model(batch).square().mean())
    assert run.step == 8
    with pytest.raises(RuntimeError, match="before the first micro-batch"):
        run.step = 3
    run.close()


def test_what_is_not_exchanged_is_not_trained() -> None:
    model = make_model()
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="of this replica alone"):
        run_steps(model, after=lambda _: model[0].requires_grad_(True))
    model = make_model()

    def renew_head(optimizer: torch.optim.Optimizer) -> None:
        model[3] = nn.Linear(32, 16)
        optimizer.add_param_group({"params": list(model[3].parameters())})

    with pytest.raises(RuntimeError, match="of this replica alone"):
        run_steps(model, after=renew_head)


def test_a_trainer_that_ran_no_step_did_not_come_too_late(caplog: pytest.LogCaptureFixture) -> None:
    TrainerSteps(make_model(), 1).end()
    stop()
    assert "too late" not in caplog.text


@pytest.mark.parametrize("is_at_a_vote", [True, False])
def test_a_newcomer_gets_micro_batches_when_it_has_been_compared(
    monkeypatch: pytest.MonkeyPatch, is_at_a_vote: bool
) -> None:
    """Whether it is complete at a vote, or was when the epoch changed before that."""
    model = make_model()
    run = join_replicas(Place(), model, num_micro_batches=2)
    run.begin()
    if not is_at_a_vote:
        monkeypatch.setattr(run._catch_up, "connect", lambda *_: None)
        mine = run._standing()
        run._go_on([mine, replace(mine, replica=1, on_trial=True)])
    exchange, share = run._exchange, run._epochs.share
    samples, shared = [], []

    def both() -> Outcome:
        heard = exchange()
        samples.append(heard.said[0].sample)
        heard.said[1] = heard.said[0]
        return heard

    def noted(micro_batches: Sequence[int], whom: Sequence[int]) -> tuple[int, ...]:
        shared.append(tuple(whom))
        return share(micro_batches, whom)

    monkeypatch.setattr(run, "_exchange", both)
    monkeypatch.setattr(run._epochs, "share", noted)
    run.step = 5  # none of these is one in which all are compared
    for _ in range(3):
        for batch in run.micro_batches(batch_of):
            run.backward(model(batch).square().mean())
    assert [bool(each) for each in samples] == [False, True, False]
    assert shared[-2:] == [(0,), (0, 1)]
    run.close()


def test_gradients_of_the_step_before_do_not_count() -> None:
    forgetful, tidy = make_model(), make_model()
    run_steps(forgetful, after=lambda optimizer: None)
    run_steps(tidy)
    assert all(map(torch.equal, forgetful.parameters(), tidy.parameters()))


def test_an_optimizer_that_asks_twice_is_refused() -> None:
    model = nn.Linear(2, 2)
    run = join_replicas(Place(), model)
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(TypeError, match="more than once a step"):
        optimizer.step(lambda: torch.zeros(()))
    run.close()
