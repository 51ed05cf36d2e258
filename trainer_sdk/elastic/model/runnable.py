"""Whether the engine can run a layout: asked when a plan is prepared, so that one that it cannot changes nothing."""

from evenkeel.layouts.layout import Layout, LayoutError
from evenkeel.layouts.programs.schedules import program_of
from evenkeel.trainer_sdk.elastic.config import TrainingConfig


def check_runnable(config: TrainingConfig, layout: Layout) -> None:
    """Returns when the engine can run the job under the layout.

    Args:
        config: The job.
        layout: Layout of a plan. Pure; about 0.1 ms for eight ranks, on a thread that is not the training thread.

    Raises:
        ValueError: It cannot; the message says why.
    """
    model, workload = config.model, config.workload
    if layout.num_blocks != model.num_blocks:
        raise LayoutError(f"the plan's layout has {layout.num_blocks} blocks, but the model has {model.num_blocks}")
    if layout.num_micro_batches != workload.num_micro_batches:
        raise LayoutError(
            f"the plan's layout shares out {layout.num_micro_batches} micro-batches, but an iteration of this job has "
            f"{workload.num_micro_batches}"
        )
    program_of(layout, 0, 0)  # refuses a schedule that nobody knows
