"""Layouts, models and evidence as JSON documents, readable in SQL and independent of the wire format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from evenkeel.history.records import EvidenceRecord
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.orders import orders_from_lists, orders_to_lists

Document = dict[str, Any]
T = TypeVar("T")

# Only where there are some: documents from before there were any look the same.
_ONLY_IF_ANY = frozenset(("mix", "schedules", "routes", "routable", "interleavable", "whole", "orders"))


def layout_to_document(layout: Layout) -> Document:
    """The layout as JSON: field names as in :class:`~evenkeel.layouts.layout.Layout`, tuples as arrays."""
    return _to_document(layout)


def layout_from_document(document: Mapping[str, Any]) -> Layout:
    """The layout in a document.

    Raises:
        layouts.layout.LayoutError: The document does not describe a valid layout.
    """
    return record_from_document(Layout, document, "layout")


def model_to_document(model: ModelSpec) -> Document:
    """The model as JSON: field names as in :class:`~evenkeel.layouts.model.ModelSpec`."""
    return _to_document(model)


def model_from_document(document: Mapping[str, Any]) -> ModelSpec:
    """The model in a document."""
    return record_from_document(ModelSpec, document, "model")


def record_from_document(kind: Callable[..., T], document: Mapping[str, Any], path: str) -> T:
    """The record in a document that has its fields; what else the document has is passed over.

    Args:
        kind: A dataclass of numbers, texts, such records, and tuples of these.
        document: What :func:`layout_to_document` makes of a layout, and the like.
        path: Where the document is, for the words.

    Raises:
        ValueError: The numbers do not go together; of a layout it is a ``LayoutError``. The message begins with where.
    """
    given = {
        name: _from_json(name, hint, document[name], f"{path}.{name}")
        for name, hint in _hints(kind).items()
        if name in document
    }
    try:
        return kind(**given)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from error


def evidence_to_documents(evidence: tuple[EvidenceRecord, ...]) -> list[Document]:
    """The facts as JSON. A value that is not finite becomes null: JSON has no word for it."""
    return [{**asdict(fact), "value": fact.value if abs(fact.value) < float("inf") else None} for fact in evidence]


def evidence_from_documents(documents: list[Document]) -> tuple[EvidenceRecord, ...]:
    """The facts in documents; null becomes NaN."""
    return tuple(
        EvidenceRecord(**{**document, "value": float("nan") if document["value"] is None else document["value"]})
        for document in documents
    )


def throughputs_to_document(throughputs: Mapping[int, float] | None) -> Document | None:
    """Throughputs by rank as JSON, whose keys are text."""
    return None if throughputs is None else {str(rank): throughput for rank, throughput in throughputs.items()}


def throughputs_from_document(document: Mapping[str, float] | None) -> dict[int, float] | None:
    """The throughputs in a document."""
    return None if document is None else {int(rank): float(throughput) for rank, throughput in document.items()}


def _to_document(record: Any) -> Document:
    kind: Any = type(record)
    values = {name: getattr(record, name) for name in _hints(kind)}
    return {name: _to_json(name, value) for name, value in values.items() if value or name not in _ONLY_IF_ANY}


def _to_json(name: str, value: Any) -> Any:
    if name == "orders":
        return orders_to_lists(value)
    if isinstance(value, tuple):
        return [_to_document(each) if is_dataclass(each) else each for each in value]
    return _to_document(value) if is_dataclass(value) else value


def _from_json(name: str, hint: Any, value: Any, path: str) -> Any:
    if name == "orders":
        try:
            return orders_from_lists(value)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    kind, *_ = get_args(hint) or (hint,)
    is_record: bool = is_dataclass(kind)
    if isinstance(value, Sequence) and get_origin(hint) is tuple:
        if not is_record:
            return tuple(value)
        return tuple([record_from_document(kind, each, f"{path}[{index}]") for index, each in enumerate(value)])
    if is_record:
        return value and record_from_document(kind, value, path)
    # JSON does not tell 1e30 from an integer, and the two compare as different.
    return float(value) if kind is float else value


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of what a record is made of."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}
