"""A tiny Llama under the Trainer of torchtitan, one import of which is Evenkeel's. See README.md."""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torchtitan.tools import utils

NUM_STEPS = int(os.environ.get("STEPS", "60"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0.02"))  # stands in for a device that computes longer


if not torch.cuda.is_available():
    # On a CPU torchtitan does not train by itself. Its other modules take both of these when they are loaded.
    utils.device_type = "cpu"
    utils.device_module = SimpleNamespace(
        set_device=lambda _: None,
        current_device=lambda: 0,
        get_device_name=lambda _: "cpu",
        get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 30),
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        synchronize=lambda: None,
    )

from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

from evenkeel.torchtitan import Trainer  # noqa: E402


class Rows(torch.utils.data.IterableDataset[Any]):
    """Numbers that go up by the same step, modulo 61; rows have different numbers of labels."""

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for index in range(NUM_STEPS * 24):
            tokens = (index + torch.arange(25) * (1 + index % 5)) % 61
            labels = tokens[1:].clone()
            labels[: index % 11] = -100
            yield {"input": tokens[:-1], "positions": torch.arange(24)}, labels


class Counting(ParallelAwareDataloader):
    """The library's loader of them."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """Nothing to choose."""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        super().__init__(Rows(), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """Rows are numbers already; the debug model's own tokenizer is not in the package."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to choose."""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        """Nobody asks."""
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        """Nobody asks."""
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        """Tokens that there are."""
        return 61


def say(trainer: Any) -> None:
    """Have each step's loss printed, of steps that this process takes part in."""
    replica = os.environ.get("EVENKEEL_REPLICA", "0")
    print(f"replica {replica}: begins", flush=True)

    def log(step: int, loss: float, *_: Any, **__: Any) -> None:
        print(f"replica {replica}: step {step}, loss {loss:.7f}", flush=True)
        time.sleep(PAUSE_SECONDS)

    trainer.metrics_processor.log = log


def main() -> None:
    """Train, and say how it goes."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():  # without a launcher
        os.environ.setdefault(name, value)
    torch.manual_seed(0)
    config = llama3_debugmodel()
    config.dataloader, config.tokenizer = Counting.Config(), NoTokenizer.Config()
    config.training.steps, config.training.seq_len = NUM_STEPS, 24
    config.training.local_batch_size, config.training.global_batch_size = 4, 24  # of all replicas together
    config.training.mixed_precision_param = "float32"
    config.debug.seed = 0
    config.checkpoint.enable = "OUTPUT" in os.environ
    model = config.model_spec.model
    model.layers = model.layers[:2]
    if not torch.cuda.is_available():  # torch's FlexAttention has no backward there
        for layer in model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
    with tempfile.TemporaryDirectory() as folder:
        config.dump_folder = os.environ.get("OUTPUT", folder)
        trainer = Trainer(config)
        say(trainer)
        trainer.train()
        trainer.close()


if __name__ == "__main__":
    main()
