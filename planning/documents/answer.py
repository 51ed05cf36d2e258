"""A solution as a document: what the planner's process answers, and most of what ``evenkeel plan -o json`` prints."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evenkeel.history.documents import layout_to_document, record_from_document
from evenkeel.planning.solution import Solution

_NUMBERS = ("changes", "predicted_seconds", "idle_seconds", "bound_seconds", "proportional_bound", "judged_gain")


def answer_to_document(solution: Solution) -> dict[str, Any]:
    """All of a solution, its price's numbers among its own; numbers come back to the bit."""
    return {
        **{name: getattr(solution, name) for name in _NUMBERS},
        **asdict(solution.price),
        "actions": [asdict(action) for action in solution.actions],
        "alternatives": [asdict(other) for other in solution.alternatives],
        "reason": solution.reason,
        "layout": layout_to_document(solution.layout),
    }


def answer_from_document(document: Mapping[str, Any]) -> Solution:
    """The solution in a document that :func:`answer_to_document` made."""
    return record_from_document(Solution, {**document, "price": document}, "answer")
