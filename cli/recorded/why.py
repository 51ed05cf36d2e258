"""``evenkeel why``: what explains the slowdown of a job that trains now."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenkeel.attribution import Attribution, OperationError, analyze
from evenkeel.cli.errors import CommandError, ExitStatus, kafka_away
from evenkeel.cli.session import KafkaAccess, OutputOption, kafka_access, output_of
from evenkeel.cli.terminal.output import OutputFormat, show_json, show_record, show_rows
from evenkeel.offline.errors import KafkaAwayError, RecordingError

if TYPE_CHECKING:
    from evenkeel.offline.operations.measured import Rebuilt
    from evenkeel.offline.samples.job_shape import JobShape

_COLUMNS = {"what": "WHAT", "name": "NAME", "share": "SHARE OF SLOWDOWN", "slowdown": "SLOWDOWN IF ALONE"}
_MOST_SHOWN = 8
_OPERATIONS = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "backward-weight-compute": "gradients of weights",
    "forward-pp-comm": "transfer of activations",
    "backward-pp-comm": "transfer of gradients between stages",
    "grads-reduce-scatter": "gradient exchange",
    "optimizer-clip-main-grad": "step vote",
    "optimizer": "optimizer",
    "input": "input",
}


def why(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")],
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=2, max=1000, help="How many of the newest iterations to ask about.")
    ] = 32,
    output: OutputOption = None,
) -> None:
    """Say what explains a job's slowdown now: which rank, stage, kind of operation or sequences, and by how much.

    Replays its newest iterations with parts of them as good as the others. Reads Kafka and disturbs nobody. The fleet
    API says under which layout they ran; where that is not known it is taken for 1F1B with one stage a rank.

    Example: evenkeel why demo
    """
    kafka = kafka_access(context)
    try:
        rebuilt, shards = asyncio.run(_rebuilt(kafka, job, iterations, _shape(context, job)))
        found = analyze(rebuilt.operations)
    except KafkaAwayError as error:
        raise kafka_away(error) from error
    except (RecordingError, OperationError) as error:
        raise CommandError(
            str(error),
            next_step=f"evenkeel verdicts list --job {job} shows what was found, evenkeel jobs list the jobs",
            status=ExitStatus.USAGE,
        ) from error
    if output_of(context, output) is OutputFormat.JSON:
        show_json(answer(job, rebuilt, found, shards))
        return
    show_record(_summary(job, rebuilt, found, shards), OutputFormat.TABLE)
    show_rows(_rows(found, shards), _COLUMNS, OutputFormat.TABLE)


def _shape(context: typer.Context, job: str) -> "JobShape | None":
    """The job's layout and model; None where the fleet API is away, or does not know the job."""
    from evenkeel.cli.fleet.client import fleet_client  # noqa: PLC0415
    from evenkeel.layouts.codec import layout_from_proto, model_from_proto  # noqa: PLC0415
    from evenkeel.offline.samples.job_shape import JobShape  # noqa: PLC0415

    try:
        with fleet_client(context) as client:
            known = client.job(job)
    except CommandError:
        return None
    return JobShape(epoch=known.epoch, layout=layout_from_proto(known.layout), model=model_from_proto(known.model))


async def _rebuilt(
    kafka: KafkaAccess, job: str, iterations: int, shape: "JobShape | None"
) -> "tuple[Rebuilt, dict[int, int]]":
    # Kafka's client is loaded by this command only.
    from evenkeel.contracts.frames import read_frames  # noqa: PLC0415
    from evenkeel.contracts.topics import FRAMES  # noqa: PLC0415
    from evenkeel.offline.operations.measured import operations_of, slowest_shards  # noqa: PLC0415
    from evenkeel.offline.samples.record import newest_values_of_job  # noqa: PLC0415
    from evenkeel.telemetry.v2 import frames_pb2 as pb  # noqa: PLC0415

    def has_frames(value: bytes) -> bool:
        return pb.Observation.FromString(value).HasField("frames")

    values = await newest_values_of_job(
        kafka.bootstrap_servers, FRAMES, job, kafka.security, count=iterations, wanted=has_frames
    )
    told = [read_frames(pb.Observation.FromString(value).frames) for value in values]
    frames = [frame for frames in told for frame in frames.each()][-iterations:]
    if not frames:
        raise RecordingError(f"Kafka holds no iterations of job {job!r}")
    rebuilt = operations_of(frames, shape)
    used = set(rebuilt.iterations)
    return rebuilt, slowest_shards(frame for frame in frames if int(frame.iteration[0]) in used)


def answer(job: str, rebuilt: "Rebuilt", found: Attribution, shards: dict[int, int]) -> dict[str, Any]:
    """Everything as plain values; ranks are those of each worker's slowest tensor shard."""
    plain = found.to_plain()
    plain["by_rank"] = [
        {**each, "name": str(shards.get(int(each["name"]), int(each["name"])))} for each in plain["by_rank"]
    ]
    for name in ("slowest_workers", "ill_ranks"):
        plain[name] = [shards.get(rank, rank) for rank in plain[name]]
    # What the pipeline waited is dealt out equally over its transfers: no link stands out from the others.
    del plain["by_link"], plain["slow_links"]
    return {
        "job_id": job,
        "epoch": rebuilt.epoch,
        "first_iteration": rebuilt.iterations[0],
        "last_iteration": rebuilt.iterations[-1],
        "num_iterations": len(rebuilt.iterations),
        "num_left_out": rebuilt.num_left_out,
        "laid_along": rebuilt.laid_along,
        "measured_seconds": rebuilt.wall_seconds,
        **plain,
    }


def _summary(job: str, rebuilt: "Rebuilt", found: Attribution, shards: dict[int, int]) -> dict[str, object]:
    said = answer(job, rebuilt, found, shards)
    return {
        "job": job,
        "iterations": f"{said['first_iteration']} to {said['last_iteration']}, {said['num_iterations']} of them, epoch "
        f"{said['epoch']}",
        "laid_along": said["laid_along"],
        "seconds_per_iteration": f"{rebuilt.wall_seconds:.4f} measured, {found.replayed_seconds:.4f} replayed, "
        f"{found.ideal_seconds:.4f} with all alike",
        "slowdown": f"{found.slowdown:.4f} ({100 * found.waste:.1f} % of the devices' time lost)",
        "slowest_ranks_explain": f"{100 * found.worker_share:.1f} %, ranks {_listed(said['slowest_workers'])}",
        "last_stage_explains": f"{100 * found.last_stage_share:.1f} %",
        "sequences_explain": f"{100 * found.sequence_share:.1f} %",
        "causes": ", ".join(found.causes) or ("none" if found.slowdown >= 1.1 else "none: the job does not straggle"),
    }


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _rows(found: Attribution, shards: dict[int, int]) -> list[dict[str, object]]:
    ranks = sorted(found.by_rank, key=lambda each: -each.share)[:_MOST_SHOWN]
    groups = (
        ("rank", [(str(shards.get(int(each.name), int(each.name))), each) for each in ranks]),
        ("stage", [(each.name, each) for each in sorted(found.by_stage, key=lambda each: -each.share)[:_MOST_SHOWN]]),
        ("operation", [(_OPERATIONS.get(each.name, each.name), each) for each in found.by_operation]),
    )
    return [
        {"what": what, "name": name, "share": f"{100 * each.share:.1f} %", "slowdown": f"{each.slowdown:.4f}"}
        for what, suspects in groups
        for name, each in suspects
    ]
