"""The main job: a byte-level GPT on 8 emulated devices, TP 2 x PP 2 x DP 2, with a stretch of long documents. Pure."""

from dataclasses import dataclass

from evenkeel.demo.script.scenario import LONG_DOCUMENTS
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.model import model_spec

TENSOR, PIPELINE, DATA = 2, 2, 2
NUM_MICRO_BATCHES = 8
TOKEN_BUDGET = 160
ITERATION_SECONDS = 1.0
NARROW = ModelConfig(head_dim=4)
"""Two slow cores do the work of eight devices: a narrow model and slow devices leave them time to keep the speeds."""
ENDLESS_ITERATIONS = 100_000
"""The script decides when the job ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainJob:
    """What is trained, on what.

    Attributes:
        config: Model, workload, optimizer, seed.
        layout: Layout of epoch 0.
        model: The model's costs.
        flops_per_second: Speed of a healthy emulated device.
    """

    config: TrainingConfig
    layout: Layout
    model: ModelSpec
    flops_per_second: float


def main_job(job_id: str, seed: int, *, dtype: str = "float32", num_micro_batches: int = NUM_MICRO_BATCHES) -> MainJob:
    """The demo's job for one seed, computing in ``dtype``."""
    config = TrainingConfig(
        job_id=job_id,
        seed=seed,
        dtype=dtype,
        num_iterations=ENDLESS_ITERATIONS,
        model=NARROW,
        workload=WorkloadConfig(
            num_micro_batches=num_micro_batches,
            token_budget=TOKEN_BUDGET,
            long_stretches=((LONG_DOCUMENTS.start, LONG_DOCUMENTS.stop),),
        ),
    )
    model = model_spec(config)
    layout = uniform_layout(
        num_blocks=len(model.blocks),
        tensor=TENSOR,
        pipeline=PIPELINE,
        data=DATA,
        num_micro_batches=num_micro_batches,
    )
    return MainJob(config=config, layout=layout, model=model, flops_per_second=_flops_per_second(config, model))


def _flops_per_second(config: TrainingConfig, model: ModelSpec) -> float:
    """The device speed at which an iteration takes about ``ITERATION_SECONDS``.

    1F1B with m micro-batches over p stages takes m + p - 1 slots, each one micro-batch through one shard of one stage.
    """
    tokens = config.workload.token_budget
    squares = tokens * config.workload.median_document_length
    whole = sum(block.forward_flops(tokens, squares) * (1 + block.backward_multiple) for block in model.blocks)
    num_slots = NUM_MICRO_BATCHES // DATA + PIPELINE - 1
    return whole / (TENSOR * PIPELINE) * num_slots / ITERATION_SECONDS
