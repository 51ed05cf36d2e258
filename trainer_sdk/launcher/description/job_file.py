"""A job written down: the JSON file that ``evenkeel run`` takes, joined with the environment's settings."""

import dataclasses
import importlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from google.protobuf import json_format

from evenkeel.common.v1 import layout_pb2
from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.layouts.codec import layout_from_proto, model_from_proto
from evenkeel.layouts.json_schema import (
    BOOLEAN,
    OBJECT,
    TEXT,
    above,
    complaint,
    number,
    object_of,
    record_from,
    record_of,
    whole,
)
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import schedules_named
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

_DEGREES = ("num_blocks", "tensor", "pipeline", "data", "num_micro_batches")
_UNIFORM = object_of(
    {
        **dict.fromkeys(_DEGREES, whole(1)),
        "schedule": TEXT,
        "schedules": {},
        "mix": {"anyOf": [BOOLEAN, number()]},
        "routable": BOOLEAN,
        "interleavable": BOOLEAN,
    },
    *_DEGREES,
)
_SCHEMA = record_of(
    JobSpec,
    layout={"anyOf": [_UNIFORM, {"type": "object", "required": ["replicas"]}]},
    config=OBJECT,
    run_dir={"type": ["string", "null"]},
    flops_per_second=above(),
    devices_per_node=whole(1),
    num_threads=whole(1),
    restart_delay_seconds={"anyOf": [number(most=TIMEOUT_MAX), {"type": "null"}]},
    finish_grace_seconds=number(most=TIMEOUT_MAX),
)
_SCHEMA |= {
    "required": ["job_id", "entry_point", "layout"],
    "properties": _SCHEMA["properties"] | {"model": {"type": ["object", "string", "null"]}},
}
_NOT_OF_FILES = frozenset({"kafka_bootstrap_servers", "fleet_address", "fleet_token", "job_token"})


def load_job(
    path: Path, environment: Mapping[str, str], run_dir: Path | None = None
) -> tuple[JobSpec, ModelSpec | None]:
    """The job in a file, and its model's costs if the file has them.

    The file is one JSON object with the fields of ``JobSpec``, where ``layout`` is either a layout message or the
    degrees of a uniform one, and ``model`` is a model message or ``module:function``, which is called with ``config``.
    Addresses and tokens come from the environment (``EVENKEEL_*``), files for TLS and hosts of rank controllers from
    there or the file; a job token that nobody set is made up.

    Args:
        path: The file.
        environment: Usually ``os.environ``.
        run_dir: Overrides the file's; the default is ``.evenkeel/<job_id>``.

    Raises:
        ValueError: The file cannot be read or is not a job; the message says where.
    """
    try:
        plain = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"job file {path}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"job file {path}: it is nested too deeply") from error
    if flaw := complaint(_SCHEMA, plain, "job"):
        raise ValueError(f"job file {path}: {flaw}")
    model = _model(plain.pop("model", None), plain.get("config", {}))
    try:
        layout = _layout(plain["layout"], model)
    except (TypeError, ValueError, json_format.ParseError) as error:
        raise ValueError(f"job file {path}: layout: {error}") from error
    job_id = environment.get("EVENKEEL_JOB_ID") or str(plain.get("job_id", ""))
    said = dataclasses.asdict(ServiceSettings.from_environment(environment))
    of_file = {name: plain[name] for name in plain if not said.get(name, True) and name not in _NOT_OF_FILES}
    services = ServiceSettings(**said | of_file)
    try:
        services.tls()
        kafka_security(environment)
    except ValueError as error:
        raise ValueError(f"job file {path} and settings: {error}") from error
    settings: dict[str, Any] = dataclasses.asdict(services) | {
        "job_id": job_id,
        "run_dir": Path(str(run_dir or plain.get("run_dir") or Path(".evenkeel") / job_id)),
        "job_token": services.job_token or secrets.token_urlsafe(24),
    }
    return record_from(JobSpec, {**plain, **settings, "layout": layout}), model


def _layout(said: dict[str, Any], model: ModelSpec | None) -> Layout:
    """A layout's message, or the degrees of a uniform one.

    Its ``mix`` is true, or the largest size of a micro-batch, where there is to be one.
    """
    if "replicas" in said:
        return layout_from_proto(json_format.ParseDict(said, layout_pb2.Layout()))
    layout = replace(
        uniform_layout(**{name: int(said[name]) for name in _DEGREES}, schedule=said.get("schedule", "1f1b")),
        schedules=schedules_named(said.get("schedules", False)),
        routable=said.get("routable", False),
        interleavable=said.get("interleavable", False),
    )
    mix = said.get("mix", False)
    if mix is False:
        return layout
    if model is None:
        raise ValueError("mix needs the model's costs: name them under model")
    largest = {} if mix is True else {"max_scale": float(mix)}
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    return replace(layout, mix=mix_for(model, quotas, num_stages=len(layout.replicas[0].stages), **largest))


def _model(model: Any, config: dict[str, Any]) -> ModelSpec | None:
    if model is None:
        return None
    if isinstance(model, str):
        module_name, _, function_name = model.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), function_name, None)
        except ImportError as error:
            raise ValueError(f"model {model!r}: {error}") from error
        if not callable(function):
            raise ValueError(f"model {model!r}: write it as package.module:function")
        try:
            made = function(config)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"model {model!r} does not take this config: {error}") from error
        if not isinstance(made, ModelSpec):
            raise ValueError(f"model {model!r}: the function must return a ModelSpec, not {type(made).__name__}")
        return made
    try:
        return model_from_proto(json_format.ParseDict(model, layout_pb2.ModelSpec()))
    except json_format.ParseError as error:
        raise ValueError(f"model: {error}") from error
