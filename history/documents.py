"""Layouts, models and evidence as JSON documents, readable in SQL and independent of the wire format."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from evenkeel.history.records import EvidenceRecord
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.orders import orders_from_lists, orders_to_lists
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.sizes.mix import Mix

Document = dict[str, Any]


def layout_to_document(layout: Layout) -> Document:
    """The layout as JSON: field names as in :class:`~evenkeel.layouts.layout.Layout`, tuples as arrays."""
    # Only where there are some: documents from before there were any look the same.
    mix = {} if layout.mix is None else {"mix": dataclasses.asdict(layout.mix)}
    schedules = {"schedules": list(layout.schedules)} if layout.schedules else {}
    routes = {"routes": [dataclasses.asdict(route) for route in layout.routes]} if layout.routes else {}
    routable = {"routable": True} if layout.routable else {}
    interleavable = {"interleavable": True} if layout.interleavable else {}
    whole = {"whole": True} if layout.whole else {}
    return {
        **mix,
        **schedules,
        **routes,
        **routable,
        **interleavable,
        **whole,
        "num_blocks": layout.num_blocks,
        "schedule": layout.schedule,
        "standbys": list(layout.standbys),
        "replicas": [
            {
                "num_micro_batches": replica.num_micro_batches,
                "stages": [
                    {
                        "first_block": stage.first_block,
                        "stop_block": stage.stop_block,
                        "ranks": list(stage.ranks),
                        "shares": list(stage.shares),
                    }
                    for stage in replica.stages
                ],
                **({"orders": orders_to_lists(replica.orders)} if replica.orders else {}),
            }
            for replica in layout.replicas
        ],
    }


def layout_from_document(document: Mapping[str, Any]) -> Layout:
    """The layout in a document.

    Raises:
        layouts.layout.LayoutError: The document does not describe a valid layout.
    """
    return Layout(
        num_blocks=document["num_blocks"],
        schedule=document["schedule"],
        schedules=tuple(document.get("schedules", ())),
        routes=tuple(
            Route(micro_batch=route["micro_batch"], stage=route["stage"], replica=route["replica"])
            for route in document.get("routes", ())
        ),
        routable=document.get("routable", False),
        interleavable=document.get("interleavable", False),
        whole=document.get("whole", False),
        standbys=tuple(document["standbys"]),
        mix=None if document.get("mix") is None else _mix_from_document(document["mix"]),
        replicas=tuple(
            Replica(
                num_micro_batches=replica["num_micro_batches"],
                stages=tuple(
                    Stage(
                        first_block=stage["first_block"],
                        stop_block=stage["stop_block"],
                        ranks=tuple(stage["ranks"]),
                        shares=tuple(stage["shares"]),
                    )
                    for stage in replica["stages"]
                ),
                orders=orders_from_lists(replica.get("orders", ())),
            )
            for replica in document["replicas"]
        ),
    )


def _mix_from_document(document: Mapping[str, Any]) -> Mix:
    return Mix(
        counts=tuple(document["counts"]),
        weights=tuple(document["weights"]),
        token_cost=float(document["token_cost"]),
        square_cost=float(document["square_cost"]),
        fill=document["fill"],
        max_scale=float(document["max_scale"]),
    )


def model_to_document(model: ModelSpec) -> Document:
    """The model as JSON: field names as in :class:`~evenkeel.layouts.model.ModelSpec`."""
    return {
        "activation_bytes_per_token": model.activation_bytes_per_token,
        "blocks": [dataclasses.asdict(block) for block in model.blocks],
    }


def model_from_document(document: Mapping[str, Any]) -> ModelSpec:
    """The model in a document."""
    return ModelSpec(
        activation_bytes_per_token=document["activation_bytes_per_token"],
        blocks=tuple(
            BlockCost(
                # JSON does not tell 1e30 from an integer, and the two compare as different.
                forward_flops_per_token=float(block["forward_flops_per_token"]),
                forward_flops_per_squared_length=float(block["forward_flops_per_squared_length"]),
                backward_multiple=float(block["backward_multiple"]),
                parameter_bytes=block["parameter_bytes"],
                optimizer_bytes=block["optimizer_bytes"],
                activation_bytes=block["activation_bytes"],
                max_width=block["max_width"],
            )
            for block in document["blocks"]
        ),
    )


def evidence_to_documents(evidence: tuple[EvidenceRecord, ...]) -> list[Document]:
    """The facts as JSON. A value that is not finite becomes null: JSON has no word for it."""
    return [
        {"name": fact.name, "value": _finite_or_none(fact.value), "unit": fact.unit, "text": fact.text}
        for fact in evidence
    ]


def evidence_from_documents(documents: list[Document]) -> tuple[EvidenceRecord, ...]:
    """The facts in documents; null becomes NaN."""
    return tuple(
        EvidenceRecord(
            name=document["name"],
            value=float("nan") if document["value"] is None else document["value"],
            unit=document["unit"],
            text=document["text"],
        )
        for document in documents
    )


def _finite_or_none(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def throughputs_to_document(throughputs: Mapping[int, float] | None) -> Document | None:
    """Throughputs by rank as JSON, whose keys are text."""
    return None if throughputs is None else {str(rank): throughput for rank, throughput in throughputs.items()}


def throughputs_from_document(document: Mapping[str, float] | None) -> dict[int, float] | None:
    """The throughputs in a document."""
    return None if document is None else {int(rank): float(throughput) for rank, throughput in document.items()}
