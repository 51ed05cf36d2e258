"""The rank controller over real gRPC."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.control.v1 import control_pb2_grpc
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_codec import rank_state_from_proto
from evenkeel.layouts.rank_state import LinkProbe, RankPhase, RankState
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import MAX_WATCHES, ControlServer
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.fakes.plan_messages import commit_to_proto, reshape_to_proto

pytestmark = pytest.mark.integration

TOKEN = "a-token-of-this-job"
METADATA = (("authorization", f"Bearer {TOKEN}"),)
LAYOUT = uniform_layout(num_blocks=2, tensor=1, pipeline=1, data=1, num_micro_batches=2)
TRAINING = RankState(rank=3, incarnation=1, phase=RankPhase.TRAINING, epoch=0, iteration=7, steps_applied=7)


def plan(epoch: int, mode: ApplyMode) -> Reshape:
    return Reshape(job_id="job", plan_id=f"plan-{epoch}", epoch=epoch, mode=mode, to_layout=LAYOUT)


@pytest.fixture
def mailbox() -> Mailbox:
    box = Mailbox(rank=3, incarnation=1)
    box.publish(TRAINING)
    return box


@pytest.fixture
def server(mailbox: Mailbox) -> Iterator[ControlServer]:
    server = ControlServer(mailbox, job_id="job", job_token=TOKEN)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stub(server: ControlServer) -> Iterator[control_pb2_grpc.RankControlServiceStub]:
    with grpc.insecure_channel(server.address()) as channel:
        yield control_pb2_grpc.RankControlServiceStub(channel)


def code_of(call: object, *arguments: object, **options: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **options)  # type: ignore[operator]
    return raised.value.code()


def test_status_tells_the_published_state(stub: control_pb2_grpc.RankControlServiceStub) -> None:
    answer = stub.Status(pb.StatusRequest(job_id="job"), timeout=60, metadata=METADATA)
    assert rank_state_from_proto(answer.state) == TRAINING


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", TOKEN),)])
def test_calls_without_the_jobs_token_are_unauthenticated(
    stub: control_pb2_grpc.RankControlServiceStub, metadata: tuple[tuple[str, str], ...]
) -> None:
    request = pb.StatusRequest(job_id="job")
    assert code_of(stub.Status, request, timeout=60, metadata=metadata) is grpc.StatusCode.UNAUTHENTICATED
    watch = stub.Watch(pb.WatchRequest(job_id="job"), timeout=60, metadata=metadata)
    assert code_of(next, watch) is grpc.StatusCode.UNAUTHENTICATED


def test_another_job_is_not_found(stub: control_pb2_grpc.RankControlServiceStub) -> None:
    request = pb.StatusRequest(job_id="other")
    assert code_of(stub.Status, request, timeout=60, metadata=METADATA) is grpc.StatusCode.NOT_FOUND


def test_a_recovery_goes_from_prepare_over_parking_to_the_training_thread(
    mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    recover = plan(1, ApplyMode.RECOVER)
    with ThreadPoolExecutor(max_workers=1) as threads:
        request = pb.PrepareRequest(reshape=reshape_to_proto(recover))
        answer = threads.submit(stub.Prepare, request, timeout=60, metadata=METADATA)
        while not mailbox.interrupted():
            pass
        mailbox.publish(replace(TRAINING, phase=RankPhase.PARKED, voted=True))
        assert answer.result(timeout=60).state.voted
    decision = Commit(reshape=recover, from_epoch=0, from_layout=LAYOUT, sources=(0,), steps_applied=8)
    stub.Commit(commit_to_proto(decision), timeout=60, metadata=METADATA)
    with mailbox.switching(timeout_seconds=60.0) as commit:
        assert commit == decision


def test_our_errors_are_status_codes(mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub) -> None:
    recover = pb.PrepareRequest(reshape=reshape_to_proto(plan(1, ApplyMode.RECOVER)))
    assert code_of(stub.Prepare, recover, timeout=0.3, metadata=METADATA) is grpc.StatusCode.DEADLINE_EXCEEDED
    no_mode = pb.PrepareRequest(reshape=pb.Reshape(job_id="job", plan_id="plan", epoch=1))
    assert code_of(stub.Prepare, no_mode, timeout=60, metadata=METADATA) is grpc.StatusCode.INVALID_ARGUMENT
    mailbox.publish(replace(TRAINING, epoch=4))
    stale = pb.PrepareRequest(reshape=reshape_to_proto(plan(4, ApplyMode.BOUNDARY)))
    assert code_of(stub.Prepare, stale, timeout=60, metadata=METADATA) is grpc.StatusCode.FAILED_PRECONDITION
    interrupt = pb.InterruptRequest(job_id="job", epoch=3)
    assert code_of(stub.Interrupt, interrupt, timeout=60, metadata=METADATA) is grpc.StatusCode.FAILED_PRECONDITION
    probe = pb.ProbeRequest(job_id="job", matrix_size=0, repetitions=1)
    assert code_of(stub.Probe, probe, timeout=60, metadata=METADATA) is grpc.StatusCode.INVALID_ARGUMENT
    far = pb.PrepareRequest(reshape=reshape_to_proto(plan(2**62, ApplyMode.BOUNDARY)))
    assert code_of(stub.Prepare, far, timeout=60, metadata=METADATA) is grpc.StatusCode.INVALID_ARGUMENT
    large = pb.AbortRequest(job_id="job", plan_id="x" * 10_000_000)
    assert code_of(stub.Abort, large, timeout=60, metadata=METADATA) is grpc.StatusCode.RESOURCE_EXHAUSTED
    for empty, call in ((pb.PrepareRequest(), stub.Prepare), (pb.CommitRequest(), stub.Commit)):
        assert code_of(call, empty, timeout=60, metadata=METADATA) is grpc.StatusCode.NOT_FOUND


def refusal_in(error: grpc.RpcError) -> pb.Refusal:
    found = dict(error.trailing_metadata())  # type: ignore[attr-defined]
    return pb.Refusal.FromString(found["evenkeel-refusal-bin"])


def test_whoever_is_refused_learns_the_ballot_to_go_beyond(
    mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    mailbox.prepare(replace(plan(4, ApplyMode.BOUNDARY), term=2), 0.0)
    for call, request in (
        (stub.Prepare, pb.PrepareRequest(reshape=reshape_to_proto(replace(plan(3, ApplyMode.BOUNDARY), term=2)))),
        (stub.Status, pb.StatusRequest(job_id="job", term=1)),
        (stub.Interrupt, pb.InterruptRequest(job_id="job", epoch=3, leave=True, term=1)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(request, timeout=60, metadata=METADATA)
        refusal = refusal_in(refused.value)
        assert refusal.reason == pb.REFUSAL_REASON_STALE_BALLOT
        assert (refusal.promised.term, refusal.promised.epoch) == (2, 4)
    assert not mailbox.leaving()
    watch = stub.Watch(pb.WatchRequest(job_id="job", term=3), timeout=60, metadata=METADATA)
    assert next(watch).state.promised.term == 3, "who watches is in charge from now on"


def test_watch_sends_the_state_at_open_and_at_each_change_and_the_last_one_at_the_end(
    mailbox: Mailbox, server: ControlServer, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    watch = stub.Watch(pb.WatchRequest(job_id="job"), timeout=100, metadata=METADATA)
    assert next(watch).state.phase == pb.RANK_PHASE_TRAINING
    assert server.num_watches == 1
    mailbox.publish(replace(TRAINING, phase=RankPhase.PARKED))
    assert next(watch).state.phase == pb.RANK_PHASE_PARKED
    mailbox.publish(replace(TRAINING, epoch=1))
    assert next(watch).state.epoch == 1
    mailbox.publish(replace(TRAINING, epoch=1, phase=RankPhase.FINISHED))
    server.stop(grace_seconds=20)
    assert [answer.state.phase for answer in watch] == [pb.RANK_PHASE_FINISHED]


def test_a_cancelled_watch_frees_its_thread_and_one_too_many_ends_the_oldest(
    mailbox: Mailbox, server: ControlServer, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    def watch() -> Iterator[pb.WatchResponse]:
        stream = stub.Watch(pb.WatchRequest(job_id="job"), timeout=100, metadata=METADATA)
        next(stream)
        return stream

    for _ in range(4 * MAX_WATCHES):
        watch().cancel()  # type: ignore[attr-defined]
    streams = [watch() for _ in range(MAX_WATCHES + 1)]
    assert code_of(next, streams[0]) is grpc.StatusCode.ABORTED
    assert stub.Status(pb.StatusRequest(job_id="job"), timeout=60, metadata=METADATA).state.rank == 3
    mailbox.publish(replace(TRAINING, phase=RankPhase.PARKED))
    assert next(streams[-1]).state.phase == pb.RANK_PHASE_PARKED


def test_a_probe_answers_once_the_training_thread_reaches_a_border(
    mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    asked = stub.Probe.future(
        pb.ProbeRequest(job_id="job", matrix_size=8, repetitions=2), timeout=60, metadata=METADATA
    )
    while not mailbox.probes.serve(lambda size, repetitions: [float(size)] * repetitions):
        pass
    assert list(asked.result().seconds) == [8.0, 8.0]


def test_a_probe_of_a_link_reaches_a_loop_with_step_votes_and_is_refused_by_any_other(
    mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    link = pb.LinkProbe(probe_id=3, partner_rank=1, num_bytes=100, num_ranks=4)
    request = pb.ProbeRequest(job_id="job", repetitions=3, link=link)
    assert code_of(stub.Probe, request, timeout=60, metadata=METADATA) is grpc.StatusCode.INVALID_ARGUMENT
    mailbox.probes.serve_links()
    asked = stub.Probe.future(request, timeout=60, metadata=METADATA)
    while (waiting := mailbox.probes.waiting_link()) is None:
        pass
    assert waiting == LinkProbe(probe_id=3, partner_rank=1, num_bytes=100, num_ranks=4, repetitions=3)
    mailbox.probes.end_link(waiting, seconds=[0.5, 0.25])
    assert list(asked.result().seconds) == [0.5, 0.25]


def test_a_loop_that_cannot_be_reshaped_refuses_plans(mailbox: Mailbox) -> None:
    server = ControlServer(mailbox, job_id="job", job_token=TOKEN, can_reshape=False)
    server.start()
    with grpc.insecure_channel(server.address()) as channel:
        stub = control_pb2_grpc.RankControlServiceStub(channel)
        request = pb.PrepareRequest(reshape=reshape_to_proto(plan(1, ApplyMode.BOUNDARY)))
        assert code_of(stub.Prepare, request, timeout=60, metadata=METADATA) is grpc.StatusCode.FAILED_PRECONDITION
    server.stop()


def test_a_plan_that_the_loop_cannot_run_is_refused_with_the_reason_and_nothing_changes(
    mailbox: Mailbox, stub: control_pb2_grpc.RankControlServiceStub
) -> None:
    def check(layout: Layout) -> None:
        raise ValueError(f"unknown schedule {layout.schedule!r}")

    mailbox.require(check)
    request = pb.PrepareRequest(reshape=reshape_to_proto(plan(1, ApplyMode.BOUNDARY)))
    with pytest.raises(grpc.RpcError, match="unknown schedule '1f1b'") as refused:
        stub.Prepare(request, timeout=60, metadata=METADATA)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal_in(refused.value).reason == pb.REFUSAL_REASON_UNABLE
    assert mailbox.state == TRAINING
    assert mailbox.committed_epoch() == 0


def test_stopping_leaves_no_thread_behind(mailbox: Mailbox) -> None:
    others = set(threading.enumerate())
    server = ControlServer(mailbox, job_id="job", job_token=TOKEN)
    server.start()
    with grpc.insecure_channel(server.address()) as channel:
        stub = control_pb2_grpc.RankControlServiceStub(channel)
        stub.Status(pb.StatusRequest(job_id="job"), timeout=60, metadata=METADATA)
        server.stop()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("evenkeel-control"):
            thread.join(60)
            assert not thread.is_alive()


PROCESS_WITH_A_CONTROLLER = """
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from tests.fakes.plan_messages import commit_to_proto, reshape_to_proto

mailbox = Mailbox(rank=3, incarnation=1)
mailbox.publish(RankState(rank=3, incarnation=1, phase=RankPhase.TRAINING, epoch=0, iteration=7, steps_applied=7))
server = ControlServer(mailbox, job_id="job", job_token="a-token-of-this-job")
server.start()
print(server.address(), flush=True)
input()
"""


def test_a_process_that_is_watched_ends_when_its_training_does() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS_WITH_A_CONTROLLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with grpc.insecure_channel(process.stdout.readline().strip()) as channel:
            stub = control_pb2_grpc.RankControlServiceStub(channel)
            watch = stub.Watch(pb.WatchRequest(job_id="job"), metadata=METADATA)
            assert next(watch).state.iteration == 7
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
