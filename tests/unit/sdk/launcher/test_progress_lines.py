import math
from pathlib import Path

from evenkeel.trainer_sdk.launcher.progress.progress_board import Note, ProgressBoard
from evenkeel.trainer_sdk.launcher.progress.progress_lines import ProgressLines


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_lines_say_iteration_loss_pace_epoch_and_who_is_there(tmp_path: Path) -> None:
    board, clock = ProgressBoard.create(tmp_path / "progress", 2), Clock()
    lines = ProgressLines(board, 5.0, clock=clock)
    assert lines.line({0, 1}, 2) is None
    clock.seconds += 5
    assert lines.line({0, 1}, 2) is None, "nobody has said anything"
    clock.seconds += 1
    board.write(0, Note(9, 0, math.nan, clock.seconds))
    board.write(1, Note(9, 0, 4.25, clock.seconds))
    assert lines.line({0, 1}, 2) == "iteration 9  loss 4.2500  epoch 0  training 2 of 2"
    clock.seconds += 4
    assert lines.line({0, 1}, 2) is None, "not due"
    clock.seconds += 1
    ProgressBoard(tmp_path / "progress").write(1, Note(19, 1, 4.0, clock.seconds))
    told = "iteration 19  loss 4.0000  0.500 s/iteration  epoch 1  training 1 of 2"
    assert lines.line({0, 1}, 2) == told, "rank 0 lives, and its last word is of an earlier epoch"
    clock.seconds += 7
    told = "iteration 19  loss 4.0000  standing still for 7 s  epoch 1  training 0 of 2, idle 2"
    assert lines.line({0, 1}, 2, lambda: "training 0 of 2, idle 2") == told, "the scheduler knows better"


def test_before_the_first_iteration_the_scheduler_is_heard(tmp_path: Path) -> None:
    board, clock = ProgressBoard.create(tmp_path / "progress", 2), Clock()
    lines = ProgressLines(board, 5.0, clock=clock)
    clock.seconds += 5
    assert lines.line({0, 1}, 2, lambda: "training 0 of 2") == "no iteration yet  training 0 of 2"
    assert lines.line({0, 1}, 2, lambda: "training 0 of 2") is None, "not due"


def test_a_rank_that_has_not_been_heard_for_long_does_not_train(tmp_path: Path) -> None:
    board = ProgressBoard.create(tmp_path / "progress", 3)
    assert board.training() == ()
    for rank, at in ((0, 1000.0), (1, 992.0), (2, 980.0)):
        board.write(rank, Note(7, 1, math.nan, at))
    assert board.training() == (0, 1)


def test_no_lines_are_no_lines(tmp_path: Path) -> None:
    board = ProgressBoard.create(tmp_path / "progress", 1)
    board.write(0, Note(1, 0, 1.0, 1.0))
    assert ProgressLines(board, 0.0).line({0}, 1) is None
