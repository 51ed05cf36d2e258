"""Files that a command reads, ``-`` for standard input; what is wrong with a JSON file is said in one line."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.terminal.output import show_json

STANDARD_INPUT = Path("/dev/stdin")


def readable(path: Path) -> Path:
    """The file to read for an argument."""
    return STANDARD_INPUT if path == Path("-") else path


def read_json(path: Path, page: str) -> Any:
    """The document in a file.

    Args:
        path: The file.
        page: Where its form is described.

    Raises:
        CommandError: It cannot be read, is no JSON, or names a key twice.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", status=ExitStatus.USAGE) from error
    except RecursionError as error:
        raise CommandError(
            f"{path} is nested too deeply", next_step=f"{page} shows one", status=ExitStatus.USAGE
        ) from error
    except ValueError as error:
        raise CommandError(
            f"{path} is no JSON: {error}", next_step=f"{page} shows one", status=ExitStatus.USAGE
        ) from error


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def schema_option(schema: Callable[[], Mapping[str, Any]]) -> Any:
    """``--schema`` of a command that reads a file: prints what the file may hold, and nothing else is done."""

    def show(wanted: bool) -> None:
        if wanted:
            show_json(schema())
            raise typer.Exit

    return typer.Option("--schema", help="Print the JSON Schema of the file and end.", callback=show, is_eager=True)
