"""What :mod:`tests.warm` loads before it forks."""

import importlib
import os

# Its warnings are stack traces, one for each connection that ends.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from evenkeel.trainer_sdk.launcher.agent.script_rank import preload

preload()
for _name in ("emit.kafka_emitter", "elastic.worker", "launcher.processes.zygote"):
    importlib.import_module(f"evenkeel.trainer_sdk.{_name}")
importlib.import_module("torch.nn.parallel")
