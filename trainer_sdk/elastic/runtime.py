"""One rank's part in one epoch: interprets its stage's program, micro-batch by micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from layouts.instructions import Op, Program
from layouts.layout import Layout, Position
from layouts.paths import Paths
from layouts.schedules import program_of
from trainer_sdk.devices.device import ComputeKind
from trainer_sdk.elastic.clock import Clock
from trainer_sdk.elastic.config import TrainingConfig
from trainer_sdk.elastic.data import Dataset, Documents, MicroBatch
from trainer_sdk.elastic.exchange import plan_exchange
from trainer_sdk.elastic.gradient_sums import GradientSums
from trainer_sdk.elastic.model import parameter_specs
from trainer_sdk.elastic.optimizer import ShardOptimizer
from trainer_sdk.elastic.ownership import OwnershipMap
from trainer_sdk.elastic.pipeline import Pipeline
from trainer_sdk.elastic.reducer import GradientReducer
from trainer_sdk.elastic.remainder import Remainder
from trainer_sdk.elastic.shard_state import ShardState
from trainer_sdk.elastic.stage_model import StageModel
from trainer_sdk.elastic.tensor_parallel import TensorRegion
from trainer_sdk.elastic.topology import collective_name
from trainer_sdk.elastic.weight_tape import WeightTape
from trainer_sdk.elastic.weights import DirectWeights
from trainer_sdk.groups.group import Group


@dataclass(slots=True)
class _Flight:
    """A micro-batch between its forward and the last part of its backward."""

    batch: MicroBatch
    entered: Tensor | None = None
    output: Tensor | None = None
    gradient: Tensor | None = None
    tape: WeightTape | None = None


class EpochRuntime:
    """Runs iterations of one epoch up to the reduced gradients, and applies the step. Training thread only.

    Args:
        config: Job.
        dataset: Its samples.
        layout: Layout of the epoch.
        rank: This rank; it has a position in the layout.
        state: Its slices.
        groups: The epoch's groups by name; none in a single-process run.
        clock: Told of compute and waits.
        sums: Its gradient sums of an interrupted iteration, if this epoch goes on with one.
        remainder: What is left of that iteration.

    Attributes:
        sums: This rank's gradient sums.
        batches: Micro-batches that this stage ran in the newest iteration, in the order of their forwards.
        kept: Index and documents of those that count in it without having been run in this epoch.
    """

    def __init__(
        self,
        config: TrainingConfig,
        dataset: Dataset,
        layout: Layout,
        rank: int,
        state: ShardState,
        groups: Mapping[str, Group],
        clock: Clock,
        sums: GradientSums | None = None,
        remainder: Remainder | None = None,
    ) -> None:
        position = layout.position_of(rank)
        assert position is not None, f"rank {rank} has no position in the layout"
        self.position: Position = position
        self._dataset = self._samples = dataset.under(layout.mix)
        self._clock = clock
        stage = layout.stage_at(position)
        self._layout = layout
        self._program = program_of(layout, position.replica, position.stage)
        self._routed = Paths(layout) if layout.routes else None
        self._paths = self._routed
        specs = parameter_specs(config.model)
        ownership = OwnershipMap(specs, layout)
        group = groups[collective_name(stage.ranks)] if len(stage.ranks) > 1 else None
        self.optimizer = ShardOptimizer(config.optimizer, state)
        self.model = StageModel(
            config.model,
            range(stage.first_block, stage.stop_block),
            ownership.held_by(rank),
            TensorRegion(group, clock),
        )
        self._direct = DirectWeights(self.optimizer.parameters)
        device = torch.device(config.device)
        self._pipeline = Pipeline(
            layout,
            rank,
            groups,
            clock,
            width=config.model.width,
            dtype=torch.float64 if config.dtype == "float64" else torch.float32,
            device=device,
        )
        buckets = plan_exchange(specs, layout)
        self.sums = sums or GradientSums(ownership, rank, buckets, device)
        self.reducer = GradientReducer(self.sums, rank, buckets, groups, clock, device)
        self._remainder = remainder
        self._is_last = stage.stop_block == layout.num_blocks
        self._loss = 0.0
        self._flights: dict[int, _Flight] = {}
        self._split: frozenset[int] = frozenset()
        self.batches: list[MicroBatch] = []
        self.kept: tuple[tuple[int, Documents], ...] = ()

    def run_iteration(self, iteration: int) -> float:
        """Run all micro-batches of this stage, or what is left of them after a failure, and reduce the gradients.

        Returns:
            This rank's part of the iteration's mean loss: parts of all ranks add up to it.

        Raises:
            Interrupted: The rank should park; ``sums`` tells what was done.
            PeerLost: A peer is gone; likewise.
        """
        self._loss = 0.0
        self._flights.clear()
        self.batches = []
        self._pipeline.forget()
        with self._clock.computing(ComputeKind.DATA):
            program = self._begin(iteration)
            self._split = frozenset(one.micro_batch for one in program if one.op is Op.BACKWARD_INPUT)
            scale = 1.0 / self._samples.total_tokens(iteration)
        for instruction in program:
            if instruction.op is Op.REDUCE:
                self._pipeline.flush()
                self.reducer.reduce()
            elif instruction.op is not Op.STEP:
                self._execute(instruction.op, self._flight(iteration, instruction.micro_batch), scale)
        speaks = self._is_last and self.position.shard == 0
        return self._loss * scale if speaks else 0.0

    def step(self, gradient_scale: float) -> None:
        """Apply the optimizer step with the reduced gradients."""
        with self._clock.computing(ComputeKind.OPTIMIZER):
            self._clock.add(self.optimizer.flops)
            self.optimizer.step(self.sums.gradients(), gradient_scale)
        self._remainder = None

    def _begin(self, iteration: int) -> Program:
        """What to run; ``sums`` has the rest."""
        remainder, position = self._remainder, self.position
        if remainder is None or remainder.iteration != iteration:
            self.kept, self._samples, self._paths = (), self._dataset, self._routed
            self.sums.begin(iteration)
            return self._program
        self._samples, self._paths = self._dataset.under(remainder.mix), None  # every replica runs its share alone
        self.kept = tuple((index, self._samples.documents(iteration, index)) for index in remainder.kept)
        if position.replica == 0:
            self._loss = remainder.kept_loss  # one rank speaks for what nobody ran again
        return program_of(self._layout, position.replica, position.stage, remainder.by_replica[position.replica])

    def _flight(self, iteration: int, index: int) -> _Flight:
        flight = self._flights.get(index)
        if flight is None:
            with self._clock.computing(ComputeKind.DATA):
                flight = _Flight(self._samples.micro_batch(iteration, index))
            self._flights[index] = flight
            self.batches.append(flight.batch)
        return flight

    def _execute(self, op: Op, flight: _Flight, scale: float) -> None:
        tokens, index = flight.batch.documents.num_tokens, flight.batch.index
        home = self.position.replica if self._paths is None else self._paths.home(index)
        if op is Op.RECEIVE_ACTIVATION:
            sender = self._host(index, -1)
            received = self._pipeline.receive(tokens, is_gradient=False, home=home, sender=sender)
            flight.entered = received.requires_grad_()
        elif op is Op.FORWARD:
            self._forward(flight)
        elif op is Op.SEND_ACTIVATION:
            assert flight.output is not None, "an activation is sent after its forward"
            self._pipeline.send(flight.output.detach(), is_gradient=False, home=home, to=self._host(index, 1))
        elif op is Op.RECEIVE_GRADIENT:
            sender = self._host(index, 1)
            flight.gradient = self._pipeline.receive(tokens, is_gradient=True, home=home, sender=sender)
        elif op is Op.BACKWARD or op is Op.BACKWARD_INPUT:
            self._backward(flight, scale)
        elif op is Op.BACKWARD_WEIGHT:
            self._backward_weight(flight)
        elif op is Op.SEND_GRADIENT:
            assert flight.entered is not None, "a gradient is sent by a stage that received an activation"
            assert flight.entered.grad is not None, "a gradient is sent after its backward"
            self._pipeline.send(flight.entered.grad, is_gradient=True, home=home, to=self._host(index, -1))
            flight.entered = None

    def _host(self, micro_batch: int, offset: int) -> int:
        """The replica that runs a neighbouring stage of a micro-batch."""
        position = self.position
        return position.replica if self._paths is None else self._paths.host(micro_batch, position.stage + offset)

    def _forward(self, flight: _Flight) -> None:
        flight.tape = WeightTape(self.optimizer.parameters) if flight.batch.index in self._split else None
        with self._clock.computing(ComputeKind.FORWARD):
            flight.output = self.model.forward(flight.entered, flight.batch, flight.tape or self._direct)
        if self._is_last:
            loss = float(flight.output.detach())
            self._loss += loss
            self.sums.losses[flight.batch.index] = loss

    def _backward(self, flight: _Flight, scale: float) -> None:
        assert flight.output is not None, "a backward follows its forward"
        gradient = torch.full_like(flight.output, scale) if self._is_last else flight.gradient
        with self._clock.computing(ComputeKind.BACKWARD):
            torch.autograd.backward([flight.output], [gradient])
            if flight.tape is None:
                self._clock.add(self.model.embedding_backward_flops(flight.batch))
                self.sums.accumulate(self.optimizer.parameters, flight.batch.index)
        flight.output = flight.gradient = None

    def _backward_weight(self, flight: _Flight) -> None:
        """Only now is the micro-batch in the sums: after a failure before it, it is run again."""
        assert flight.tape is not None, "the weights' part follows the input's"
        with self._clock.computing(ComputeKind.BACKWARD):
            flight.tape.fill()
            self._clock.add(self.model.weight_flops(flight.batch))
            self.sums.accumulate(self.optimizer.parameters, flight.batch.index)
        flight.tape = None
