"""What a job trains: model, workload, optimizer. Plain values, the same on every rank, and JSON for the launcher."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from evenkeel.layouts.ranks.levels import WIDEST_GROUP


def _whole(default: int, least: int, hint: str = "") -> Any:
    """A field for a whole number of ``least`` or more."""
    what = f"whole number of {least} or more{hint}"
    return _checked(default, lambda value: isinstance(value, int) and value >= least, what)


def _number(default: float, allowed: str, is_allowed: Callable[[float], bool]) -> Any:
    """A field for a number."""
    return _checked(default, lambda value: isinstance(value, int | float) and is_allowed(value), f"number {allowed}")


def _checked(default: object, allows: Callable[[Any], bool], what: str) -> Any:
    return field(default=default, metadata={"allows": allows, "what": what})


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the configuration; refuses by name what a field does not allow."""

    SECTION: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, rule = getattr(self, each.name), each.metadata
            # No field that is checked may be true or false, which Python counts as whole numbers.
            if rule and (isinstance(value, bool) or not rule["allows"](value)):
                raise ValueError(f"{self.SECTION}{each.name} is {value!r}: use a {rule['what']}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(_Section):
    """A byte-level GPT. Block 0 is the embedding, the last block the head, the layers lie between.

    Attributes:
        num_layers: Transformer layers.
        num_heads: Attention heads; the granule of tensor parallelism.
        head_dim: Width of a head.
        mlp_multiple: Hidden width of the MLP as a multiple of the model width.
        vocabulary: Distinct tokens: bytes.
        max_document_length: Longest document in tokens.
    """

    SECTION = "model."
    num_layers: int = _whole(6, 0)
    num_heads: int = _whole(12, 1)
    head_dim: int = _whole(8, 1)
    mlp_multiple: int = _whole(4, 1)
    vocabulary: int = _whole(256, 256)  # the corpus is bytes
    max_document_length: int = _whole(512, 1)

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
class WorkloadConfig(_Section):
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

    SECTION = "workload."
    num_micro_batches: int = _whole(8, 1)
    token_budget: int = _whole(256, 1)
    median_document_length: float = 40.0
    length_spread: float = 0.8
    min_document_length: int = _whole(8, 1)
    long_stretches: tuple[tuple[int, int], ...] = ()
    long_median_document_length: float = 400.0
    corpus_bytes: int = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(_Section):
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

    SECTION = "optimizer."
    learning_rate: float = _number(1e-3, "of 0 or more", lambda value: 0 <= value < math.inf)
    warm_up_iterations: int = _whole(20, 0)
    beta1: float = _number(0.9, "from 0 to below 1", lambda value: 0 <= value < 1)
    beta2: float = _number(0.95, "from 0 to below 1", lambda value: 0 <= value < 1)
    # Without it a row of zero gradients, such as that of a byte that does not occur, steps by 0 / 0.
    epsilon: float = _number(1e-4, "above 0", lambda value: 0 < value < math.inf)
    weight_decay: float = _number(0.01, "of 0 or more", lambda value: 0 <= value < math.inf)
    # 0 would drop every gradient, and a negative one turn them around.
    max_gradient_norm: float | None = _checked(
        None,
        lambda value: value is None or (isinstance(value, int | float) and value > 0),
        "number above 0, or leave it out",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesConfig(_Section):
    """Copies in the memory of peers of slices that would be gone with two ranks or nodes, or with one.

    Attributes:
        every_iterations: A copy after every so many steps; a failure costs the steps since. 0 keeps none.
        budget_bytes: Most that a rank keeps of others' slices, in host memory, counted once; 0 = no limit. What it
            leaves open is told when an epoch begins.
    """

    SECTION = "copies."
    every_iterations: int = _whole(1, 0)
    budget_bytes: float = _number(0, "of 0 or more", lambda value: value >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig(_Section):
    """Copies of everything on disk.

    Attributes:
        directory: Where they go, on storage that all nodes share; each job has a folder of its own in it. Empty = none,
            but ``evenkeel run`` puts in the run's folder.
        every_iterations: A checkpoint after every so many steps.
        keep: How many complete ones stay.
        name: The job's folder in the directory; empty = the job id. The launcher sets it: ids of later runs have a
            number.
    """

    SECTION = "checkpoint."
    directory: str = ""
    every_iterations: int = _whole(100, 1, ", or checkpoint: null for none")
    keep: int = _whole(2, 1)
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig(_Section):
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
    seed: int = _whole(0, 0)
    num_iterations: int = _whole(400, 0)
    dtype: str = "float32"
    device: str = "cpu"
    vote_width: int = _whole(WIDEST_GROUP, 2)
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    copies: CopiesConfig = field(default_factory=CopiesConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    resume_steps: int = 0

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype {self.dtype!r}: use float32 or float64")
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
