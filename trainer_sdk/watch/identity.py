"""Which rank of its job a process is, and that no other live process of this machine says the same of itself."""

import contextlib
import fcntl
import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Final, NamedTuple

from evenkeel.trainer_sdk.emit.batch import Source


class _Launcher(NamedTuple):
    """The variables that one kind of launcher sets."""

    rank: str
    world_size: str
    local_rank: str


_LAUNCHERS: Final = (
    _Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


def source_of_this_process(settings: Mapping[str, str]) -> Source:
    """Which rank of its job it is: what torch.distributed says once it is initialized, else what a launcher left.

    A replica, whatever it is inside, is one rank of its job. Where nobody counts ranks within a node, the device is
    named after the rank.

    Args:
        settings: The environment.

    Raises:
        ValueError: Nobody says it, or what is said cannot be; one line that says what to do.
    """
    job_id = settings.get("EVENKEEL_JOB_ID", "")
    if not job_id:
        raise ValueError("EVENKEEL_JOB_ID is not set")
    replica, num_replicas = (whole_number(settings, f"EVENKEEL_{each}") for each in ("REPLICA", "NUM_REPLICAS"))
    rank, world_size = (replica, num_replicas) if replica is not None else _distributed() or _launched(settings)
    if rank < 0 or (world_size is not None and rank >= world_size):
        raise ValueError(f"rank {rank} of {world_size} ranks: ranks count from 0")
    local_ranks = (whole_number(settings, each.local_rank) for each in _LAUNCHERS)
    local_rank = next((each for each in local_ranks if each is not None and replica is None), rank)
    return Source(
        job_id=job_id,
        rank=rank,
        incarnation=whole_number(settings, "TORCHELASTIC_RESTART_COUNT") or 0,
        node=socket.gethostname(),
        device=f"gpu-{local_rank}",
    )


def _distributed() -> tuple[int, int] | None:
    dist = sys.modules.get("torch.distributed")  # the SDK loads without torch; a group comes with it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _launched(settings: Mapping[str, str]) -> tuple[int, int | None]:
    for launcher in _LAUNCHERS:
        rank = whole_number(settings, launcher.rank)
        if rank is not None:
            return rank, whole_number(settings, launcher.world_size)
    names = ", ".join(launcher.rank for launcher in _LAUNCHERS)
    raise ValueError(
        f"no rank: torch.distributed is not initialized and none of {names} is set; call start() after "
        "init_process_group(), or set RANK and WORLD_SIZE (RANK=0 for a single process)"
    )


def whole_number(settings: Mapping[str, str], name: str) -> int | None:
    """A setting; None where it is not set, or empty.

    Raises:
        ValueError: It is not a number.
    """
    text = settings.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}, not a number")
    return int(text)


class RankClaim:
    """A rank of a job is this process's for as long as it lives, whatever ends it.

    One byte of a file of the user's is locked, which one, the job, rank and incarnation say. The kernel drops the
    lock with the process, and a forked child does not have it. Processes of other machines are not seen.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def take(self, job_id: str, rank: int, incarnation: int) -> bool:
        """Whether it is ours now; False: another live process has it. True too where files cannot be locked."""
        digest = hashlib.sha256(f"{job_id}\0{rank}\0{incarnation}".encode()).digest()
        path = os.path.join(tempfile.gettempdir(), f"evenkeel-ranks-{os.getuid()}")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int.from_bytes(digest[:7], "big"))
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError | PermissionError)
        self._file = file
        return True

    def release(self) -> None:
        """Another process may have it."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)
