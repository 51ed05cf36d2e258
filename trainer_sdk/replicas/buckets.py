"""The exchange of gradients over replicas, begun while the last backward still runs.

Parameters keep the replica's own sum in ``grad`` until the vote has passed, in float32 at least: what goes into the
exchange is a copy, which an exchange that was broken off may write into for as long as it likes.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.groups.group import Group, Pending

BUCKET_BYTES = 25 << 20
_FIRST_BUCKET_BYTES = 1 << 20


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded over its replica."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


class _Bucket:
    """Some parameters, and the buffer that their gradients are exchanged in: float32, or float64 where they are."""

    def __init__(self, indices: Sequence[int], sizes: Sequence[int]) -> None:
        self.indices = tuple(indices)
        self.sizes = list(sizes)
        self.num_due = 0
        self.flat: Tensor | None = None
        self.views: list[Tensor] = []

    def renew(self, parameters: Sequence[Tensor]) -> Tensor:
        """The buffer, made when it is first used."""
        if self.flat is None:
            dtype = reduce(torch.promote_types, [parameters[each].dtype for each in self.indices], torch.float32)
            self.flat = torch.empty(sum(self.sizes), dtype=dtype, device=local(parameters[0]).device)
            self.views = [
                piece.view(local(parameters[index]).shape)
                for index, piece in zip(self.indices, torch.split(self.flat, self.sizes), strict=True)
            ]
        return self.flat


class Buckets:
    """All gradients of a replica's rank. Training thread, and the backward's thread in hooks.

    Args:
        parameters: Those that need gradients, in the same order on every replica.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = tuple(parameters)
        self._buckets: list[_Bucket] = []
        self._bucket_of: list[_Bucket] = [_Bucket((), ())] * len(self._parameters)
        self._group: Group | None = None
        self._armed = self._abandoned = False
        self._sums: dict[int, tuple[Tensor, int]] = {}  # as backwards left them: the gradient and its version
        # Backwards in a row in which each gradient came once, and how many there must be before any leaves early.
        self._num_plain = self._num_plain_due = 0
        self._is_outdated = False  # a gradient was added to after its bucket had left
        self._ready: set[int] = set()
        self._next = 0
        self._pending: list[Pending] = []
        self._narrow = [each for each in self._parameters if _sums_narrowly(each)]
        self._fill()
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]

    def _fill(self) -> None:
        """Last parameters first: their gradients come first."""
        chosen: list[int] = []
        sizes: list[int] = []
        limit = _FIRST_BUCKET_BYTES
        for index in reversed(range(len(self._parameters))):
            chosen.append(index)
            sizes.append(local(self._parameters[index]).numel())
            if 4 * sum(sizes) >= limit or index == 0:
                bucket = _Bucket(chosen, sizes)
                self._buckets.append(bucket)
                for each in chosen:
                    self._bucket_of[each] = bucket
                chosen, sizes, limit = [], [], BUCKET_BYTES

    def open(self) -> None:
        """A step begins, with no gradients; those of parameters in a short format are summed in float32."""
        for parameter in self._parameters:
            parameter.grad = None  # what is there is of a step that is over
        self._sums.clear()
        for parameter in self._narrow:
            parameter.grad_dtype = torch.float32

    def check_sums(self) -> None:
        """Whether gradients are what backwards made of them: in the loop they are sums of this replica alone.

        Raises:
            RuntimeError: They are not.
        """
        for index, (gradient, version) in self._sums.items():
            if self._parameters[index].grad is not gradient or gradient._version != version:
                raise RuntimeError(
                    "the gradients of the step's earlier micro-batches are gone or were changed: zero, clip and "
                    "unscale them after the loop over run.micro_batches(...), and let nobody else exchange them (DDP)"
                )

    def enter(self, group: Group | None) -> None:
        """Exchange in this group from now on; None = there is nobody else."""
        self._group = group

    def abandon(self) -> None:
        """Leave an exchange. Its buffers are read again only if its vote has passed somewhere: then they are whole."""
        self._armed, self._group, self._pending = False, None, []
        self._abandoned, self._is_outdated = True, False

    def arm(self) -> None:
        """The next backward is this step's last: gradients leave as soon as they are there."""
        if self._abandoned:  # what is on its way may still write into the old buffers
            self._abandoned = False
            for bucket in self._buckets:
                bucket.flat, bucket.views = None, []
        self._armed = self._group is not None
        self._num_plain += bool(self._ready)
        self._ready.clear()
        self._next = 0
        for bucket in self._buckets:
            bucket.num_due = len(bucket.indices)

    def used(self) -> list[bool]:
        """For each parameter, whether it has a gradient."""
        return [parameter.grad is not None for parameter in self._parameters]

    def flush(self) -> None:
        """Begin what no backward has begun.

        Raises:
            WaitBroken: What has left is not all; the sums are whole, and are to be exchanged anew.
        """
        if self._is_outdated:
            self._num_plain_due = 2 * self._num_plain_due or 1
            raise WaitBroken("gradients were added to after they had left: next time they leave later")
        if not self._armed:
            self.arm()
        self._armed = False
        if self._group is not None:
            while self._next < len(self._buckets):
                self._start()

    def wait(self) -> None:
        """Wait for all sums.

        Raises:
            WaitBroken: The rank should leave the epoch.
        """
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def finish(self, scale: float, used: Sequence[bool]) -> None:
        """The vote has passed: put the global gradients into ``grad``, in the type that an optimizer expects.

        Parameters that nobody used have none.
        """
        self._sums.clear()  # a narrow gradient is not kept in both types
        with torch.no_grad():
            for bucket in self._buckets:
                for place, index in enumerate(bucket.indices):
                    parameter = self._parameters[index]
                    if not used[index]:
                        parameter.grad = None
                        continue
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter, dtype=_gradient_dtype(parameter))
                    mine = local(parameter.grad)
                    if bucket.views:
                        torch.mul(bucket.views[place], scale, out=mine)
                    else:
                        mine.mul_(scale)
        for parameter in self._narrow:
            gradient, parameter.grad = parameter.grad, None
            parameter.grad_dtype = parameter.dtype
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)

    def _hook(self, index: int) -> Any:
        def ready(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None, "it was just added to"
            if gradient.layout is not torch.strided:
                raise TypeError("a parameter has a sparse gradient, which is not exchanged: use sparse=False")
            self._sums[index] = gradient, gradient._version
            if not self._armed:
                return
            bucket = self._bucket_of[index]
            if index in self._ready:  # a second backward, or a layer that is checkpointed in several places
                self._num_plain = -1
                self._is_outdated |= bucket in self._buckets[: self._next]
                return
            self._ready.add(index)
            bucket.num_due -= 1
            # One order everywhere: a bucket that is full waits for those before it.
            if self._num_plain >= self._num_plain_due:
                while self._next < len(self._buckets) and self._buckets[self._next].num_due == 0:
                    self._start()

        return ready

    def _start(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        assert self._group is not None, "only an exchange with others is begun"
        with torch.no_grad():
            flat = bucket.renew(self._parameters)
            targets, sources = [], []
            for view, index in zip(bucket.views, bucket.indices, strict=True):
                gradient = self._parameters[index].grad
                if gradient is None:
                    view.zero_()
                else:
                    targets.append(view)
                    sources.append(local(gradient))
            if targets:
                torch._foreach_copy_(targets, sources)
        self._pending.append(self._group.start_all_reduce(flat))


def _sums_narrowly(parameter: Tensor) -> bool:
    """Whether its gradients would be added up in less than float32. Sharded ones are their wrapper's to add up."""
    is_plain = local(parameter) is parameter
    return is_plain and torch.promote_types(_gradient_dtype(parameter), torch.float32) != _gradient_dtype(parameter)


def _gradient_dtype(parameter: Tensor) -> torch.dtype:
    dtype = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype
