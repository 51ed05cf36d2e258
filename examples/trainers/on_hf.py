"""A tiny Llama under the Trainer of transformers, one import of which is Evenkeel's. See README.md."""

import os
import tempfile
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from evenkeel.hf import Trainer

NUM_STEPS = int(os.environ.get("STEPS", "60"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0.02"))  # stands in for a device that computes longer


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Numbers that go up by the same step, modulo 61; rows have different numbers of labels."""

    def __len__(self) -> int:
        return 330

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(24) * (1 + index % 5)) % 61
        labels = tokens.clone()
        labels[: index % 11] = -100
        return {"input_ids": tokens, "labels": labels}


class Say(TrainerCallback):
    """Prints each step's loss."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say that all is loaded."""
        print(f"replica {os.environ.get('EVENKEEL_REPLICA', '0')}: begins", flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compute for longer."""
        time.sleep(PAUSE_SECONDS)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Print what the Trainer logs."""
        if logs and "loss" in logs:
            replica = os.environ.get("EVENKEEL_REPLICA", "0")
            print(f"replica {replica}: step {state.global_step}, loss {logs['loss']:.7f}", flush=True)


def main() -> None:
    """Train, and say how it goes."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=os.environ.get("OUTPUT", folder),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=6,  # of all replicas together
            max_steps=NUM_STEPS,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            save_steps=20,
            logging_steps=1,
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[Say()]).train()


if __name__ == "__main__":
    main()
