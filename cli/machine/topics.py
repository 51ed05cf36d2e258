"""``evenkeel topics``: the Kafka topics."""

from dataclasses import asdict
from typing import Annotated

import typer

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.session import OutputOption, kafka_access, output_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_rows
from evenkeel.contracts.topics import DEFAULT_NUM_PARTITIONS
from evenkeel.stack.kafka.topics import apply_topics, check_topics

app = typer.Typer(help="The Kafka topics.", no_args_is_help=True)


@app.command()
def apply(
    context: typer.Context,
    partitions: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Partitions of each topic; where some are there already, new ones get as many as they.",
        ),
    ] = DEFAULT_NUM_PARTITIONS,
    output: OutputOption = None,
) -> None:
    """Create the topics that are missing; existing ones stay as they are.

    Example: evenkeel topics apply
    """
    kafka = kafka_access(context)
    created = apply_topics(kafka.bootstrap_servers, security=kafka.security, num_partitions=partitions)
    if created or output_of(context, output) is OutputFormat.JSON:
        show_rows([{"topic": name} for name in created], {"topic": "CREATED"}, output_of(context, output))
    else:
        say("All topics are there.")


@app.command()
def check(context: typer.Context, output: OutputOption = None) -> None:
    """Show where the topics differ from what Evenkeel expects. Exit status 3 when they do.

    Example: evenkeel topics check
    """
    kafka = kafka_access(context)
    found = check_topics(kafka.bootstrap_servers, security=kafka.security)
    columns = {"topic": "TOPIC", "what": "WHAT", "wanted": "WANTED", "found": "FOUND"}
    if found or output_of(context, output) is OutputFormat.JSON:
        show_rows([asdict(each) for each in found], columns, output_of(context, output))
    if found:
        say("Missing topics: evenkeel topics apply. Other differences: use Kafka's own tools.")
        raise typer.Exit(ExitStatus.UNHEALTHY)
    say("The topics are as they should be.")
