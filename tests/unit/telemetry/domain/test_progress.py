import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.telemetry.domain.observed import EventKind, Picture
from evenkeel.services.telemetry.domain.progress import ProgressWatcher
from tests.unit.telemetry.samples import event, progress


class Job:
    """Ranks that report five times a second; who is in ``stuck`` does not move, who is in ``mute`` is not heard."""

    def __init__(self, *, num_ranks: int = 3, iteration_seconds: float = 0.1) -> None:
        self.watcher = ProgressWatcher()
        self.now_seconds = 1000.0
        self.stuck: set[int] = set()
        self.mute: set[int] = set()
        self._counts = dict.fromkeys(range(num_ranks), 0)
        self._iteration_seconds = iteration_seconds

    def run(self, seconds: float) -> list[Picture]:
        pictures = []
        for _ in range(round(seconds / 0.2)):
            self.now_seconds += 0.2
            for rank in self._counts:
                self._counts[rank] += rank not in self.stuck
                if rank not in self.mute:
                    self.watcher.add(progress(rank, self._counts[rank]), self.now_seconds)
            picture = self.watcher.tick(self.now_seconds, iteration_seconds=self._iteration_seconds)
            if picture is not None:
                pictures.append(picture)
        return pictures


def test_a_job_that_moves_is_in_no_picture() -> None:
    assert Job().run(60.0) == []


def test_a_job_that_stands_still_is_pictured_a_few_times_a_second_and_once_when_it_moves_again() -> None:
    job = Job()
    job.run(2.0)
    job.stuck = {0, 1, 2}
    pictures = job.run(3.0)
    assert 6 <= len(pictures) <= 12
    assert pictures[0].seconds_without_progress == pytest.approx(1.2, abs=0.21)
    assert [each.rank for each in pictures[0].ranks] == [0, 1, 2]
    assert pictures[-1].ranks[0].seconds_since_moved == pytest.approx(3.0, abs=0.21)
    assert pictures[-1].ranks[0].seconds_since_heard == pytest.approx(0.0, abs=0.01)
    job.stuck = set()
    [last] = job.run(5.0)
    assert last.seconds_without_progress == pytest.approx(0.0, abs=0.01)


def test_a_slow_job_gets_two_of_its_own_iterations_before_it_stands_still() -> None:
    job = Job(iteration_seconds=5.0)
    job.run(2.0)
    job.stuck = {0, 1, 2}
    assert job.run(9.8) == []
    assert job.run(1.0) != []


def test_nobody_knows_the_pace_of_a_job_before_its_first_frame() -> None:
    job = Job(iteration_seconds=0.0)
    job.run(1.0)
    job.stuck = {0, 1, 2}
    assert job.run(9.0) == []
    assert job.run(2.0) != []


def test_one_rank_that_falls_silent_is_pictured_although_others_move() -> None:
    job = Job()
    job.run(2.0)
    job.mute = {1}
    pictures = job.run(3.0)
    assert pictures
    assert pictures[-1].ranks[1].seconds_since_heard > 2.0
    assert pictures[-1].seconds_without_progress < 0.3


def test_silence_of_all_is_a_cut_line_and_counts_for_nothing() -> None:
    job = Job()
    job.run(2.0)
    job.mute = {0, 1, 2}
    assert job.run(12.0) == []
    assert job.watcher.cut_off(job.now_seconds)
    job.watcher.excuse(12.0)
    job.mute = set()
    assert job.run(5.0) == []


def test_who_comes_back_late_after_a_cut_is_in_no_picture_until_then_and_later_nobody_is_excused() -> None:
    job = Job()
    job.run(2.0)
    job.mute = {0, 1, 2}
    job.run(12.0)
    job.watcher.excuse(12.0)
    job.watcher.all_back_at_seconds = job.now_seconds + 12.0
    job.mute, job.stuck = {1}, {0, 1, 2}
    pictures = job.run(6.0)
    assert [each.rank for each in pictures[-1].ranks] == [0, 2]
    job.mute = set()
    assert [each.rank for each in job.run(2.0)[-1].ranks] == [0, 1, 2]
    job.mute = {2}
    pictures = job.run(8.0)
    assert [each.rank for each in pictures[-1].ranks] == [0, 1, 2]
    assert pictures[-1].ranks[2].seconds_since_heard > 7.0


def test_silence_of_all_that_lasts_is_believed_in_the_end() -> None:
    job = Job()
    job.run(2.0)
    job.mute = {0, 1, 2}
    assert job.run(16.0) != []


@pytest.mark.parametrize("kind", [EventKind.DIED, EventKind.FINISHED])
def test_who_ended_is_in_no_picture_and_late_news_does_not_bring_it_back(kind: EventKind) -> None:
    job = Job()
    job.run(2.0)
    job.watcher.event(event(kind, 1), job.now_seconds)
    job.stuck = {0, 1, 2}
    pictures = job.run(3.0)
    assert [each.rank for each in pictures[-1].ranks] == [0, 2]


def test_a_new_process_of_a_dead_rank_is_watched_again() -> None:
    watcher = ProgressWatcher()
    watcher.add(progress(0, 1), 0.0)
    watcher.event(event(EventKind.DIED, 0), 0.1)
    watcher.event(event(EventKind.STARTED, 0, incarnation=1), 0.2)
    assert not watcher.all_ended
    watcher.add(progress(0, 5), 0.3)
    picture = watcher.tick(60.0, iteration_seconds=0.1)
    assert picture is not None
    assert [(each.rank, each.incarnation, each.report) for each in picture.ranks] == [(0, 1, None)]


def test_a_watcher_that_starts_in_the_middle_of_a_hang_believes_the_ranks_own_clock() -> None:
    watcher = ProgressWatcher()
    watcher.add(progress(0, 7, seconds=4.0), 100.0)
    picture = watcher.tick(100.0, iteration_seconds=0.1)
    assert picture is not None
    assert picture.seconds_without_progress == pytest.approx(4.0)


happenings = st.tuples(
    st.sampled_from(["report", "sample", "die", "start", "excuse"]), st.integers(0, 3), st.integers(0, 2)
)


@settings(deadline=None)
@given(st.lists(happenings, max_size=40))
def test_up_to_when_anything_is_known_follows_the_newest_rank_that_reports(told: list[tuple[str, int, int]]) -> None:
    watcher, now_seconds = ProgressWatcher(), 100.0
    alive: dict[int, tuple[int, float, bool]] = {}
    ended: dict[int, int] = {}
    for what, rank, incarnation in told:
        now_seconds += 0.1
        held, _, reported = alive.get(rank, (-1, 0.0, False))
        if what == "excuse":
            watcher.excuse(0.05)
            alive = {each: (held, heard + 0.05, says) for each, (held, heard, says) in alive.items()}
        elif what == "die":
            watcher.event(event(EventKind.DIED, rank, incarnation=incarnation), now_seconds)
            ended[rank] = max(ended.get(rank, -1), incarnation)
            if rank in alive and held <= incarnation:
                del alive[rank]
        else:
            if what == "report":
                watcher.add(progress(rank, 1, incarnation=incarnation), now_seconds)
            elif what == "sample":
                watcher.finished_iterations(np.array([rank]), np.array([incarnation]), now_seconds)
            else:
                watcher.event(event(EventKind.STARTED, rank, incarnation=incarnation), now_seconds)
            if rank in alive and held == incarnation:
                alive[rank] = (held, now_seconds, reported or what == "report")
            elif incarnation > held and incarnation > ended.get(rank, -1):
                alive[rank] = (incarnation, now_seconds, what == "report")
        newest = max((heard for _, heard, says in alive.values() if says), default=now_seconds)
        assert watcher.known_until_seconds(now_seconds) == pytest.approx(newest)
