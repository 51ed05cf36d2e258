"""What a shape of a job costs: degrees, micro-batch size and model to seconds and bytes, with fitted constants.

For choosing among uniform shapes (how many stages, how wide, how many replicas), where what differs is what a plan for
a broken job leaves alone: launch overheads, tensor collectives, the bubble, memory. Iteration seconds are linear in a
few constants of machine and software, so those are fitted by non-negative least squares on relative errors, pulled a
little towards what the hardware's figures say:

    slots x layers of a stage x (flops, launches, tensor bytes and latencies) + slots x border + gradient bytes + fixed

with ``slots = micro-batches + (stages - 1) / virtual stages``. No search, no schedule but 1F1B, interleaved or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

TERMS = (
    "flops",
    "unaligned_flops",
    "launches",
    "tensor_bytes",
    "tensor_latency",
    "border_bytes",
    "border_latency",
    "context_latency",
    "expert_latency",
    "gradient_bytes",
    "fixed",
)
"""What the constants are per; seconds each."""

_A100 = {
    "flops": 1.0 / 180e12,
    "unaligned_flops": 1.0 / 500e12,
    "launches": 5e-4,
    "tensor_bytes": 1.0 / 200e9,
    "tensor_latency": 1e-4,
    "border_bytes": 1.0 / 10e9,
    "border_latency": 1e-4,
    "context_latency": 1e-4,
    "expert_latency": 1e-4,
    "gradient_bytes": 1.0 / 10e9,
    "fixed": 0.01,
}
PRIOR_WEIGHT = 0.05
"""Weight of the prior in rows of relative error: a constant that no run tells of stays near the hardware's figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A uniform shape of a job.

    Attributes:
        layers: Of the model.
        hidden: Model width.
        sequence: Tokens of a sequence.
        micro_batch: Sequences of a micro-batch.
        global_batch: Sequences of an iteration.
        tensor: Tensor width.
        pipeline: Stages.
        data: Replicas.
        virtual: Virtual stages of a device.
        context: Context-parallel width.
        expert: Expert-parallel width.
        vocabulary: Entries of the embedding; it and the head are one device's each.
        recompute: The forward is done once more before each backward.
    """

    layers: int
    hidden: int
    sequence: int
    micro_batch: int
    global_batch: int
    tensor: int
    pipeline: int
    data: int
    virtual: int = 1
    context: int = 1
    expert: int = 1
    vocabulary: int = 0
    recompute: bool = False

    @property
    def num_micro_batches(self) -> float:
        """Of a replica."""
        return self.global_batch / (self.data * self.micro_batch)

    @property
    def slots(self) -> float:
        """Micro-batches a stage could have done in an iteration, the bubble included."""
        return self.num_micro_batches + (self.pipeline - 1) / self.virtual

    @property
    def layer_parameters(self) -> float:
        """Parameters of a layer."""
        return 12.0 * self.hidden**2


def terms(shape: Shape) -> Floats:
    """How often a shape pays each of :data:`TERMS` in an iteration."""
    tokens = shape.micro_batch * shape.sequence / shape.context
    passes = 4.0 if shape.recompute else 3.0
    layers = shape.slots * shape.layers / shape.pipeline
    flops = passes * tokens * (2.0 * shape.layer_parameters + 4.0 * shape.hidden * shape.sequence) / shape.tensor
    aligned = shape.hidden // shape.tensor % 64 == 0 and shape.hidden % shape.tensor == 0
    activation = 2.0 * tokens * shape.hidden
    reduces = 2.0 * passes if shape.tensor > 1 else 0.0
    borders = shape.slots * shape.virtual * 2.0 if shape.pipeline > 1 else 0.0
    parameters = shape.layers * shape.layer_parameters / (shape.pipeline * shape.tensor)
    return np.array(
        [
            layers * flops,
            0.0 if aligned else layers * flops,
            layers,
            layers * reduces * activation * 2.0 * (shape.tensor - 1) / shape.tensor,
            layers * reduces / 4.0,
            borders * activation,
            borders,
            layers if shape.context > 1 else 0.0,
            layers if shape.expert > 1 else 0.0,
            4.0 * parameters * 2.0 * (shape.data - 1) / shape.data,
            1.0,
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCost:
    """Fitted constants.

    Attributes:
        seconds: Of each of :data:`TERMS`.
    """

    seconds: tuple[float, ...]

    def iteration_seconds(self, shape: Shape) -> float:
        """Predicted seconds of an iteration."""
        return float(terms(shape) @ np.array(self.seconds))


def fitted(shapes: Sequence[Shape], measured_seconds: Sequence[float]) -> ShapeCost:
    """Constants that explain measured iterations best, by relative error.

    Raises:
        ValueError: No runs, or as many measurements as shapes are not there, or one is not above 0.
    """
    if not shapes or len(shapes) != len(measured_seconds) or min(measured_seconds) <= 0.0:
        raise ValueError(
            f"{len(shapes)} shapes and {len(measured_seconds)} measurements: as many of both, each above 0 seconds"
        )
    prior = np.array([_A100[name] for name in TERMS])
    rows = np.array([terms(shape) for shape in shapes]) / np.array(measured_seconds)[:, None]
    # In units of the prior every unknown is about 1, so one weight serves all.
    pulled = np.vstack([rows * prior, PRIOR_WEIGHT * np.eye(len(prior))])
    wanted = np.concatenate([np.ones(len(rows)), np.full(len(prior), PRIOR_WEIGHT)])
    found, _ = nnls(pulled, wanted)
    return ShapeCost(seconds=tuple((found * prior).tolist()))


def device_bytes(shape: Shape, *, working_bytes: float = 6e9) -> float:
    """Memory of the fullest device: bf16 weights, fp32 gradients, Adam with master weights shared among replicas.

    Activations: with recomputation the input of each layer for every live micro-batch, and one layer's own; else 34
    bytes a token and hidden unit.

    Args:
        shape: The shape.
        working_bytes: Framework, communication buffers, fragmentation; fitted to nothing.
    """
    stage = shape.layers / shape.pipeline * shape.layer_parameters
    embedding = shape.vocabulary * shape.hidden
    parameters = (stage + embedding) / shape.tensor
    state = parameters * (6.0 + 12.0 / shape.data)
    tokens = shape.micro_batch * shape.sequence / shape.context
    live = min(float(shape.pipeline), shape.num_micro_batches)
    per_layer = tokens * shape.hidden * 34.0 / shape.tensor
    kept = tokens * shape.hidden * 2.0 if shape.recompute else per_layer
    activations = live * shape.layers / shape.pipeline * kept + per_layer
    logits = tokens * shape.vocabulary * 6.0 / shape.tensor
    return state + activations + logits + working_bytes
