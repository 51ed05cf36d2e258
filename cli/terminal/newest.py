"""The newest of a list that grows without end, and a word to the person when it goes on."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

import typer

from evenkeel.cli.terminal.output import say

MostOption = Annotated[int, typer.Option("--most", "-n", min=1, max=1_000_000, help="At most so many.")]
USUALLY_SHOWN = 100


def newest(rows: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first rows, which are read only as far as they are wanted; says on standard error when there are more.

    Args:
        rows: Newest first.
        most: At most so many of them.
    """
    found = list(islice(rows, most + 1))
    if len(found) > most:
        say(f"the newest {most}; -n {10 * most} shows more")
    return found[:most]
