"""What an agent runs: a user's script, as replicas of which some are on this host."""

from dataclasses import dataclass
from pathlib import Path

from evenkeel.trainer_sdk.control.fleet.address import split_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """A job of replicas as one host sees it.

    Attributes:
        job_id: Job.
        script: Path of a Python file, or the name of a module.
        arguments: Its arguments.
        is_module: ``script`` is a module's name.
        num_hosts: Hosts that begin the job.
        host: This one among them.
        num_ranks: Ranks on each host.
        replica_size: Ranks of a replica; all of them are on one host.
        stores: ``host:port`` of each of the job's stores; empty where there is one host, which has one.
        max_restarts: How often a replica is started again.

    Raises:
        ValueError: The numbers do not fit together; one line that says what to do.
    """

    job_id: str
    script: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    num_hosts: int = 1
    host: int = 0
    num_ranks: int = 1
    replica_size: int = 1
    stores: tuple[str, ...] = ()
    max_restarts: int = 10

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--nnodes", self.num_hosts, 1),
            ("--nproc-per-node", self.num_ranks, 1),
            ("--replica-size", self.replica_size, 1),
            ("--max-restarts", self.max_restarts, 0),
        ):
            if value < least:
                raise ValueError(f"{option} {value}: at least {least}")
        if not 0 <= self.host < self.num_hosts:
            raise ValueError(f"--node-rank {self.host}: 0 to --nnodes - 1, which is {self.num_hosts - 1}")
        if self.num_ranks % self.replica_size:
            raise ValueError(
                f"--nproc-per-node {self.num_ranks} is no multiple of --replica-size {self.replica_size}: a replica is "
                "on one host; for larger ones give each a torchrun of its own"
            )
        if self.num_hosts > 1 and not self.stores:
            raise ValueError(
                "--rdzv-endpoint is missing: with several hosts give host:port of each of an odd number of them, such "
                "as a:29400,b:29400,c:29400"
            )
        for each in self.stores:
            try:
                split_address(each)
            except ValueError as error:
                raise ValueError(f"--rdzv-endpoint {error}; or several of them, comma-separated") from error
        if not self.is_module and not Path(self.script).is_file():
            raise ValueError(f"{self.script}: there is no such file; give a Python script, or -m and a module")

    @property
    def replicas(self) -> range:
        """Those of this host."""
        number = self.num_ranks // self.replica_size
        return range(number * self.host, number * (self.host + 1))

    def settings(
        self, replica: int, index: int, incarnation: int, *, token: str, stores: str, port: int
    ) -> dict[str, str]:
        """What a rank finds in its environment: torchrun's words for its replica, and ours.

        Args:
            replica: Its replica.
            index: It within the replica.
            incarnation: The how manieth of the replica's lives.
            token: Of this life.
            stores: All of the job's.
            port: Where the replica's ranks meet one another.
        """
        return {
            "RANK": str(index),
            "LOCAL_RANK": str((replica - self.replicas.start) * self.replica_size + index),
            "WORLD_SIZE": str(self.replica_size),
            "LOCAL_WORLD_SIZE": str(self.num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(incarnation),
            "EVENKEEL_JOB_ID": self.job_id,
            "EVENKEEL_REPLICA": str(replica),
            "EVENKEEL_NUM_REPLICAS": str(self.num_hosts * len(self.replicas)),
            "EVENKEEL_STORE": stores,
            "EVENKEEL_TOKEN": token,
        }
