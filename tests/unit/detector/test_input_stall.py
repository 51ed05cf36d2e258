"""What the kind remembers of input stalls survives a restart, also one from a version that remembered every frame."""

from services.detector.domain.kinds.input_stall import InputStall


def test_an_older_snapshot_gives_its_stalls_and_how_many_frames_it_has_seen() -> None:
    watch = InputStall()
    watch.restore({"recent": [[7, 0.01, []], [8, 0.3, [2, 5]], [9, 0.02, []]], "num_calm": 4})
    assert watch.to_state() == {"num_seen": 3, "stalls": [[2, 8, 0.3, [2, 5]]], "num_calm": 4}


def test_a_restored_one_is_what_was_saved() -> None:
    watch = InputStall()
    state = {"num_seen": 40, "stalls": [[33, 90, 0.25, [1]], [38, 95, 0.5, [1, 3]]], "num_calm": 0}
    watch.restore(state)
    assert watch.to_state() == state
