from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.common.v1 import layout_pb2
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.codec import exits_from_request
from evenkeel.services.scheduler.adapters.api.errors import InvalidRequestError
from evenkeel.services.scheduler.adapters.api.requests import (
    check_name,
    check_plan_id,
    check_register_job,
    check_register_ranks,
    check_report_exits,
)


def job_request() -> pb.RegisterJobRequest:
    block = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=1.0)
    return pb.RegisterJobRequest(
        job_id="job-1",
        name="A job",
        job_token="0123456789abcdef",
        model=model_to_proto(ModelSpec(blocks=(block,) * 4)),
        layout=layout_to_proto(uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)),
    )


def cost_nothing(block: layout_pb2.BlockCost) -> None:
    block.forward_flops_per_token = block.forward_flops_per_squared_length = 0.0


def rank_request() -> pb.RegisterRanksRequest:
    return pb.RegisterRanksRequest(
        job_id="job-1", processes=[pb.RankProcess(node="n", device="d", address="10.0.0.1:4000")]
    )


def exits_request() -> pb.ReportExitsRequest:
    return pb.ReportExitsRequest(job_id="job-1", exits=[pb.RankExit(code=1, last_line="KeyError: 'loss'")])


def test_good_requests_pass() -> None:
    check_register_job(job_request())
    check_register_ranks(rank_request())
    check_register_ranks(
        pb.RegisterRanksRequest(job_id="j", processes=[pb.RankProcess(node="n", device="d", address="[::1]:1")])
    )
    check_report_exits(exits_request())
    check_name("job_id", "a.B_c-9")
    check_plan_id("p1")


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("job_id", lambda request: setattr(request, "job_id", "")),
        ("job_id", lambda request: setattr(request, "job_id", "a/b")),
        ("job_id", lambda request: setattr(request, "job_id", "x" * 129)),
        ("tenant", lambda request: setattr(request, "tenant", "a b")),
        ("name", lambda request: setattr(request, "name", "line\nbreak")),
        ("name", lambda request: setattr(request, "name", "nul\x00")),
        ("name", lambda request: setattr(request, "name", "x" * 257)),
        ("job_token", lambda request: setattr(request, "job_token", "short")),
        ("job_token", lambda request: setattr(request, "job_token", "ä" * 16)),
        ("layout.schedule", lambda request: setattr(request.layout, "schedule", "zero-bubble")),
        ("layout.routes", lambda request: request.layout.routes.add(micro_batch=0, stage=0, replica=1)),
        ("layout.whole", lambda request: setattr(request.layout, "whole", True)),
        ("layout.schedules", lambda request: request.layout.schedules.append("zero-bubble")),
        ("model has 4 blocks", lambda request: setattr(request.layout, "num_blocks", 5)),
        ("blocks", lambda request: setattr(request.model.blocks[1], "forward_flops_per_token", float("nan"))),
        ("blocks", lambda request: setattr(request.model.blocks[1], "parameter_bytes", -1)),
        ("max_width", lambda request: setattr(request.model.blocks[1], "max_width", 0)),
        ("activation_bytes_per_token", lambda request: setattr(request.model, "activation_bytes_per_token", -1)),
        ("orders: 100001 passes", lambda request: request.layout.replicas[0].orders.add(passes=[1] * 100_001)),
        ("at most 8192", lambda request: request.layout.standbys.extend(range(10, 9000))),
        ("rank 2147483647", lambda request: request.layout.standbys.append(2**31 - 1)),
        ("num_micro_batches", lambda request: setattr(request.layout.replicas[0], "num_micro_batches", 2**31 - 1)),
        ("shares of a stage", lambda request: request.layout.replicas[0].stages[0].shares.append(2**31 - 1)),
        ("max_width", lambda request: setattr(request.model.blocks[1], "max_width", 2**31 - 1)),
        ("costs", lambda request: setattr(request.model.blocks[1], "backward_multiple", 1e308)),
        ("none costs anything", lambda request: [cost_nothing(block) for block in request.model.blocks]),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_field(field: str, spoil: Callable[[pb.RegisterJobRequest], None]) -> None:
    request = job_request()
    spoil(request)

    with pytest.raises(InvalidRequestError, match=field):
        check_register_job(request)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", "a b"),
        ("rank", -1),
        ("incarnation", -1),
        ("rank", 2**31 - 1),
        ("node", ""),
        ("node", "a\x00"),
        ("device", ""),
        ("address", ""),
        ("address", "host"),
        ("address", "host:0"),
        ("address", "host:65536"),
        ("address", "user@host:1"),
        ("address", "unix:/tmp/x"),
    ],
)
def test_a_rank_that_cannot_be_is_refused_by_field(field: str, value: object) -> None:
    request = rank_request()
    setattr(request if field == "job_id" else request.processes[0], field, value)

    with pytest.raises(InvalidRequestError, match=field):
        check_register_ranks(request)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", ""),
        ("rank", -1),
        ("code", 256),
        ("signal", -1),
        ("last_line", "two\nlines"),
        ("last_line", "x" * 1001),
    ],
)
def test_an_end_that_cannot_be_is_refused_by_field(field: str, value: object) -> None:
    request = exits_request()
    setattr(request if field == "job_id" else request.exits[0], field, value)

    with pytest.raises(InvalidRequestError, match=field):
        check_report_exits(request)


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (2**62, 0), (-(2**62), 0), (1, -1), (1, 10**9)])
def test_an_end_at_a_time_that_no_calendar_has_is_refused(seconds: int, nanos: int) -> None:
    request = exits_request()
    request.exits[0].at.seconds, request.exits[0].at.nanos = seconds, nanos

    with pytest.raises(InvalidRequestError, match=r"exits\.at"):
        check_report_exits(request)


def test_the_last_moment_that_a_calendar_has_is_read() -> None:
    request = exits_request()
    request.exits[0].at.seconds, request.exits[0].at.nanos = 253_402_300_799, 999_999_999

    check_report_exits(request)
    (one,) = exits_from_request(request, datetime.now(UTC))
    assert one.at.year == 9999


def test_a_rank_is_named_once_in_a_call_and_a_call_names_one_at_least() -> None:
    twice = rank_request()
    twice.processes.add().CopyFrom(twice.processes[0])
    with pytest.raises(InvalidRequestError, match="each rank at most once"):
        check_register_ranks(twice)
    with pytest.raises(InvalidRequestError, match="must be 1 to"):
        check_report_exits(pb.ReportExitsRequest(job_id="j"))


@given(st.text())
def test_an_accepted_job_id_is_safe_everywhere(job_id: str) -> None:
    try:
        check_name("job_id", job_id)
    except InvalidRequestError:
        return
    assert 1 <= len(job_id) <= 128
    assert job_id.isascii()
    assert not set(job_id) & set("/\\ '\"\x00\n")


def test_an_empty_plan_id_says_what_to_do() -> None:
    with pytest.raises(InvalidRequestError, match="list the plans"):
        check_plan_id("")
