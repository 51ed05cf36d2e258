"""``evenkeel record``: a job's telemetry, from Kafka into a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from evenkeel.cli.errors import CommandError, ExitStatus, kafka_away
from evenkeel.cli.session import KafkaAccess, kafka_access
from evenkeel.cli.terminal.output import say
from evenkeel.contracts.topics import BATCHES, FRAMES
from evenkeel.offline.errors import KafkaAwayError, RecordingError


def record_job(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")],
    file: Annotated[Path, typer.Option("-o", "--to", help="File to write; one that is there is replaced.")],
    records: Annotated[
        bool, typer.Option("--records", help="What the ranks sent, instead of what the detector read.")
    ] = False,
) -> None:
    """Write what Kafka still holds of a job into a file, for evenkeel replay --format samples.

    Example: evenkeel record demo -o demo.samples
    """
    count = asyncio.run(_record(kafka_access(context), job, file, records))
    if not count:
        raise CommandError(
            f"Kafka holds nothing of job {job!r}",
            next_step="evenkeel jobs list shows the jobs",
            status=ExitStatus.USAGE,
        )
    say(f"{count} messages of job {job} in {file}")


async def _record(kafka: KafkaAccess, job: str, file: Path, records: bool) -> int:
    # Kafka's client is loaded by this command only.
    from evenkeel.offline.samples.file import BATCH_LINE, OBSERVATION_LINE, write_messages  # noqa: PLC0415
    from evenkeel.offline.samples.record import values_of_job  # noqa: PLC0415

    topic, line = (BATCHES, BATCH_LINE) if records else (FRAMES, OBSERVATION_LINE)
    count = 0
    # A recording that is there is replaced by a whole one, or by none.
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        with unfinished.open("wb") as opened:
            write_messages(opened, line, ())
            async for value in values_of_job(kafka.bootstrap_servers, topic, job, kafka.security):
                count += write_messages(opened, b"", (value,))
        if count:
            unfinished.replace(file)
    except KafkaAwayError as error:
        raise kafka_away(error) from error
    except RecordingError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        # A full disk, or a file that is none, is not the question's fault as a folder that is not there is.
        asked_wrongly = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError))
        raise CommandError(
            f"{file} cannot be written: {error.strerror}",
            status=ExitStatus.USAGE if asked_wrongly else ExitStatus.FAILURE,
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count
