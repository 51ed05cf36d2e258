"""What a job trains: model, workload, optimizer. Plain values, the same on every rank, and JSON for the launcher."""

from dataclasses import asdict, dataclass, field
from typing import Any

from evenkeel.layouts.json_schema import above, complaint, list_of, number, record_from, record_of, whole
from evenkeel.layouts.ranks.levels import WIDEST_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A byte-level GPT. Block 0 is the embedding, the last block the head, the layers lie between.

    Attributes:
        num_layers: Transformer layers.
        num_heads: Attention heads; the granule of tensor parallelism.
        head_dim: Width of a head.
        mlp_multiple: Hidden width of the MLP as a multiple of the model width.
        vocabulary: Distinct tokens: bytes.
        max_document_length: Longest document in tokens.
    """

    num_layers: int = 6
    num_heads: int = 12
    head_dim: int = 8
    mlp_multiple: int = 4
    vocabulary: int = 256  # the corpus is bytes
    max_document_length: int = 512

    @property
    def width(self) -> int:
        """Model width."""
        return self.num_heads * self.head_dim

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return self.width * self.mlp_multiple

    @property
    def num_blocks(self) -> int:
        """Blocks: embedding, layers, head."""
        return self.num_layers + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Which documents make a micro-batch.

    Attributes:
        num_micro_batches: Micro-batches per iteration, under every layout.
        token_budget: Documents are packed until the next one would exceed this many tokens.
        median_document_length: Median of the log-normal length, tokens.
        length_spread: Its sigma; the tail is long.
        min_document_length: Shortest document, tokens.
        long_stretches: Iteration ranges ``[start, stop)`` with unusually long documents.
        long_median_document_length: Median length there.
        corpus_bytes: How much of the corpus to use.
    """

    num_micro_batches: int = 8
    token_budget: int = 256
    median_document_length: float = 40.0
    length_spread: float = 0.8
    min_document_length: int = 8
    long_stretches: tuple[tuple[int, int], ...] = ()
    long_median_document_length: float = 400.0
    corpus_bytes: int = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW.

    Attributes:
        learning_rate: After the warm-up.
        warm_up_iterations: Linear warm-up.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment. A large one keeps rounding noise in tiny gradients from
            becoming full-size steps.
        weight_decay: Decoupled weight decay.
        max_gradient_norm: Clip to this global norm; None does not clip.
    """

    learning_rate: float = 1e-3
    warm_up_iterations: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-4
    weight_decay: float = 0.01
    max_gradient_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesConfig:
    """Copies in the memory of peers of slices that would be gone with two ranks or nodes, or with one.

    Attributes:
        every_iterations: A copy after every so many steps; a failure costs the steps since. 0 keeps none.
        budget_bytes: Most that a rank keeps of others' slices, in host memory, counted once; 0 = no limit. What it
            leaves open is told when an epoch begins.
    """

    every_iterations: int = 1
    budget_bytes: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Copies of everything on disk.

    Attributes:
        directory: Where they go, on storage that all nodes share; each job has a folder of its own in it. Empty = none,
            but ``evenkeel run`` puts in the run's folder.
        every_iterations: A checkpoint after every so many steps.
        keep: How many complete ones stay.
        name: The job's folder in the directory; empty = the job id. The launcher sets it: ids of later runs have a
            number.
    """

    directory: str = ""
    every_iterations: int = 100
    keep: int = 2
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One job.

    Attributes:
        job_id: Names the job in the store.
        seed: Initial values and samples follow from it.
        num_iterations: Optimizer steps of the job.
        dtype: ``float32`` or ``float64``.
        device: ``cpu`` or ``cuda``.
        vote_width: Most ranks that vote, or meet for a new epoch, in one group; larger jobs do it in levels.
        model: Model.
        workload: Workload.
        optimizer: Optimizer.
        copies: Copies in the memory of peers.
        checkpoint: Copies on disk.
        resume_steps: Begin with the checkpoint of so many steps; 0 = from the start. The launcher sets it.
    """

    job_id: str = "job"
    seed: int = 0
    num_iterations: int = 400
    dtype: str = "float32"
    device: str = "cpu"
    vote_width: int = WIDEST_GROUP
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    copies: CopiesConfig = field(default_factory=CopiesConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    resume_steps: int = 0

    def __post_init__(self) -> None:
        if self.resume_steps and not self.checkpoint.directory:
            raise ValueError(f"resume_steps {self.resume_steps} needs a checkpoint.directory to resume from")
        if self.workload.min_document_length > min(self.workload.token_budget, self.model.max_document_length):
            raise ValueError(
                f"documents of at least {self.workload.min_document_length} tokens fit neither a budget of "
                f"{self.workload.token_budget} nor positions up to {self.model.max_document_length}"
            )


_SCHEMA = record_of(
    TrainingConfig,
    dtype={"enum": ["float32", "float64"]},
    vote_width=whole(2),
    model=record_of(
        ModelConfig,
        num_heads=whole(1),
        head_dim=whole(1),
        mlp_multiple=whole(1),
        vocabulary=whole(256),  # the corpus is bytes
        max_document_length=whole(1),
    ),
    workload=record_of(
        WorkloadConfig,
        num_micro_batches=whole(1),
        token_budget=whole(1),
        min_document_length=whole(1),
        long_stretches=list_of({**list_of(whole(), 2), "maxItems": 2}),
    ),
    optimizer=record_of(
        OptimizerConfig,
        beta1={**number(), "exclusiveMaximum": 1},
        beta2={**number(), "exclusiveMaximum": 1},
        # At 0 a row of zero gradients, such as that of a byte that does not occur, steps by 0 / 0.
        epsilon=above(),
        # 0 would drop every gradient, and a negative one turn them around.
        max_gradient_norm={"anyOf": [above(), {"type": "null"}]},
    ),
    checkpoint={"anyOf": [record_of(CheckpointConfig, every_iterations=whole(1), keep=whole(1)), {"type": "null"}]},
)


def config_to_json(config: TrainingConfig) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings."""
    return asdict(config)


def config_from_json(values: dict[str, Any]) -> TrainingConfig:
    """The inverse of :func:`config_to_json`; missing values take their defaults.

    Raises:
        ValueError: Something is unknown or cannot be; the message says where, and what is allowed.
    """
    if flaw := complaint(_SCHEMA, values, "config"):
        raise ValueError(flaw)
    return record_from(TrainingConfig, {**values, "checkpoint": values.get("checkpoint") or {}})
