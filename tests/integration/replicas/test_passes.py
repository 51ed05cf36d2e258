"""Passes over a loader that has no length, under the Trainer of transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROGRAM = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from evenkeel.hf import Trainer

class Passes(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([{"input_ids": torch.arange(4) + row, "labels": torch.arange(4) + row} for row in range(7)])

sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes))
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=7,
    use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=Passes())
trainer.train()
print("steps", trainer.state.global_step)
"""


def test_what_makes_no_whole_step_at_the_end_of_a_pass_is_left_out(tmp_path: Path) -> None:
    script = tmp_path / "passes.py"
    script.write_text(PROGRAM)
    command = [sys.executable, script, tmp_path]
    passes = WarmProgram(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with passes.stdout as output:
        said = output.read()
    assert passes.wait() == 0, said
    assert "steps 7" in said
    assert "1 batches at the end of a pass are too few for a step" in said
