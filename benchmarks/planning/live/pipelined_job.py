"""A job without tensor parallelism for the live benchmarks: the model in equal stages, on emulated devices. Pure."""

from evenkeel.demo.script.job import MainJob
from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.model import model_spec


def pipelined_job(
    job_id: str,
    *,
    num_layers: int,
    pipeline: int,
    data: int,
    quota: int,
    token_budget: int,
    iteration_seconds: float,
    fill: float = 1.0,
) -> MainJob:
    """A job that the benchmark ends.

    Args:
        job_id: Job.
        num_layers: Of the model, besides embedding and head.
        pipeline: Stages.
        data: Replicas.
        quota: Micro-batches of each.
        token_budget: Tokens of a full micro-batch.
        iteration_seconds: What an iteration of equal micro-batches takes on healthy devices, about.
        fill: How full micro-batches are on average.
    """
    config = TrainingConfig(
        job_id=job_id,
        num_iterations=100_000,
        model=ModelConfig(num_layers=num_layers),
        workload=WorkloadConfig(num_micro_batches=data * quota, token_budget=token_budget),
    )
    model = model_spec(config)
    tokens = fill * token_budget
    squares = tokens * config.workload.median_document_length
    whole = sum(block.forward_flops(tokens, squares) * (1 + block.backward_multiple) for block in model.blocks)
    return MainJob(
        config=config,
        layout=uniform_layout(
            num_blocks=len(model.blocks), tensor=1, pipeline=pipeline, data=data, num_micro_batches=data * quota
        ),
        model=model,
        flops_per_second=whole / pipeline * (quota + pipeline - 1) / iteration_seconds,
    )
