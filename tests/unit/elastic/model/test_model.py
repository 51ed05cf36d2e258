"""The blocks, the data and the optimizer against a plain model that knows nothing of blocks and shards."""

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import OptimizerConfig, TrainingConfig, config_from_json, config_to_json
from evenkeel.trainer_sdk.elastic.model.data import Dataset, MicroBatch
from evenkeel.trainer_sdk.elastic.model.model import (
    backward_flops,
    block_flops,
    model_spec,
    model_spec_of,
    parameter_specs,
)
from evenkeel.trainer_sdk.elastic.model.optimizer import ShardOptimizer, clip_scale
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses, reference_runtime
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_slice, initial_state
from evenkeel.trainer_sdk.launcher.description.job_file import load_job

REPOSITORY = Path(__file__).parents[4]


def _plain_loss(config: TrainingConfig, weights: dict[str, Tensor], batch: MicroBatch) -> Tensor:
    """Summed cross-entropy, document by document, head by head, from the formulas."""
    model = config.model
    total = torch.zeros((), dtype=torch.float64)
    start = 0
    for length in batch.documents.lengths:
        tokens, targets = batch.tokens[start : start + length], batch.targets[start : start + length]
        start += length
        x = weights["embedding.token"][tokens] + weights["embedding.position"][:length]
        for layer in range(model.num_layers):
            own = {name.split(".")[1]: value for name, value in weights.items() if name.startswith(f"layer{layer}.")}
            h = _norm(x, own["norm"])
            heads = []
            for head in range(model.num_heads):
                rows = slice(head * model.head_dim, (head + 1) * model.head_dim)
                query, key, value = h @ own["wq"][rows].T, h @ own["wk"][rows].T, h @ own["wv"][rows].T
                scores = query @ key.T / math.sqrt(model.head_dim)
                scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
                heads.append(torch.softmax(scores, dim=1) @ value)
            hidden = h @ own["w_up"].T
            activated = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
            x = x + torch.cat(heads, dim=1) @ own["wo"].T + activated @ own["w_down"].T
        logits = _norm(x, weights["head.norm"]) @ weights["head.weight"].T
        total = total + (torch.logsumexp(logits, dim=1) - logits[torch.arange(length), targets]).sum()
    return total


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) * weight


def test_one_iteration_equals_a_plain_model(small_config: TrainingConfig) -> None:
    runtime = reference_runtime(small_config)
    dataset = Dataset(small_config)
    weights = {
        spec.name: initial_slice(small_config, spec, Slice(0, spec.cut_size)).requires_grad_()
        for spec in parameter_specs(small_config.model)
    }
    batches = [dataset.micro_batch(0, index) for index in range(small_config.workload.num_micro_batches)]
    expected = sum((_plain_loss(small_config, weights, batch) for batch in batches), torch.zeros(()))
    expected = expected / dataset.total_tokens(0)
    expected.backward()

    assert runtime.run_iteration(0) == pytest.approx(float(expected.detach()), rel=1e-13)
    for name, weight in weights.items():
        assert weight.grad is not None
        torch.testing.assert_close(runtime.sums.gradients()[name], weight.grad, rtol=1e-9, atol=1e-14)


def test_the_loss_falls(small_config: TrainingConfig) -> None:
    fast = OptimizerConfig(learning_rate=1e-2, warm_up_iterations=5)
    losses = [*islice(reference_losses(replace(small_config, optimizer=fast)), 40)]
    assert losses[0] == pytest.approx(math.log(256), rel=0.15)
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


@given(iteration=st.integers(0, 10_000), index=st.integers(0, 63))
def test_a_micro_batch_is_a_pure_function_of_its_place(
    small_config: TrainingConfig, iteration: int, index: int
) -> None:
    index %= small_config.workload.num_micro_batches
    first, second = Dataset(small_config), Dataset(small_config)
    batch, again = first.micro_batch(iteration, index), second.micro_batch(iteration, index)
    assert batch.documents == again.documents
    assert torch.equal(batch.tokens, again.tokens)
    lengths = batch.documents.lengths
    assert 0 < batch.documents.num_tokens <= small_config.workload.token_budget
    assert max(lengths) <= small_config.model.max_document_length
    assert batch.offsets.tolist() == [offset for length in lengths for offset in range(length)]
    inside = [place for place in range(len(batch.tokens) - 1) if batch.offsets[place + 1] != 0]
    assert all(batch.targets[place] == batch.tokens[place + 1] for place in inside), "targets are the next bytes"


def test_a_long_stretch_has_longer_documents_and_no_more_tokens(small_config: TrainingConfig) -> None:
    config = replace(
        small_config,
        model=replace(small_config.model, max_document_length=200),
        workload=replace(small_config.workload, long_stretches=((10, 20),), token_budget=200),
    )
    dataset = Dataset(config)

    def mean_length(iterations: range) -> float:
        documents = [dataset.documents(iteration, index) for iteration in iterations for index in range(3)]
        return sum(d.num_tokens for d in documents) / sum(len(d.lengths) for d in documents)

    assert mean_length(range(10, 20)) > 4 * mean_length(range(10))
    assert all(dataset.total_tokens(iteration) <= 3 * 200 for iteration in range(20))
    plain = Dataset(replace(config, workload=replace(config.workload, long_stretches=())))
    assert plain.documents(5, 0) == dataset.documents(5, 0), "iterations outside the stretch are untouched"


def test_every_layout_starts_with_the_same_model(small_config: TrainingConfig) -> None:
    specs = {spec.name: spec for spec in parameter_specs(small_config.model)}
    layout = uniform_layout(num_blocks=5, tensor=3, pipeline=2, data=1, num_micro_batches=3)
    ownership = OwnershipMap(tuple(specs.values()), layout)
    whole = reference_runtime(small_config).optimizer.parameters
    for rank in layout.ranks:
        state = initial_state(small_config, layout, rank)
        for name, held in ownership.held_by(rank).items():
            expected = whole[name].detach().narrow(specs[name].cut_axis, held.start, len(held))
            assert torch.equal(state.parameters[name].value, expected)


def test_the_shards_operations_add_up_to_the_block_costs(small_config: TrainingConfig) -> None:
    spec = model_spec(small_config)
    layout = uniform_layout(num_blocks=5, tensor=2, pipeline=1, data=1, num_micro_batches=3)
    ownership = OwnershipMap(parameter_specs(small_config.model), layout)
    for block in range(1, 5):
        shards = [block_flops(small_config.model, block, ownership.held_by(rank)) for rank in layout.ranks]
        assert sum(shard[0] for shard in shards) == pytest.approx(spec.blocks[block].forward_flops_per_token)
        assert sum(shard[1] for shard in shards) == pytest.approx(spec.blocks[block].forward_flops_per_squared_length)
    assert [block.max_width for block in spec.blocks] == [1, 3, 3, 3, 256]


def test_the_planner_divides_a_backward_as_the_engine_does(small_config: TrainingConfig) -> None:
    tokens, squares = 40.0, 700.0
    for block, cost in enumerate(model_spec(small_config).blocks[1:], start=1):
        of_tokens, of_squares = cost.forward_flops(tokens, 0.0), cost.forward_flops(0.0, squares)
        of_input, of_weights = backward_flops(block, of_tokens, of_squares)
        assert cost.weight_flops(tokens, squares) == of_weights
        assert cost.forward_flops(tokens, squares) * cost.backward_multiple == pytest.approx(of_input + of_weights)


def test_a_step_is_that_of_the_optimizer_of_torch(small_config: TrainingConfig) -> None:
    config = OptimizerConfig(learning_rate=3e-2, warm_up_iterations=3, weight_decay=0.1)
    layout = uniform_layout(num_blocks=5, tensor=1, pipeline=1, data=1, num_micro_batches=3)
    state = initial_state(replace(small_config, dtype="float32"), layout, 0)
    optimizer = ShardOptimizer(config, state)
    plain = {name: value.detach().clone() for name, value in optimizer.parameters.items()}
    of_torch = torch.optim.AdamW(plain.values(), betas=(config.beta1, config.beta2), eps=config.epsilon, foreach=False)
    of_torch.param_groups[0]["weight_decay"] = config.weight_decay
    for step in range(5):
        gradients = {name: torch.randn(value.shape, dtype=torch.float64) for name, value in plain.items()}
        for name, value in plain.items():
            value.grad = (gradients[name] * 0.5).to(value.dtype)
        of_torch.param_groups[0]["lr"] = config.learning_rate * min(1.0, (step + 1) / 3)
        of_torch.step()
        optimizer.step(gradients, 0.5)
        assert all(torch.equal(value, plain[name]) for name, value in optimizer.parameters.items())
    assert state.steps_applied == 5


def test_clipping_brings_a_large_gradient_to_the_limit_and_leaves_a_small_one() -> None:
    clipping = OptimizerConfig(max_gradient_norm=2.0)
    assert clip_scale(clipping, 8.0) == pytest.approx(0.25)
    assert clip_scale(clipping, 1.0) == 1.0
    assert clip_scale(OptimizerConfig(), 1e9) == 1.0


def test_a_configuration_survives_json_and_refuses_unknown_names(small_config: TrainingConfig) -> None:
    config = replace(small_config, workload=replace(small_config.workload, long_stretches=((3, 5), (8, 9))))
    assert config_from_json(config_to_json(config)) == config
    with pytest.raises(ValueError, match="num_layer"):
        config_from_json({"model": {"num_layer": 3}})
    with pytest.raises(ValueError, match="float16"):
        config_from_json({"dtype": "float16"})


def test_the_example_job_names_its_model_and_gets_its_costs(small_config: TrainingConfig) -> None:
    path = REPOSITORY / "examples" / "gpt.json"
    spec, model = load_job(path, {})
    config = config_from_json(spec.config)
    assert model == model_spec(config)
    assert spec.layout.num_blocks == config.model.num_blocks
    assert sum(replica.num_micro_batches for replica in spec.layout.replicas) == config.workload.num_micro_batches
    assert model_spec_of(config_to_json(small_config)) == model_spec(small_config)
    page = (REPOSITORY / "docs" / "engine.md").read_text()
    shown = page.split("```json\n", 1)[1].split("```", 1)[0]
    assert json.loads(shown) == json.loads(path.read_text()), "docs/engine.md shows another job than examples/gpt.json"
