"""Which calls of the fleet API a command makes: a fleet of a year has thousands of jobs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from evenkeel.cli.errors import CommandError
from evenkeel.cli.fleet import client, jobs
from evenkeel.cli.main import main
from evenkeel.cli.recorded import why
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb

_LAYOUT = uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=2, num_micro_batches=2)
_MODEL = ModelSpec(
    blocks=(BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0, max_width=1),),
    activation_bytes_per_token=1,
)


class _Fleet:
    """One old job that trains, and 150 newer ones that are over."""

    def __init__(self, *, lists: bool = True) -> None:
        self._lists = lists

    def jobs(self) -> Iterator[pb.Job]:
        assert self._lists
        for number in range(150):
            yield pb.Job(job_id=f"over-{number}", state=pb.JOB_STATE_FINISHED)
        yield self.job("old")

    def job(self, job_id: str) -> pb.Job:
        if job_id != "old":
            raise CommandError(f"no job {job_id!r}")
        layout, model = layout_to_proto(_LAYOUT), model_to_proto(_MODEL)
        return pb.Job(job_id=job_id, epoch=3, state=pb.JOB_STATE_STUCK, layout=layout, model=model)


def _serve(monkeypatch: pytest.MonkeyPatch, module: ModuleType, fleet: _Fleet) -> None:
    @contextmanager
    def fleet_client(_: object) -> Iterator[_Fleet]:
        yield fleet

    monkeypatch.setattr(module, "fleet_client", fleet_client)


def test_a_job_that_goes_on_is_listed_however_many_ended_since(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve(monkeypatch, jobs, _Fleet())
    monkeypatch.setattr(sys, "argv", ["evenkeel", "jobs", "list", "--open", "-o", "json"])
    with pytest.raises(SystemExit):
        main()
    assert [row["job_id"] for row in json.loads(capsys.readouterr().out)] == ["old"]


def test_the_shape_of_one_job_is_asked_for_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    _serve(monkeypatch, client, _Fleet(lists=False))
    shape = why._shape(object(), "old")  # type: ignore[arg-type]
    assert shape is not None
    assert (shape.epoch, shape.layout) == (3, _LAYOUT)
    assert why._shape(object(), "none") is None  # type: ignore[arg-type]
