"""Which rank a process is: what the launchers say, and that two live processes are not one rank."""

import subprocess
import sys

import pytest
from torch import distributed

from evenkeel.trainer_sdk.watch.identity import RankClaim, source_of_this_process

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (5, "gpu-1", 2)),
        (SLURM, (3, "gpu-1", 0)),
        (OPEN_MPI, (2, "gpu-0", 0)),
        ({**SLURM, **TORCHRUN}, (5, "gpu-1", 2)),  # torchrun within a step of Slurm
        ({"RANK": "7"}, (7, "gpu-7", 0)),
        ({"RANK": "", **SLURM}, (3, "gpu-1", 0)),
    ],
)
def test_a_launcher_says_which_rank_a_process_is(environment: dict[str, str], expected: tuple[int, str, int]) -> None:
    found = source_of_this_process({"EVENKEEL_JOB_ID": "job", **environment})
    assert (found.job_id, found.rank, found.device, found.incarnation) == ("job", *expected)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "no rank"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "no rank"),  # as Lightning's children are before their group is
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "first"}, "SLURM_LOCALID is 'first'"),
    ],
)
def test_what_names_no_rank_is_one_line(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        source_of_this_process({"EVENKEEL_JOB_ID": "job", **environment})
    assert "\n" not in str(error.value)


def test_an_initialized_group_knows_better_than_the_environment() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        found = source_of_this_process({"EVENKEEL_JOB_ID": "job", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"})
    finally:
        distributed.destroy_process_group()
    assert found.rank == 0


CLAIMS = """
import sys
from evenkeel.trainer_sdk.watch.identity import RankClaim
claim = RankClaim()
print(claim.take(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), flush=True)
sys.stdin.read()
"""


def claimed_by_another(job_id: str, rank: int, incarnation: int) -> tuple[bool, "subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMS, job_id, str(rank), str(incarnation)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process.stdout.readline() == "True\n", process


def test_one_live_process_is_a_rank_and_a_killed_one_is_it_no_more(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("claims")))
    monkeypatch.setattr("tempfile.tempdir", None)
    first, process = claimed_by_another("job", 0, 0)
    with process:
        claim = RankClaim()
        assert first
        assert not claim.take("job", 0, 0)
        for other in (("job", 1, 0), ("job", 0, 1), ("other", 0, 0)):
            assert RankClaim().take(*other)
        process.kill()
    assert claim.take("job", 0, 0)
