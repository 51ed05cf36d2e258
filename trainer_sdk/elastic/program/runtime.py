"""One rank's part in one epoch: interprets the program of its stages, micro-batch by micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.layout import Position
from evenkeel.layouts.programs.execution import RECEIVES
from evenkeel.layouts.programs.instructions import Instruction, Op, Program
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import program_of
from evenkeel.layouts.ranks.spread import spread_micro_batches
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan
from evenkeel.trainer_sdk.elastic.gradients.step_vote import StepVote
from evenkeel.trainer_sdk.elastic.model.data import Dataset, Documents, MicroBatch
from evenkeel.trainer_sdk.elastic.model.optimizer import ShardOptimizer
from evenkeel.trainer_sdk.elastic.model.stage_model import StageModel
from evenkeel.trainer_sdk.elastic.model.tensor_parallel import TensorRegion
from evenkeel.trainer_sdk.elastic.model.weight_tape import WeightTape
from evenkeel.trainer_sdk.elastic.model.weights import Weights
from evenkeel.trainer_sdk.elastic.program.pipeline import Crossing, Pipeline
from evenkeel.trainer_sdk.elastic.program.topology import collective_name
from evenkeel.trainer_sdk.elastic.program.transfer_order import Sent, transfer_order
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.group import Group


@dataclass(slots=True)
class _Flight:
    """A micro-batch between its forward and the last part of its backward in a stage."""

    batch: MicroBatch
    entered: Tensor | None = None
    output: Tensor | None = None
    gradient: Tensor | None = None
    tape: WeightTape | None = None

    def take_input_gradient(self) -> Tensor:
        """The gradient of what entered, for the stage before; both are let go of."""
        assert self.entered is not None, "a gradient is sent by a stage that received an activation"
        assert self.entered.grad is not None, "a gradient is sent after its backward"
        gradient, self.entered = self.entered.grad, None
        return gradient


class EpochRuntime:
    """Runs iterations of one epoch up to the reduced gradients, and applies the step. Training thread only.

    Args:
        config: Job.
        dataset: Its samples.
        rank: This rank; it has a position in the epoch's layout.
        state: Its slices.
        groups: The epoch's groups by name; none in a single-process run.
        phases: Told of compute and waits.
        sums: Its gradient sums of an interrupted iteration, if this epoch goes on with one.
        salvaged: How that iteration goes on: what is not kept of it is run.

    Attributes:
        epoch: Epoch.
        device: Where it computes.
        sums: This rank's gradient sums.
        vote: Its votes on steps.
        models: The rank's stages, by number.
        batches: Micro-batches that the rank ran in the newest iteration, in the order of their first forwards.
        kept: Index and documents of those that count in it without having been run in this epoch.
    """

    def __init__(
        self,
        config: TrainingConfig,
        dataset: Dataset,
        rank: int,
        state: ShardState,
        groups: Mapping[str, Group],
        phases: Phases,
        sums: GradientSums | None = None,
        salvaged: SalvagePlan | None = None,
    ) -> None:
        layout = state.layout
        position = layout.position_of(rank)
        assert position is not None, f"rank {rank} has no position in the layout"
        self.position: Position = position
        self._dataset = self._samples = dataset.under(layout.mix)
        self._phases = phases
        self._layout = layout
        self._program = program_of(layout, position.replica, position.stage)
        self._routed = Paths(layout) if layout.routes else None
        self._paths = self._routed
        ownership = state.ownership
        ranks = layout.stage_at(position).ranks
        region = TensorRegion(groups[collective_name(ranks)] if len(ranks) > 1 else None, phases)
        self.optimizer = ShardOptimizer(config.optimizer, state)
        self.models: dict[int, StageModel] = {}
        self._parameters: dict[int, dict[str, Tensor]] = {}
        for s in layout.cell_at(position):
            stage = layout.replicas[position.replica].stages[s]
            blocks = range(stage.first_block, stage.stop_block)
            self.models[s] = StageModel(config.model, blocks, state.held, region)
            self._parameters[s] = {
                name: value
                for name, value in self.optimizer.parameters.items()
                if ownership.specs[name].block in blocks
            }
        self._direct = Weights(self.optimizer.parameters)
        self.device = device = torch.device(config.device)
        self._pipeline = Pipeline(
            layout,
            rank,
            groups,
            phases,
            width=config.model.width,
            dtype=torch.float64 if config.dtype == "float64" else torch.float32,
            device=device,
        )
        self._planned = transfer_order(layout, position.replica) if self._pipeline.takes_turns else {}
        self._places = self._planned
        self.sums = sums or GradientSums(ownership, rank, device)
        self.vote = StepVote(config, layout, rank, groups, phases)
        self._groups = groups
        self.epoch = state.epoch
        self._salvaged = salvaged
        self._last = len(layout.replicas[position.replica].stages) - 1
        self._loss = 0.0
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._split: frozenset[tuple[int, int]] = frozenset()
        self.batches: list[MicroBatch] = []
        self.kept: tuple[tuple[int, Documents], ...] = ()

    def run_iteration(self, iteration: int) -> float:
        """Run all micro-batches of the rank's stages, or what a failure left of them, and reduce the gradients.

        Returns:
            This rank's part of the iteration's mean loss: parts of all ranks add up to it.

        Raises:
            WaitBroken: The rank should park; ``sums`` tells what was done.
        """
        self._phases.begin_iteration(iteration, epoch=self.epoch)
        self._loss = 0.0
        self._flights.clear()
        self.batches = []
        with self._phases.segments[ComputeKind.DATA]:
            program = self._begin(iteration)
            self._split = frozenset((one.micro_batch, one.stage) for one in program if one.op is Op.BACKWARD_INPUT)
            scale = 1.0 / self._samples.total_tokens(iteration)
        self._pipeline.expect([self._crossing(iteration, one) for one in program if one.op in RECEIVES])
        for instruction in program:
            if instruction.op is Op.REDUCE:
                self._pipeline.flush()
                self.sums.reduce(self._groups, self._phases)
            elif instruction.op is not Op.STEP:
                self._execute(instruction, iteration, scale)
        speaks = self._last in self.models and self.position.shard == 0
        return self._loss * scale if speaks else 0.0

    def step(self, gradient_scale: float) -> None:
        """Apply the optimizer step with the reduced gradients."""
        with self._phases.segments[ComputeKind.OPTIMIZER]:
            self._phases.add(self.optimizer.flops)
            self.optimizer.step(self.sums.gradients(), gradient_scale)
        self._salvaged = None

    def _begin(self, iteration: int) -> Program:
        """What to run; ``sums`` has the rest."""
        salvaged, position = self._salvaged, self.position
        if salvaged is None or salvaged.iteration != iteration:
            self.kept, self._samples, self._paths, self._places = (), self._dataset, self._routed, self._planned
            self.sums.begin(iteration)
            return self._program
        self._samples, self._paths = self._dataset.under(salvaged.mix), None  # every replica runs its share alone
        self.kept = tuple((index, self._samples.documents(iteration, index)) for index in salvaged.losses)
        if position.replica == 0:
            self._loss = sum(salvaged.losses.values())  # one rank speaks for what nobody ran again
        rest = spread_micro_batches(self._layout, salvaged.again)[position.replica]
        if self._pipeline.takes_turns:
            self._places = transfer_order(self._layout, position.replica, rest)
        return program_of(self._layout, position.replica, position.stage, rest)

    def _flight(self, iteration: int, instruction: Instruction) -> _Flight:
        index, stage = instruction.micro_batch, instruction.stage
        flight = self._flights.get((index, stage))
        if flight is None:
            elsewhere = next((self._flights[index, s] for s in self.models if (index, s) in self._flights), None)
            flight = self._flights[index, stage] = _Flight(
                elsewhere.batch if elsewhere else self._batch(iteration, index)
            )
        return flight

    def _batch(self, iteration: int, index: int) -> MicroBatch:
        with self._phases.segments[ComputeKind.DATA]:
            batch = self._samples.micro_batch(iteration, index)
        self.batches.append(batch)
        return batch

    def _execute(self, instruction: Instruction, iteration: int, scale: float) -> None:
        op, stage = instruction.op, instruction.stage
        flight = self._flight(iteration, instruction)
        if op is Op.RECEIVE_ACTIVATION:
            flight.entered = self._pipeline.receive(self._crossing(iteration, instruction)).requires_grad_()
        elif op is Op.FORWARD:
            self._forward(flight, stage)
        elif op is Op.SEND_ACTIVATION:
            assert flight.output is not None, "an activation is sent after its forward"
            self._pipeline.send(flight.output.detach(), self._crossing(iteration, instruction))
        elif op is Op.RECEIVE_GRADIENT:
            flight.gradient = self._pipeline.receive(self._crossing(iteration, instruction))
        elif op is Op.BACKWARD or op is Op.BACKWARD_INPUT:
            self._backward(flight, stage, scale)
        elif op is Op.BACKWARD_WEIGHT:
            self._backward_weight(flight, stage)
        elif op is Op.SEND_GRADIENT:
            self._pipeline.send(flight.take_input_gradient(), self._crossing(iteration, instruction))

    def _crossing(self, iteration: int, instruction: Instruction) -> Crossing:
        """What a send or a receive passes over which border."""
        index, stage, paths, own = instruction.micro_batch, instruction.stage, self._paths, self.position.replica
        is_gradient = instruction.op in (Op.SEND_GRADIENT, Op.RECEIVE_GRADIENT)
        ahead = -1 if is_gradient else 1
        sender, other = (stage - ahead, stage - ahead) if instruction.op in RECEIVES else (stage, stage + ahead)
        return Crossing(
            is_gradient=is_gradient,
            home=own if paths is None else paths.home(index),
            other=own if paths is None else paths.host(index, other),
            border=min(sender, sender + ahead),
            num_tokens=self._samples.documents(iteration, index).num_tokens,
            place=self._places[Sent(is_gradient, index, sender)] if self._places else 0,
        )

    def _forward(self, flight: _Flight, stage: int) -> None:
        index = flight.batch.index
        before = self._flights.get((index, stage - 1))
        if before is not None:  # the stage before is this rank's own
            assert before.output is not None, "a stage follows the one before it"
            flight.entered = before.output.detach().requires_grad_()
        flight.tape = WeightTape(self._parameters[stage]) if (index, stage) in self._split else None
        with self._phases.segments[ComputeKind.FORWARD]:
            flight.output = self.models[stage].forward(flight.entered, flight.batch, flight.tape or self._direct)
        if stage == self._last:
            loss = float(flight.output.detach())
            self._loss += loss
            self.sums.losses[index] = loss

    def _backward(self, flight: _Flight, stage: int, scale: float) -> None:
        assert flight.output is not None, "a backward follows its forward"
        index = flight.batch.index
        after = self._flights.get((index, stage + 1))
        if stage == self._last:
            gradient: Tensor | None = torch.full_like(flight.output, scale)
        else:
            gradient = flight.gradient if after is None else after.take_input_gradient()
        with self._phases.segments[ComputeKind.BACKWARD]:
            torch.autograd.backward([flight.output], [gradient])
            if flight.tape is None:
                self._phases.add(self.models[stage].embedding_backward_flops(flight.batch))
                self.sums.accumulate(self._parameters[stage], index)
        flight.output = flight.gradient = None

    def _backward_weight(self, flight: _Flight, stage: int) -> None:
        """Only now is the micro-batch in the stage's sums: after a failure before it, it is run again."""
        assert flight.tape is not None, "the weights' part follows the input's"
        with self._phases.segments[ComputeKind.BACKWARD]:
            flight.tape.fill()
            self._phases.add(self.models[stage].weight_flops(flight.batch))
            self.sums.accumulate(self._parameters[stage], flight.batch.index)
        flight.tape = None
