"""``<run_dir>/job.json``: which processes a running job has. The launcher writes it, fault injection reads it."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evenkeel.layouts.json_schema import record_from
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec

FILE_NAME = "job.json"


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """One rank's newest process. ``pid`` is 0 until it is forked."""

    rank: int
    node: str
    device: str
    incarnation: int = 0
    pid: int = 0
    alive: bool = False
    exit_code: int | None = None


@dataclass(slots=True, kw_only=True)
class RunState:
    """A running job's processes.

    Attributes:
        job_id: Job.
        supervisor_pid: The launcher.
        zygote_pid: Parent of the ranks; 0 before it runs.
        store_address: ``host:port`` of the rendezvous store; empty before it runs.
        store_pid: Its newest process; 0 before it runs.
        store_starts: How many processes it has had: more than one says that it died.
        speed_table: Path of the table of emulated devices' speeds; empty where devices are real.
        link_table: Path of the table of emulated links; empty where links are not emulated.
        ranks: Newest process of each rank, ascending.
    """

    job_id: str
    supervisor_pid: int
    speed_table: str
    zygote_pid: int = 0
    store_address: str = ""
    store_pid: int = 0
    store_starts: int = 0
    link_table: str = ""
    ranks: list[RankProcess] = field(default_factory=list)

    def process(self, rank: int) -> RankProcess:
        """A rank's newest process.

        Raises:
            ValueError: No such rank.
        """
        found = next((each for each in self.ranks if each.rank == rank), None)
        if found is None:
            first, last = self.ranks[0].rank, self.ranks[-1].rank
            raise ValueError(f"job {self.job_id} has no rank {rank} here: it has {first} to {last}")
        return found

    def write(self, run_dir: Path) -> None:
        """Replace the file in one step: a reader sees the old one or the new one.

        Raises:
            OSError: It cannot be written; the old one stays.
        """
        fresh = run_dir / f"{FILE_NAME}.{os.getpid()}"
        try:
            fresh.write_text(json.dumps(asdict(self), indent=1) + "\n")
            fresh.replace(run_dir / FILE_NAME)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def first_state(spec: JobSpec) -> RunState:
    """What a launcher begins with: ranks of its host come after those that an earlier one had here in the same job."""
    known: dict[int, int] = {}
    if spec.host is not None:  # else a job that runs again in its folder begins anew
        with suppress(ValueError):
            earlier = read_run_state(spec.run_dir)
            known = {each.rank: each.incarnation for each in earlier.ranks if earlier.job_id == spec.job_id}
    return RunState(
        job_id=spec.job_id,
        supervisor_pid=os.getpid(),
        speed_table=str(spec.speed_table_path) if spec.device_kind is DeviceKind.EMULATED else "",
        link_table=str(spec.link_table_path) if spec.link_bytes_per_second else "",
        ranks=[
            RankProcess(
                rank=rank, node=spec.node_of(rank), device=spec.device_of(rank), incarnation=known.get(rank, -1) + 1
            )
            for rank in spec.own_ranks
        ],
    )


def read_run_state(run_dir: Path) -> RunState:
    """The state of the job that runs in ``run_dir``.

    Raises:
        ValueError: There is no job in that folder, or its file cannot be read.
    """
    path = run_dir / FILE_NAME
    try:
        return record_from(RunState, json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ValueError(f"no job runs in {run_dir}: give the folder that 'evenkeel run' printed") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a job's state: {error}") from error
