"""What a job trains: model, workload, optimizer. Plain values, the same on every rank, and JSON for the launcher."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from evenkeel.layouts.ranks.levels import WIDEST_GROUP


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: use a whole number of {least} or more")


def _check_number(name: str, value: object, is_allowed: Callable[[float], bool], allowed: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_allowed(value):
        raise ValueError(f"{name} is {value!r}: use a number {allowed}")


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
    vocabulary: int = 256
    max_document_length: int = 512

    def __post_init__(self) -> None:
        _check_whole("model.num_layers", self.num_layers, 0)
        for name in ("num_heads", "head_dim", "mlp_multiple", "max_document_length"):
            _check_whole(f"model.{name}", getattr(self, name), 1)
        _check_whole("model.vocabulary", self.vocabulary, 256)  # the corpus is bytes

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

    def __post_init__(self) -> None:
        for name in ("num_micro_batches", "token_budget", "min_document_length"):
            _check_whole(f"workload.{name}", getattr(self, name), 1)


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

    def __post_init__(self) -> None:
        _check_whole("optimizer.warm_up_iterations", self.warm_up_iterations, 0)
        for name in ("beta1", "beta2"):
            _check_number(f"optimizer.{name}", getattr(self, name), lambda value: 0 <= value < 1, "from 0 to below 1")
        for name in ("learning_rate", "weight_decay"):
            _check_number(f"optimizer.{name}", getattr(self, name), lambda value: 0 <= value < math.inf, "of 0 or more")
        # Without it a row of zero gradients, such as that of a byte that does not occur, steps by 0 / 0.
        _check_number("optimizer.epsilon", self.epsilon, lambda value: 0 < value < math.inf, "above 0")
        if self.max_gradient_norm is not None:  # 0 would drop every gradient, and a negative one turn them around
            _check_number(
                "optimizer.max_gradient_norm",
                self.max_gradient_norm,
                lambda value: value > 0,
                "above 0, or leave it out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesConfig:
    """Copies in the memory of peers of slices that would be gone with two ranks or nodes, or with one.

    Attributes:
        every_iterations: A copy after every so many steps; a failure costs the steps since. 0 keeps none.
        budget_bytes: Most that a rank keeps of others' slices, in host memory, counted once; 0 = no limit. What it
            leaves open is told when an epoch begins.
    """

    every_iterations: int = 1
    budget_bytes: int = 0

    def __post_init__(self) -> None:
        if self.every_iterations < 0:
            raise ValueError(f"copies.every_iterations {self.every_iterations}: 1 or more, or 0 for no copies")
        if self.budget_bytes < 0:
            raise ValueError(f"copies.budget_bytes {self.budget_bytes}: bytes, or 0 for no limit")


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

    def __post_init__(self) -> None:
        if self.every_iterations < 1 or self.keep < 1:
            raise ValueError(
                f"checkpoint.every_iterations {self.every_iterations} and keep {self.keep}: each must be at least 1; "
                "checkpoint: null is for no checkpoints"
            )


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
        _check_whole("seed", self.seed, 0)
        _check_whole("num_iterations", self.num_iterations, 0)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype {self.dtype!r}: use float32 or float64")
        if self.vote_width < 2:
            raise ValueError(f"vote_width {self.vote_width}: at least 2 ranks make a group")
        if self.resume_steps and not self.checkpoint.directory:
            raise ValueError(f"resume_steps {self.resume_steps} needs a checkpoint.directory to resume from")
        if self.workload.min_document_length > min(self.workload.token_budget, self.model.max_document_length):
            raise ValueError(
                f"documents of at least {self.workload.min_document_length} tokens fit neither a budget of "
                f"{self.workload.token_budget} nor positions up to {self.model.max_document_length}"
            )


def config_to_json(config: TrainingConfig) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings."""
    return asdict(config)


def config_from_json(values: dict[str, Any]) -> TrainingConfig:
    """The inverse of :func:`config_to_json`; missing values take their defaults.

    Raises:
        ValueError: An unknown name.
    """
    top = dict(values)
    try:
        workload = dict(top.pop("workload", {}))
        if "long_stretches" in workload:
            workload["long_stretches"] = tuple((int(a), int(b)) for a, b in workload["long_stretches"])
        return TrainingConfig(
            model=ModelConfig(**top.pop("model", {})),
            workload=WorkloadConfig(**workload),
            optimizer=OptimizerConfig(**top.pop("optimizer", {})),
            copies=CopiesConfig(**top.pop("copies", {})),
            checkpoint=CheckpointConfig(**(top.pop("checkpoint", {}) or {})),
            **top,
        )
    except TypeError as error:
        raise ValueError(f"training configuration: {error}") from error
