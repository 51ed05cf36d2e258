"""A trainer's steps as iterations of a watched job, where nobody repairs them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from evenkeel.trainer_sdk.api import start
from evenkeel.trainer_sdk.emit.iteration import Iteration

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.watch.run import Run

T = TypeVar("T")


class WatchedSteps:
    """What the callbacks of all trainers tell the watch. Training thread; nothing here raises into the trainer.

    Args:
        run: This process's part of the job; None = what ``evenkeel.start()`` gives when training begins.
    """

    def __init__(self, run: "Run | None" = None) -> None:
        self._given = run
        self._iteration: Iteration | None = None
        self._pause = ExitStack()

    @property
    def run(self) -> "Run":
        """This process's part of the job."""
        return self._given or start()

    def start(self) -> None:
        """Training begins, after an error maybe once more: no step is under way."""
        self._iteration = None
        self._pause.close()

    def begin(self, step: int) -> None:
        """A step begins, unless one is under way.

        Args:
            step: Steps that the trainer has finished.
        """
        if self._iteration is None:
            self._pause.close()
            self._iteration = self.run.iteration(tokens=0, index=step).__enter__()
            self._iteration.num_micro_batches = 0

    def read(self, source: Iterator[Any], gather: Callable[[Iterator[Any]], T]) -> T:
        """What a trainer gathers of a step's micro-batches; what it does beside reading them is waiting for others."""
        assert self._iteration is not None, "a step has begun"
        reading, waiting = self._iteration.compute("data"), self._iteration.waiting()

        def batches() -> Iterator[Any]:
            while True:
                with reading:
                    batch = next(source, self)
                waiting.__enter__()
                if batch is self:
                    return
                yield batch

        with waiting:
            return gather(batches())

    def wait(self) -> None:
        """Until something else begins, this rank waits for others."""
        if self._iteration is not None:
            self._iteration.waiting().__enter__()

    def reading(self) -> AbstractContextManager[None]:
        """A context around the reading of a micro-batch."""
        return nullcontext() if self._iteration is None else self._iteration.compute("data")

    def take(self, batch: Any) -> None:
        """Its next micro-batch; what it holds is the number of elements of its first tensor."""
        if self._iteration is not None:
            tensor = _first_tensor(batch)
            self._iteration.tokens += 0 if tensor is None else tensor.numel()
            self._iteration.num_micro_batches += 1

    def add(self, loss: Any) -> None:
        """A micro-batch's part of the step's loss."""
        if self._iteration is not None and isinstance(loss, Tensor):
            before = self._iteration.loss
            self._iteration.loss = loss.detach() if before is None else before + loss.detach()

    def end(self) -> None:
        """The optimizer has stepped."""
        iteration, self._iteration = self._iteration, None
        if iteration is not None:
            iteration.__exit__(None, None, None)

    def pause(self, mark: str) -> None:
        """Something beside training begins; it is over when a step begins, and a step that is under way is marked.

        Args:
            mark: ``evaluation`` or ``checkpoint``.
        """
        if self._iteration is not None:
            self._iteration.mark = mark
        else:
            self._pause.enter_context(self.run.pause(mark))


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return None
    return next((tensor for each in batch if (tensor := _first_tensor(each)) is not None), None)
