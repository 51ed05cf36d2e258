import pytest

from evenkeel.contracts.frames import Frames
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.joiner import FrameJoiner
from evenkeel.services.telemetry.domain.observed import EventKind, JobMemory, Numbered, Picture
from tests.unit.telemetry.joining import Seen, seen
from tests.unit.telemetry.samples import arrived, event, progress, sample


def run_iterations(
    stream: JobStream, iterations: range, *, num_ranks: int = 2, at_seconds: float = 0.0
) -> list[Numbered]:
    numbered = []
    for iteration in iterations:
        for rank in range(num_ranks):
            numbered += stream.take(arrived([sample(rank, iteration, offset=iteration * num_ranks + rank)]), at_seconds)
    return numbered


def test_observations_are_numbered_without_gaps_whatever_they_are() -> None:
    stream = JobStream("job")
    numbered = run_iterations(stream, range(3))
    numbered += stream.take(arrived(events=[event(EventKind.DIED, 1)]), 0.5)
    stream.take(arrived(progress=[progress(0, 1)]), 0.5)
    numbered += stream.tick(0.6)
    stream.take(arrived(progress=[progress(0, 1)]), 1.7)
    numbered += stream.tick(1.7)
    assert [each.sequence for each in numbered] == list(range(len(numbered)))
    assert [type(each.observed).__name__ for each in numbered] == [
        "Frames",
        "Frames",
        "Frames",
        "ArrivedEvent",
        "Picture",
    ]


def test_an_event_passes_at_once_and_once() -> None:
    stream = JobStream("job")
    died = event(EventKind.DIED, 1)
    assert [each.observed for each in stream.take(arrived(events=[died]), 0.0)] == [died]
    assert stream.take(arrived(events=[died]), 0.1) == []
    assert stream.take(arrived(events=[event(EventKind.DIED, 1, incarnation=1)]), 0.2) != []


@pytest.mark.parametrize("told_at", [0.0, 1.6e9 + 601, 9e10])
def test_an_event_of_a_clock_that_is_far_off_is_dated_by_ours_and_passes_once(told_at: float) -> None:
    stream, now_seconds = JobStream("job"), 1.6e9
    died = event(EventKind.DIED, 1, at_seconds=told_at)
    [numbered] = stream.take(arrived(events=[died]), now_seconds)
    assert numbered.observed == died._replace(at_seconds=now_seconds)
    assert stream.take(arrived(events=[died]), now_seconds + 5) == []


def test_an_event_that_comes_minutes_late_keeps_its_time() -> None:
    died = event(EventKind.DIED, 1, at_seconds=1000.0)
    [numbered] = JobStream("job").take(arrived(events=[died]), 1590.0)
    assert numbered.observed == died


def test_a_death_closes_the_frame_that_waits_for_the_dead_after_the_event() -> None:
    stream = JobStream("job")
    run_iterations(stream, range(2))
    stream.take(arrived([sample(0, 2)]), 1.0)
    numbered = stream.take(arrived(events=[event(EventKind.DIED, 1)]), 1.0)
    assert [type(each.observed).__name__ for each in numbered] == ["ArrivedEvent", "Frames"]
    frame = numbered[1].observed
    assert isinstance(frame, Frames)
    assert seen([frame])[0].ranks == [0]


def test_samples_that_arrive_after_the_news_that_their_rank_finished_are_in_the_last_frame() -> None:
    stream = JobStream("job")
    run_iterations(stream, range(2))
    stream.take(arrived([sample(0, 2)]), 1.0)
    stream.take(arrived(events=[event(EventKind.FINISHED, 1)]), 1.0)
    [numbered] = stream.take(arrived([sample(1, 2)]), 1.1)
    assert isinstance(numbered.observed, Frames)
    assert numbered.observed.present.all()


def test_a_cut_line_neither_closes_frames_nor_takes_pictures() -> None:
    stream = JobStream("job")
    run_iterations(stream, range(2), at_seconds=10.0)
    for rank in range(2):
        stream.take(arrived(progress=[progress(rank, 5)]), 10.0)
    stream.take(arrived([sample(0, 2)]), 10.1)
    assert [each for at in range(12, 22) for each in stream.tick(float(at))] == []
    [numbered] = stream.take(arrived([sample(1, 2)]), 22.0)
    assert isinstance(numbered.observed, Frames)
    assert numbered.observed.present.all()


def test_a_resumed_stream_repeats_neither_numbers_nor_frames_nor_events() -> None:
    before = JobStream("job")
    died = event(EventKind.DIED, 1, incarnation=0)
    said = run_iterations(before, range(5)) + before.take(arrived(events=[died]), 0.5)
    last = [each.observed for each in said if isinstance(each.observed, Frames)][-1]
    after = JobStream("job")
    after.resume(JobMemory(len(said), last, [died]), until_offset=9, now_seconds=1.0)
    assert run_iterations(after, range(2, 5), at_seconds=1.0) == []
    assert after.take(arrived(events=[died]), 1.0) == []
    [numbered] = after.take(arrived([sample(0, 5, offset=10)]), 1.1)
    assert numbered.sequence == len(said)
    assert isinstance(numbered.observed, Frames)
    assert numbered.observed.present.all()


def test_a_job_is_over_soon_after_all_of_its_processes_have_ended_and_else_after_a_long_silence() -> None:
    stream = JobStream("job")
    run_iterations(stream, range(2), at_seconds=10.0)
    stream.take(arrived(events=[event(EventKind.FINISHED, 0)]), 11.0)
    assert not stream.is_over(100.0, idle_seconds=600.0)
    assert stream.is_over(611.0, idle_seconds=600.0)
    stream.take(arrived(events=[event(EventKind.DIED, 1)]), 11.0)
    assert not stream.is_over(20.0, idle_seconds=600.0), "what it measured last may still come"
    assert stream.is_over(23.0, idle_seconds=600.0)


def test_a_picture_needs_ranks() -> None:
    assert JobStream("job").tick(100.0) == []
    assert FrameJoiner().tick(100.0) == []
    assert Picture(at_seconds=0.0, ranks=(), seconds_without_progress=0.0).ranks == ()


def frames_in(numbered: list[Numbered]) -> list[Seen]:
    return seen(each.observed for each in numbered if isinstance(each.observed, Frames))


@pytest.mark.parametrize("epoch", [0, 1])
def test_frames_wait_for_ranks_that_come_back_one_by_one_after_a_cut_also_in_a_new_epoch(epoch: int) -> None:
    stream = JobStream("job")
    run_iterations(stream, range(5), num_ranks=3, at_seconds=10.0)
    stream.after_a_cut(30.0, until_seconds=40.0)
    closed = []
    for rank, at_seconds in enumerate((40.0, 44.0, 49.0)):
        for iteration in range(5, 9):
            closed += stream.take(arrived([sample(rank, iteration, epoch=epoch)]), at_seconds)
        closed += stream.tick(at_seconds + 3.0)
    assert [(frame.iteration, len(frame.ranks)) for frame in frames_in(closed)] == [(at, 3) for at in range(5, 9)]


def test_frames_do_not_wait_for_ever_for_one_that_does_not_come_back_after_a_cut() -> None:
    for cut_seconds, return_seconds in ((3.0, 3.0), (30.0, 12.0)):
        stream = JobStream("job")
        run_iterations(stream, range(5), at_seconds=10.0)
        back_at_seconds = 10.0 + cut_seconds
        stream.after_a_cut(cut_seconds, until_seconds=back_at_seconds)
        stream.take(arrived([sample(0, 5)]), back_at_seconds)
        assert frames_in(stream.tick(back_at_seconds + return_seconds - 0.1)) == []
        [frame] = frames_in(stream.tick(back_at_seconds + return_seconds))
        assert frame.missing == [1]
