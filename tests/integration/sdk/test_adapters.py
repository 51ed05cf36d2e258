"""Models as users wrap them, on real process groups: what they compute is told from what they wait for."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from evenkeel.services.detector.domain.frames.observation import RankProgress
from evenkeel.services.detector.domain.processes.hang import find_hangs
from tests.warm import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "entry_points" / "watched_models.py"
SLOW_RANK = 1
PATIENCE_SECONDS = 120.0

FORWARD_AND_BACKWARD = {
    "single": ["forward", "iteration", "backward"],
    "ddp": ["wait:buffers", "forward", "iteration", "backward", "wait:gradient"],
    "accumulated": [
        *("wait:buffers", "forward", "iteration", "backward", "iteration"),
        *("wait:buffers", "forward", "iteration", "backward", "wait:gradient"),
    ],
    "sharded": [
        *("wait:parameters", "forward") * 3,  # the whole, and each block
        *("iteration", "backward"),  # of the loss
        *("wait:parameters", "backward"),  # the head
        *("wait:parameters", "backward", "wait:parameters"),  # the second block, and its gradients
        *("wait:parameters", "backward", "backward", "wait:gradient"),  # the first
    ],
}
FORWARD_AND_BACKWARD["last sharded"] = [
    *("wait:parameters", "forward") * 4,
    *("iteration", "wait:parameters", "backward"),  # the head, whose output is that of the whole
    *("backward", "wait:parameters", "backward"),
    *("wait:parameters", "wait:parameters", "backward", "backward") * 2,  # gradients of one, and the block before
    "wait:gradient",
]
FORWARD_AND_BACKWARD["compiled"] = FORWARD_AND_BACKWARD["last sharded"]
FORWARD_AND_BACKWARD |= dict.fromkeys(("recomputed", "mixed"), FORWARD_AND_BACKWARD["sharded"])
FORWARD_AND_BACKWARD["hooked"] = FORWARD_AND_BACKWARD["ddp"]
WAITING = [kind for kind in FORWARD_AND_BACKWARD if kind != "single"]


@dataclass
class Ranks:
    """Two processes, and what each of them said of each kind of model."""

    said: list[dict[str, Any]]
    pictures: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("watched")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
        }
        with (folder / f"{rank}.log").open("wb") as log:
            processes.append(WarmProgram([sys.executable, PROGRAM, folder], env=environment, stdout=log, stderr=log))
    try:
        pictures = {}
        for kind in ("ddp", "sharded"):
            pictures[kind] = _picture_of_hang(folder, kind, processes)
            (folder / f"{kind}.go").touch()
        assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0]
        yield Ranks([json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], pictures)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _picture_of_hang(folder: Path, kind: str, processes: list[WarmProgram]) -> list[dict[str, Any]]:
    """Where both ranks stand once one of them is held up in its forward pass and the other one cannot go on."""
    ends = time.monotonic() + PATIENCE_SECONDS
    marks: list[dict[str, Any]] = []
    while time.monotonic() < ends:
        logs = "".join((folder / f"{rank}.log").read_text() for rank in range(2))
        assert all(process.poll() is None for process in processes), logs
        files = [folder / f"{kind}.{rank}.mark" for rank in range(2)]
        marks = [json.loads(file.read_text()) for file in files if file.exists()]
        if len(marks) == 2 and marks[0]["waiting_for"] and marks[SLOW_RANK]["operation"] == "forward":
            break
        time.sleep(0.05)
    return marks


@pytest.mark.parametrize("kind", FORWARD_AND_BACKWARD)
def test_a_watched_model_learns_what_it_learns_unwatched(ranks: Ranks, kind: str) -> None:
    for said in ranks.said:
        assert said[kind]["watched"]["parameters"] == said[kind]["plain"]["parameters"]


@pytest.mark.parametrize("kind", [kind for kind in WAITING if "sharded" in kind or kind == "compiled"])
def test_passes_without_gradients_leave_nothing_behind(ranks: Ranks, kind: str) -> None:
    assert [said[kind]["graphs_kept"] for said in ranks.said] == [0, 0]


@pytest.mark.parametrize(("kind", "phases"), FORWARD_AND_BACKWARD.items())
def test_every_phase_of_an_iteration_is_marked_in_order(ranks: Ranks, kind: str, phases: list[str]) -> None:
    for said in ranks.said:
        assert said[kind]["watched"]["operations"] == [
            *("iteration", *phases),
            *("iteration", "optimizer", "iteration", "between iterations"),
        ]
        assert said[kind]["plain"]["operations"] == ["iteration", "between iterations"]


@pytest.mark.parametrize("kind", WAITING)
def test_only_the_slow_rank_computes_longer_though_all_take_as_long(ranks: Ranks, kind: str) -> None:
    slow, other = (ranks.said[rank][kind]["watched"]["samples"] for rank in (SLOW_RANK, 1 - SLOW_RANK))
    assert min(sample["compute"] for sample in slow) >= 0.1
    waited = [sample["waiting"] / sample["wall"] for sample in other]
    computed = [sample["compute"] / sample["wall"] for sample in other]
    assert max(waited) > 0.5 > min(computed)
    for sample in (*slow, *other):
        assert 0 < sample["backward"] < sample["compute"]
        assert sample["compute"] + sample["optimizer"] + sample["waiting"] <= sample["wall"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells waiting for a core")
@pytest.mark.parametrize("kind", FORWARD_AND_BACKWARD)
def test_a_sleep_in_the_forward_pass_is_blocked_time_and_no_work(ranks: Ranks, kind: str) -> None:
    num_sleeps = 3 if kind == "hooked" else 2  # in a hook of the user's, forward, backward
    for sample in ranks.said[SLOW_RANK][kind]["watched"]["samples"]:
        assert sample["cpu"] > 0
        # Differences of three clocks, which are not read in the same moment: a busy machine comes in between.
        assert blocked(sample) >= 0.1 * num_sleeps - 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells waiting for a core")
@pytest.mark.parametrize("kind", WAITING)
def test_who_waits_for_a_rank_that_sleeps_in_either_pass_is_not_blocked(ranks: Ranks, kind: str) -> None:
    for sample in ranks.said[1 - SLOW_RANK][kind]["watched"]["samples"]:
        assert blocked(sample) < 0.05


def blocked(sample: dict[str, float]) -> float:
    """Seconds of the passes in which the thread neither had a core nor waited for one."""
    return sample["compute"] - sample["cpu"] - sample["queued"]


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_a_rank_that_hangs_is_told_from_the_one_that_waits_for_it(ranks: Ranks, kind: str) -> None:
    picture = tuple(
        RankProgress(
            rank=rank,
            incarnation=0,
            iteration=0,
            epoch=0,
            operation=mark["operation"],
            waiting_for=tuple(mark["waiting_for"]),
            seconds_since_heard=0.1,
            seconds_since_moved=20.0,
        )
        for rank, mark in enumerate(ranks.pictures[kind])
    )
    (hang,) = find_hangs(picture, iteration_seconds=1.0, epoch=0)
    assert (hang.rank, hang.operation, hang.victims, hang.named) == (SLOW_RANK, "forward", (0,), 1)
