"""A replica that died comes back while the others train, and ends with what they have."""

import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.sharedctypes import RawValue

import pytest
from torch import nn

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas import Replicas
from evenkeel.trainer_sdk.replicas.membership import director
from evenkeel.trainer_sdk.replicas.state.donor import Donor
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState
from tests.integration.replicas.crew import NUM_STEPS, Crew, Fate, Report, make_deep_model, train

pytestmark = pytest.mark.integration

NUM_SLOW_STEPS = 50
FIRST_STEPS = 4


def check(crew: Crew, failure_free: Report, replicas: tuple[int, ...]) -> None:
    for each in replicas:
        report = crew.reports[each]
        assert report.status == 0, report
        for step, loss in report.losses.items():
            assert loss == pytest.approx(failure_free.losses[step], rel=1e-5)
        assert report.weights == pytest.approx(failure_free.weights, rel=1e-3, abs=1e-5)
        assert NUM_STEPS - 1 in report.losses
    for step in range(NUM_STEPS):
        ran = [index for report in crew.reports.values() for index in report.ran.get(step, [])]
        assert len(ran) == len(set(ran)), f"step {step}: {ran}"


@pytest.mark.parametrize("moment", ["backward", "exchange", "voted", "border"])
def test_a_replica_comes_back(start_crew: Callable[..., Crew], failure_free: Report, moment: str) -> None:
    crew = start_crew(3, {1: Fate(moment=moment, step=2)}, pause_seconds=0.15)
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    assert crew.reports[1].status == -signal.SIGKILL
    crew.start(1)
    crew.finish()
    check(crew, failure_free, (0, 1, 2))
    assert any(crew.reports[1].ran.get(step) for step in range(3, NUM_STEPS)), "it takes its share again"


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two units a step at most, however long it takes, and most parameters in two pieces."""
    monkeypatch.setattr(TrainingState.__init__, "__defaults__", (512,))
    send = Donor._send

    def send_slowly(self: Donor, group: Group, unit: int, step: int) -> None:
        send(self, group, unit, step)
        if unit % 2:
            with self._changed:
                self._step = None  # as if the step had come to its vote

    monkeypatch.setattr(Donor, "_send", send_slowly)


def start_deep(start_crew: Callable[..., Crew], num_replicas: int, fates: dict[int, Fate]) -> Crew:
    """A crew whose replica 1 dies early and comes back."""
    leash = RawValue("i", FIRST_STEPS)
    options = {"make": make_deep_model, "pause_seconds": 0.01, "num_steps": NUM_SLOW_STEPS, "leash": leash}
    crew = start_crew(num_replicas, fates, **options)
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    return crew


def start_newcomer(crew: Crew, fate: Fate | None = None) -> None:
    """Another replica 1; the others begin no step until its process is there."""
    leash = crew._options["leash"]
    leash.value = 0
    crew.reports[1] = Report()
    crew.start(1, fate)
    crew.until(lambda: crew.reports[1].num_lives == 1, "it is about to join")
    leash.value = NUM_SLOW_STEPS


def same_everywhere(crew: Crew, replicas: tuple[int, ...]) -> None:
    for each in replicas:
        assert crew.reports[each].status == 0, crew.reports[each]
        assert crew.reports[each].weights == crew.reports[replicas[0]].weights
        for step, loss in crew.reports[each].losses.items():
            assert loss == crew.reports[replicas[0]].losses.get(step, loss)
    for step in range(NUM_SLOW_STEPS):
        ran = [index for report in crew.reports.values() for index in report.ran.get(step, [])]
        assert len(ran) == len(set(ran)), f"step {step}: {ran}"


def caught_up_in(report: Report) -> int:
    return min(step for step, ran in report.ran.items() if ran) - min(report.losses)


@pytest.mark.usefixtures("slowly")
def test_catching_up_takes_many_steps(start_crew: Callable[..., Crew]) -> None:
    crew = start_deep(start_crew, 2, {1: Fate(moment="backward", step=1)})
    start_newcomer(crew)
    crew.finish()
    same_everywhere(crew, (0, 1))
    assert caught_up_in(crew.reports[1]) >= 10


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("moment", ["backward", "exchange", "voted", "border"])
def test_the_donor_dies_while_it_sends(start_crew: Callable[..., Crew], moment: str) -> None:
    crew = start_deep(start_crew, 3, {1: Fate(moment="backward", step=1), 0: Fate(moment=moment, step=12)})
    start_newcomer(crew)
    crew.finish()
    assert crew.reports[0].status == -signal.SIGKILL
    same_everywhere(crew, (2, 1))
    assert caught_up_in(crew.reports[1]) >= 10


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("moment", ["exchange", "voted", "border", "meeting"])
def test_the_newcomer_dies_while_it_catches_up(start_crew: Callable[..., Crew], moment: str) -> None:
    crew = start_deep(start_crew, 3, {1: Fate(moment="backward", step=1)})
    start_newcomer(crew, Fate(moment=moment, step=10))
    crew.until(lambda: crew.reports[1].status is not None, "the second death")
    assert crew.reports[1].status == -signal.SIGKILL
    start_newcomer(crew)
    crew.finish()
    same_everywhere(crew, (0, 1, 2))


def test_a_newcomer_with_a_forgotten_schedule_ends_with_a_line(
    start_crew: Callable[..., Crew], failure_free: Report
) -> None:
    crew = start_crew(3, {1: Fate(moment="backward", step=2)}, pause_seconds=0.15, forget=True)
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    crew.start(1)
    crew.finish()
    assert "give schedules to run.keep" in crew.reports[1].error
    assert crew.reports[0].losses == pytest.approx(failure_free.losses, rel=1e-5)


def test_a_newcomer_of_a_finished_job_ends_with_it(
    start_crew: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(director, "BEGIN_ANEW_SECONDS", 0.5)
    crew = start_crew(2, {1: Fate(moment="backward", step=1)})
    crew.until(lambda: crew.reports[0].status is not None, "the end of the one that lives")
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    assert crew.reports[0].status == 0
    crew.reports[1] = Report()
    crew.start(1)
    crew.finish()
    assert (crew.reports[1].status, crew.reports[1].losses) == (0, {})


class Unsendable:
    """Something kept whose state is a set, from some look at it on."""

    def __init__(self, num_good: int) -> None:
        self._num_good = num_good

    def state_dict(self) -> dict[str, object]:
        self._num_good -= 1
        return {"seen": 1 if self._num_good >= 0 else {1}}

    def load_state_dict(self, state_dict: object) -> None:
        pass


def train_and_keep(
    num_good: int, run: Replicas, model: nn.Module, kept: list[object], *rest: object, **options: object
) -> None:
    kept.append(Unsendable(num_good))
    train(run, model, kept, *rest, **options)  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_refused_in_the_first_step(start_crew: Callable[..., Crew]) -> None:
    crew = start_crew(2, body=partial(train_and_keep, 0))
    crew.finish()
    for report in crew.reports.values():
        assert "run.keep(Unsendable): a set in a state cannot be sent to a newcomer" in report.error
        assert not report.losses


def test_a_newcomer_that_cannot_be_sent_the_state_ends_with_a_line(
    start_crew: Callable[..., Crew], failure_free: Report
) -> None:
    crew = start_crew(3, {1: Fate(moment="backward", step=2)}, pause_seconds=0.15, body=partial(train_and_keep, 2))
    crew.until(lambda: crew.reports[1].status is not None, "the death")
    crew.start(1)
    crew.finish()
    assert "cannot send its state to this one" in crew.reports[1].error
    for replica in (0, 2):
        assert crew.reports[replica].losses == pytest.approx(failure_free.losses, rel=1e-5)
