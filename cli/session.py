"""What a command knows about its surroundings: how to show data, and where the parts of Evenkeel are.

A setting from the environment wins; else the local stack that runs is asked for its address.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.terminal.output import OutputFormat
from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.stack.addresses import wrong_address
from evenkeel.stack.paths import stack_names
from evenkeel.stack.state import Phase, read_state

OutputOption = Annotated[
    OutputFormat | None, typer.Option("--output", "-o", help="How to show data.", show_default="table")
]
DEFAULT_STACK = "dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Options that stand before the noun.

    Attributes:
        output: How data is shown unless the command says otherwise.
        stack_name: Local stack to ask for addresses.
    """

    output: OutputFormat = OutputFormat.TABLE
    stack_name: str = DEFAULT_STACK


def session_of(context: typer.Context) -> Session:
    """The session of a running command."""
    session = context.find_root().obj
    assert isinstance(session, Session)
    return session


def output_of(context: typer.Context, output: OutputFormat | None) -> OutputFormat:
    """The command's own ``-o`` if it was given, else the one before the noun."""
    return output or session_of(context).output


def settings_of_stack(context: typer.Context) -> dict[str, str]:
    """The settings that lead to the local stack; empty when it does not run."""
    state = read_state(session_of(context).stack_name)
    return state.addresses.environment() if state is not None and state.phase is Phase.RUNNING else {}


def _runs(stack_name: str) -> bool:
    state = read_state(stack_name)
    return state is not None and state.phase is Phase.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """Where Kafka is, and how it is spoken to.

    Attributes:
        bootstrap_servers: ``host:port[,host:port]``.
        security: See :mod:`evenkeel.contracts.kafka_security`.
    """

    bootstrap_servers: str
    security: Mapping[str, Any]


def kafka_access(context: typer.Context) -> KafkaAccess:
    """The way to Kafka, from the environment or to the local stack's.

    Raises:
        CommandError: Nothing says where it is, or a setting is wrong.
    """
    bootstrap_servers = setting(context, "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS")
    try:
        return KafkaAccess(bootstrap_servers=bootstrap_servers, security=kafka_security(os.environ))
    except ValueError as error:
        raise CommandError(str(error), status=ExitStatus.USAGE) from error


def setting(context: typer.Context, name: str) -> str:
    """A setting, from the environment or from the local stack.

    Raises:
        CommandError: Neither has it, or it is no address.
    """
    value = os.environ.get(name) or settings_of_stack(context).get(name)
    if not value:
        others = [f"evenkeel --stack {other} ..., " for other in stack_names() if _runs(other)]
        raise CommandError(
            f"{name} is not set, and the local stack {session_of(context).stack_name!r} does not run",
            next_step=f"{''.join(others)}evenkeel stack up, or export {name}=...",
            status=ExitStatus.UNHEALTHY,
        )
    if problem := wrong_address(name, value):
        raise CommandError(problem, status=ExitStatus.USAGE)
    return value
