"""A job written down: the JSON file that ``evenkeel run`` takes, joined with the environment's settings."""

import dataclasses
import importlib
import inspect
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from evenkeel.common.v1 import layout_pb2
from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.layouts.codec import layout_from_proto, model_from_proto
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import schedules_named
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

_NOT_OF_FILES = frozenset({"kafka_bootstrap_servers", "fleet_address", "fleet_token", "job_token"})
_UNIFORM = {*inspect.signature(uniform_layout).parameters, "schedules", "mix", "routable", "interleavable"}


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
    if not isinstance(plain, dict):
        raise ValueError(f"job file {path}: it must hold one JSON object")
    _check_entries(path, plain)
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
    if isinstance(plain.get("python_path"), str):
        raise ValueError(f"python_path {plain['python_path']!r}: a list of folders")
    try:
        lists = {name: tuple(plain.get(name, ())) for name in ("python_path", "stores")}
        kind = DeviceKind(plain.get("device_kind", DeviceKind.EMULATED))
        return JobSpec(**{**plain, **settings, **lists, "device_kind": kind, "layout": layout}), model
    except TypeError as error:
        raise ValueError(f"job file {path}: {error}") from error


def _layout(said: dict[str, Any], model: ModelSpec | None) -> Layout:
    """A layout's message, or the degrees of a uniform one.

    Its ``mix`` is true, or the largest size of a micro-batch, where there is to be one.
    """
    if "replicas" in said:
        return layout_from_proto(json_format.ParseDict(said, layout_pb2.Layout()))
    unknown = sorted(set(said) - _UNIFORM)
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; known: {', '.join(sorted(_UNIFORM))}")
    degrees = dict(said)
    mix, schedules = degrees.pop("mix", False), schedules_named(degrees.pop("schedules", False))
    can = {name: degrees.pop(name, False) for name in ("routable", "interleavable")}
    for name, value in can.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {json.dumps(value)[:60]}: true or false")
    layout = replace(uniform_layout(**degrees), schedules=schedules, **can)
    if mix is False:
        return layout
    if model is None:
        raise ValueError("mix needs the model's costs: name them under model")
    if mix is not True and not isinstance(mix, int | float):
        raise ValueError(f"mix is {json.dumps(mix)}: true, or the largest micro-batch in relation to the token budget")
    largest = {} if mix is True else {"max_scale": float(mix)}
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    return replace(layout, mix=mix_for(model, quotas, num_stages=len(layout.replicas[0].stages), **largest))


def _check_entries(path: Path, plain: dict[str, Any]) -> None:
    """What a person gets wrong first: entries that are missing, misspelt, or of another kind."""
    known = {field.name for field in dataclasses.fields(JobSpec)} | {"model"}
    missing = [name for name in ("job_id", "entry_point", "layout") if name not in plain]
    unknown = sorted(set(plain) - known)
    if missing or unknown:
        said = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise ValueError(f"job file {path}: {'; '.join(said)} (entries: {', '.join(sorted(known))})")
    for name in ("layout", "config"):
        if not isinstance(plain.get(name, {}), dict):
            raise ValueError(f"job file {path}: {name} must be a JSON object, not {json.dumps(plain[name])[:60]}")


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
