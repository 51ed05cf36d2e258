"""A newcomer that gets the state in pieces, over steps of both, ends with the same bits as its donor."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from evenkeel.trainer_sdk.replicas.state.packing import space
from evenkeel.trainer_sdk.replicas.state.pieces import cut
from evenkeel.trainer_sdk.replicas.state.training_state import Received, TrainingState
from evenkeel.trainer_sdk.replicas.vote import Outcome, Said

PIECE_BYTES = 100
Make = Callable[[Iterable[Tensor]], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "nadam": lambda parameters: optim.NAdam(parameters, lr=0.1),
    "asgd": lambda parameters: optim.ASGD(parameters, lr=0.1),
    "adafactor": lambda parameters: optim.Adafactor(parameters, lr=0.1),
    "muon": lambda parameters: optim.Muon(parameters, lr=0.1),
}


@pytest.fixture(autouse=True)
def let_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test makes watches the optimizers of the whole process."""
    made: list[TrainingState] = []
    begin = TrainingState.__init__

    def noted(state: TrainingState, *args: Any) -> None:
        begin(state, *args)
        made.append(state)

    monkeypatch.setattr(TrainingState, "__init__", noted)
    yield
    for each in made:
        each.optimizers.let_go()


class Side:
    """A replica's model and optimizer, without an exchange."""

    def __init__(self, make: Make, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(7, 9, bias=False), nn.Linear(9, 7, bias=False))
        self.state = TrainingState(self.model, (), PIECE_BYTES)
        self.optimizer = make(self.model.parameters())

    def step(self, number: int) -> None:
        """With the gradients of a step, the same on both sides."""
        generator = torch.Generator().manual_seed(number)
        for each in self.model.parameters():
            each.grad = torch.randn(each.shape, generator=generator)
        self.optimizer.step()
        self.optimizer.zero_grad()


def sent(donor: Side, units: range, step: int) -> list[Received]:
    arrived = []
    for unit in units:
        text, tensors = donor.state.pack(unit)
        places = space(text)
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
        arrived.append(Received(unit, step, text, places))
    return arrived


def caught_up(make: Make, counts: Sequence[int], early: int = 0, steps_before: int = 2) -> tuple[Side, Side]:
    """Both sides after the newcomer got so many units in each step, of which some came a step ahead of its own."""
    donor, newcomer = Side(make, 0), Side(make, 1)
    newcomer.state.forget()
    for step in range(steps_before):
        donor.step(step)
    waiting: list[Received] = []
    num_sent, step = 0, steps_before
    for count in [*counts, donor.state.num_units]:
        units = range(num_sent, min(num_sent + count, donor.state.num_units))
        num_sent = units.stop
        waiting = newcomer.state.install(waiting + sent(donor, units, step), step)
        donor.step(step)
        ahead = range(num_sent, min(num_sent + early, donor.state.num_units))
        num_sent = ahead.stop
        waiting += sent(donor, ahead, step + 1)  # before the newcomer has stepped
        newcomer.step(step)
        step += 1
    newcomer.state.install(waiting, step)
    return donor, newcomer


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=15, deadline=None)
@given(counts=st.lists(st.integers(0, 4), max_size=6), early=st.integers(0, 2), steps_before=st.integers(0, 2))
def test_the_same_bits_however_the_pieces_fall_on_steps(
    name: str, counts: list[int], early: int, steps_before: int
) -> None:
    donor, newcomer = caught_up(OPTIMIZERS[name], counts, early, steps_before)
    for step in (20, 21):
        donor.step(step)
        newcomer.step(step)
    assert newcomer.state.num_held == newcomer.state.num_units
    for theirs, mine in zip(donor.model.parameters(), newcomer.model.parameters(), strict=True):
        assert torch.equal(theirs, mine)
        assert donor.optimizer.state[theirs].keys() == newcomer.optimizer.state[mine].keys()
        for key, value in donor.optimizer.state[theirs].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(newcomer.optimizer.state[mine][key])), key


class Pair:
    """A replica whose model has a part trained in even steps, one in odd ones, and a teacher of the first.

    ``both`` optimizers step all of it, or each its part.
    """

    def __init__(self, seed: int, both: bool) -> None:
        torch.manual_seed(seed)
        self.model = nn.ModuleDict({name: nn.Linear(7, 9) for name in ("teacher", "even", "odd")})
        self.model["teacher"].requires_grad_(False)
        self.state = TrainingState(self.model, (), PIECE_BYTES)
        parts = [self.model if both else self.model[name] for name in ("even", "odd")]
        self.optimizers = (
            optim.SGD(parts[0].parameters(), lr=0.1 + seed, momentum=0.9),
            optim.AdamW(parts[1].parameters(), lr=0.01),
        )

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for name in ("even", "odd"):
            for each in self.model[name].parameters():
                each.grad = torch.randn(each.shape, generator=generator)
        self.state.close()
        self.optimizers[number % 2].step()
        with torch.no_grad():
            for mine, theirs in zip(self.model["teacher"].parameters(), self.model["even"].parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


@pytest.mark.parametrize("first", [4, 5])
@pytest.mark.parametrize("both", [False, True])
def test_optimizers_that_take_turns_get_their_own_numbers_and_teachers_come_last(first: int, both: bool) -> None:
    donor, newcomer = Pair(0, both), Pair(1, both)
    newcomer.state.forget()
    for step in range(first):
        donor.step(step)
    for step in range(first, first + donor.state.num_units):
        unit = step - first
        newcomer.state.install(sent(donor, range(unit, unit + 1), step), step)
        donor.step(step)
        newcomer.step(step)
        assert newcomer.state.optimizers.settings == pytest.approx(donor.state.optimizers.settings)
    assert newcomer.state.sample() == pytest.approx(donor.state.sample())
    for theirs, mine in zip(donor.model.parameters(), newcomer.model.parameters(), strict=True):
        assert torch.equal(theirs, mine)


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_learning_rate_that_a_loop_sets_before_a_step_is_the_one_that_it_takes(has_stepped: bool) -> None:
    donor, newcomer = Side(OPTIMIZERS["adam"], 0), Side(OPTIMIZERS["adam"], 1)
    newcomer.state.forget()
    donor.step(0)
    if has_stepped:
        newcomer.step(0)
    newcomer.state.install(sent(donor, range(donor.state.num_units), 1), 1)
    for side in (donor, newcomer):
        side.optimizer.param_groups[0]["lr"] = 0.05
        side.step(1)
    for theirs, mine in zip(donor.model.parameters(), newcomer.model.parameters(), strict=True):
        assert torch.equal(theirs, mine)
    assert newcomer.state.optimizers.settings == donor.state.optimizers.settings


def test_one_that_is_made_after_the_catch_up_keeps_what_its_loop_has_loaded() -> None:
    donor, newcomer = caught_up(OPTIMIZERS["adam"], [99], 0, 1)
    for side in (donor, newcomer):
        later = optim.Adam(side.model.parameters(), lr=0.1, amsgrad=True)
        later.load_state_dict(side.optimizer.state_dict())
        side.optimizer = later
        side.step(20)
    for theirs, mine in zip(donor.model.parameters(), newcomer.model.parameters(), strict=True):
        assert torch.equal(theirs, mine)


def test_numbers_differ_also_where_a_small_learning_rate_does() -> None:
    told = []
    for lr in (1e-6, 1e-6, 1.01e-6):
        model = nn.Linear(7, 7)
        state, optimizer = TrainingState(model, ()), optim.AdamW(model.parameters(), lr=lr)
        optimizer.step()
        said = {each: Said(1, True, 0, numbers) for each, numbers in enumerate([*told[:1], state.optimizers.settings])}
        told.append(state.optimizers.settings)
        state.optimizers.let_go()
        outcome = Outcome(weight=1.0, loss=1.0, used=(), said=said)
        with pytest.raises(RuntimeError, match="learning rates") if lr > 1e-6 else nullcontext():
            outcome.check_alike(len(said) - 1, (0,), step=3)


def test_one_in_a_wrapper_that_is_kept_is_known_by_it() -> None:
    class Wrapper(optim.Optimizer):
        def __init__(self, optimizer: optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = nn.Linear(7, 7)
    one, other = (optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.2))
    state = TrainingState(model, [Wrapper(one), Wrapper(other)])
    for each in (one, other, one, other):
        each.step()
    assert [state.optimizers.groups[f"kept {place}"][0]["lr"] for place in (0, 1)] == [0.1, 0.2]


def test_of_two_optimizers_of_a_kind_that_take_turns_both_are_kept() -> None:
    model, kept = nn.Linear(7, 7), list[Any]()
    state = TrainingState(model, kept)
    one, other = (optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.2))
    one.step()
    other.step()  # made later, it takes the place of the first
    assert len(state.optimizers.groups) == 1
    with pytest.raises(RuntimeError, match="two SGD take turns") as refusal:
        one.step()
    assert "\n" not in str(refusal.value)
    kept += [one, other]
    one.step()
    other.step()
    assert [state.optimizers.groups[f"kept {place}"][0]["lr"] for place in (0, 1)] == [0.1, 0.2]


def test_a_buffer_that_forwards_change_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7))
    state = TrainingState(model, ())
    for train in (False, True):
        model.train(train)
        state.open()
        model(torch.zeros(2, 7))
        state.close()
        assert ("changes in a forward" in caplog.text) == train


def test_a_buffer_that_a_validation_made_is_taken_over_and_never_told(caplog: pytest.LogCaptureFixture) -> None:
    def of(value: float) -> TrainingState:
        model = nn.Linear(7, 7)
        with torch.inference_mode():
            model.register_buffer("frequencies", torch.full((3,), value))
        state = TrainingState(model, ())
        state.open()
        state.close()
        return state

    donor, newcomer = of(1.0), of(2.0)
    newcomer.forget()
    last = donor.num_units - 1
    text, tensors = donor.pack(last)
    newcomer.install([Received(last, 0, text, tensors)], 0)
    newcomer.synchronise(Unchanged(), 0)  # type: ignore[arg-type]
    assert torch.equal(newcomer._model.frequencies, torch.ones(3))
    assert not caplog.text


class Unchanged:
    """A group of one that broadcasts."""

    def start_broadcast(self, tensor: Tensor, source: int) -> "Unchanged":
        return self

    def wait(self) -> None:
        """Everything is there."""


def test_no_piece_is_larger_than_asked_where_elements_are_stepped_by_themselves() -> None:
    donor = Side(OPTIMIZERS["adam"], 0)
    donor.step(0)
    for unit in range(1, donor.state.num_units - 1):
        _, (value, *states) = donor.state.pack(unit)
        assert 0 < value.numel() <= PIECE_BYTES
        assert all(each.numel() <= PIECE_BYTES for each in states)


@given(shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4), piece_bytes=st.integers(1, 64))
def test_pieces_cover_every_element_once(shapes: list[list[int]], piece_bytes: int) -> None:
    parameters = [torch.zeros(shape) for shape in shapes]
    pieces = list(cut(parameters, piece_bytes))
    for place, parameter in enumerate(parameters):
        mine = [each for each in pieces if each.parameter == place]
        assert [index for each in mine for index in range(each.start, each.stop)] == list(range(parameter.numel()))
        assert [each.is_last for each in mine] == [False] * (len(mine) - 1) + [True]
