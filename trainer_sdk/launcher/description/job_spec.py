"""What a job is, to its launcher."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ENTRY_POINT = re.compile(r"[\w.]+:\w+")


class DeviceKind(StrEnum):
    """What ranks compute on."""

    EMULATED = "emulated"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(ServiceSettings):
    """A job, and how its processes reach the services.

    Attributes:
        job_id: Unique in the fleet.
        entry_point: ``module:function``; the function takes a ``RankContext`` and returns when the rank is done.
        layout: Layout of epoch 0; its ranks and standbys are 0, 1, 2, ... without a hole.
        config: Plain JSON for the entry point.
        run_dir: Where ``job.json``, the speed table and logs go.
        name: For a person.
        tenant: Tenant that may read the job's history.
        device_kind: What ranks compute on.
        flops_per_second: Speed of an emulated healthy device.
        link_bytes_per_second: Speed of an emulated healthy link between two ranks; 0 = links are the machine's own.
        link_latency_seconds: Latency of one; counts only where links are emulated.
        devices_per_node: Consecutive ranks share a node of this size.
        num_threads: Threads that torch may use in each rank.
        restart_delay_seconds: A dead rank comes back after this long; None = never by itself.
        finish_grace_seconds: How long the other ranks may run on after the first one finished.
        logs_to_files: Each rank writes to ``<run_dir>/logs`` rather than to the launcher's output.
        python_path: Folders to look for the entry point in, before the usual ones.
        host: The node, counted from 0, whose ranks this launcher runs; None = all nodes are on this machine.
        stores: ``host:port`` of each of the job's stores; empty where this launcher has the only one.

    Raises:
        ValueError: Something is missing or contradicts itself; the message says what.
    """

    job_id: str
    entry_point: str
    layout: Layout
    run_dir: Path
    config: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tenant: str = ""
    device_kind: DeviceKind = DeviceKind.EMULATED
    flops_per_second: float = 1e9
    link_bytes_per_second: float = 0.0
    link_latency_seconds: float = 0.0
    devices_per_node: int = 4
    num_threads: int = 1
    restart_delay_seconds: float | None = None
    finish_grace_seconds: float = 30.0
    logs_to_files: bool = False
    python_path: tuple[str, ...] = ()
    host: int | None = None
    stores: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _JOB_ID.fullmatch(self.job_id):
            raise ValueError(f"job_id {self.job_id!r}: use 1 to 128 letters, digits, '.', '_', '-'")
        if not _ENTRY_POINT.fullmatch(self.entry_point):
            raise ValueError(f"entry_point {self.entry_point!r}: write it as package.module:function")
        if self.ranks != tuple(range(self.world_size)):
            raise ValueError(
                f"the layout's ranks and standbys are {self.ranks}: use 0 to {self.world_size - 1}, each once"
            )
        if self.link_bytes_per_second and self.device_kind is DeviceKind.CUDA:
            raise ValueError("link_bytes_per_second: links between CUDA devices cannot be emulated, leave it 0")
        if bool(self.rank_certificate) != bool(self.rank_key):
            raise ValueError("rank_certificate and rank_key: both or neither")
        if self.fleet_address and len(self.job_token) < 16:
            raise ValueError("a job that registers needs a job_token of at least 16 characters: set EVENKEEL_JOB_TOKEN")

    def registration(self, model: ModelSpec | None) -> pb.RegisterJobRequest:
        """What the fleet API is told of the job.

        Args:
            model: The model's costs, for the planner.

        Raises:
            ValueError: The job registers and has no model.
        """
        if self.fleet_address and model is None:
            raise ValueError("a job that registers at a fleet API needs a model spec: the planner works with its costs")
        return pb.RegisterJobRequest(
            job_id=self.job_id,
            tenant=self.tenant,
            name=self.name or self.job_id,
            job_token=self.job_token,
            model=None if model is None else model_to_proto(model),
            layout=layout_to_proto(self.layout),
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, standbys included, ascending."""
        return tuple(sorted((*self.layout.ranks, *self.layout.standbys)))

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """Those that this launcher runs, ascending."""
        return tuple(rank for rank in self.ranks if self.host in (None, rank // self.devices_per_node))

    @property
    def world_size(self) -> int:
        """Number of processes, standbys included."""
        return len(self.layout.ranks) + len(self.layout.standbys)

    @property
    def speed_table_path(self) -> Path:
        """The table of emulated devices' speeds."""
        return self.run_dir / "speeds"

    @property
    def progress_board_path(self) -> Path:
        """Where ranks say how far they are, for the launcher to show."""
        return self.run_dir / "progress"

    @property
    def link_table_path(self) -> Path:
        """The table of emulated links' factors; there is one where links are emulated."""
        return self.run_dir / "links"

    def node_of(self, rank: int) -> str:
        """Name of the node a rank runs on."""
        return f"node-{rank // self.devices_per_node}"

    def device_of(self, rank: int) -> str:
        """Name of the device a rank computes on, unique within its node."""
        return f"gpu-{rank % self.devices_per_node}"
