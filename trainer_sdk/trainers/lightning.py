"""A strategy of Lightning whose process is one of several replicas."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

try:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError("evenkeel.lightning needs lightning: pip install 'evenkeel[lightning]'") from error

from evenkeel.trainer_sdk.trainers.steps import TrainerSteps


class EvenkeelStrategy(SingleDeviceStrategy):
    """``L.Trainer(strategy=EvenkeelStrategy(), accumulate_grad_batches=…)``; any replica may die, and comes back.

    ``accumulate_grad_batches`` are a step's micro-batches over all replicas.

    Args:
        device: Of this replica; None = the current accelerator's where there is one.
        **options: As of ``SingleDeviceStrategy``.
    """

    strategy_name = "evenkeel"

    def __init__(self, device: str | torch.device | None = None, **options: Any) -> None:
        if device is None:
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        super().__init__(device=device, **options)
        self._steps: TrainerSteps | None = None
        self._batches: list[tuple[Any, ...]] = []
        self._gradients: list[Tensor | None] | None = None

    @property
    def is_global_zero(self) -> bool:
        """Whether this process saves and logs: one of those that hold the whole state."""
        return self._steps is None or self._steps.is_first

    @property
    def has_model(self) -> bool:
        """False in a newcomer that does not hold the whole state yet: its module says nothing."""
        return self._steps is None or self._steps.has_model

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - as there
        """Whether to stop early, say; what a newcomer has measured before it has the model decides nothing."""
        return decision and self.has_model

    def setup(self, trainer: Any) -> None:
        """As there, and before training the replica is made.

        Raises:
            ValueError: The module or the environment cannot be used; the message says why.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if not self.lightning_module.automatic_optimization:
            raise ValueError(
                f"{type(self.lightning_module).__name__} optimizes by hand, which EvenkeelStrategy cannot share out: "
                "use automatic optimization, or a loop of your own (docs/on_your_loop.md)"
            )
        kept = [each.scheduler for each in self.lr_scheduler_configs]
        kept.append(getattr(self.precision_plugin, "scaler", None))
        # Averages of the weights, as WeightAveraging and StochasticWeightAveraging have them.
        held = [each for callback in trainer.callbacks for each in vars(callback).values()]
        averages = [each for each in held if isinstance(each, AveragedModel | LightningModule)]
        kept += [each for each in averages if each is not self.lightning_module]
        self._steps = TrainerSteps(self.lightning_module, trainer.accumulate_grad_batches, kept)

    def teardown(self) -> None:
        """As there, with a word where the module that training leaves is not whole."""
        super().teardown()
        if self._steps is not None:
            self._steps.end()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """A step's last call runs this replica's share of its micro-batches; those before only collect."""
        trainer = self.lightning_module.trainer
        self._batches.append((args, kwargs))
        if trainer.fit_loop._should_accumulate():
            return torch.zeros((), device=self.root_device)
        batches, self._batches = self._batches, []
        assert self._steps is not None, "nobody trains before setup"
        parameters = list(self.lightning_module.parameters())
        for parameter in parameters:
            parameter.grad = None
        total = self._steps.run(trainer.global_step, batches, self._share)
        # Lightning sets gradients to zero between this and backward(): they are held until then.
        self._gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return total * (trainer.accumulate_grad_batches / len(batches))

    def _share(self, batch: tuple[Any, ...]) -> Tensor:
        """Forward and backward of a micro-batch; its part of the step's loss, as Lightning takes it."""
        args, kwargs = batch
        output = super().training_step(*args, **kwargs)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is None:
            return torch.zeros((), device=self.root_device)
        part: Tensor = loss / self.lightning_module.trainer.accumulate_grad_batches
        super().backward(part, self.optimizers[0])
        return part.detach()

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The step's gradients, which are there already."""
        gradients, self._gradients = self._gradients, None
        for parameter, gradient in zip(self.lightning_module.parameters(), gradients or (), strict=False):
            parameter.grad = gradient
        return closure_loss
