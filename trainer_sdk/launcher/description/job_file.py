"""A job written down: the JSON file that ``evenkeel run`` takes, joined with the environment's settings."""

import dataclasses
import importlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from evenkeel.common.v1 import layout_pb2
from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.layouts.codec import layout_to_proto, model_from_proto
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import schedules_named
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.trainer_sdk.control.tls import ControllerTls, checked_fleet_ca_file
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec

_CONTROLLER_HOSTS = {
    "controller_bind_host": "EVENKEEL_CONTROLLER_BIND_HOST",
    "controller_advertise_host": "EVENKEEL_CONTROLLER_ADVERTISE_HOST",
}
_TLS_FILES = ("fleet_ca_file", "rank_certificate", "rank_key", "scheduler_ca_file")
_UNIFORM = frozenset(
    {
        "num_blocks",
        "tensor",
        "pipeline",
        "data",
        "num_micro_batches",
        "schedule",
        "schedules",
        "mix",
        "routable",
        "interleavable",
    }
)


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
    layout = plain["layout"]
    if "replicas" not in layout:
        unknown = sorted(set(layout) - _UNIFORM)
        if unknown:
            raise ValueError(
                f"job file {path}: layout: unknown {', '.join(unknown)}; known: {', '.join(sorted(_UNIFORM))}"
            )
        try:
            plain["layout"] = json_format.MessageToDict(layout_to_proto(_uniform(layout, model)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"job file {path}: layout: {error}") from error
    job_id = environment.get("EVENKEEL_JOB_ID") or str(plain.get("job_id", ""))
    settings = {
        "job_id": job_id,
        "run_dir": str(run_dir or plain.get("run_dir") or Path(".evenkeel") / job_id),
        "kafka_bootstrap_servers": environment.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", ""),
        "fleet_address": environment.get("EVENKEEL_FLEET_ADDRESS", ""),
        "fleet_token": environment.get("EVENKEEL_FLEET_TOKEN", ""),
        "job_token": environment.get("EVENKEEL_JOB_TOKEN") or secrets.token_urlsafe(24),
    }
    settings |= {name: environment[setting] for name, setting in _CONTROLLER_HOSTS.items() if environment.get(setting)}
    for name in _TLS_FILES:
        settings[name] = environment.get(f"EVENKEEL_{name.upper()}") or plain.get(name, "")
    try:
        checked_fleet_ca_file(settings["fleet_ca_file"])
        ControllerTls.from_names(*(settings[name] for name in _TLS_FILES[1:]))
        kafka_security(environment)
    except ValueError as error:
        raise ValueError(f"job file {path} and settings: {error}") from error
    return JobSpec.from_json({**plain, **settings}), model


def _uniform(degrees: dict[str, Any], model: ModelSpec | None) -> Layout:
    """The layout of these degrees; with a sequence mix when ``mix`` is true or the largest size of a micro-batch."""
    degrees = dict(degrees)
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
