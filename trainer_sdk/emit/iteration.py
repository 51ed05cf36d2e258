"""One iteration of a plain training loop, measured: what ``with run.iteration(...)`` gives."""

import resource
import sys
import time
from typing import Any, Protocol, Self

from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.left_value import LeftValue
from evenkeel.trainer_sdk.emit.phases import Phases

_MARKS = {"": pb.MARK_UNSPECIFIED, "evaluation": pb.MARK_EVALUATION, "checkpoint": pb.MARK_CHECKPOINT}
_MAX_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def check_mark(mark: str) -> None:
    """Refuse a mark that is not known.

    Raises:
        ValueError: Unknown mark.
    """
    if mark not in _MARKS:
        raise ValueError(f"mark {mark!r}: use one of {', '.join(repr(known) for known in _MARKS)}")


class _Finished(Protocol):
    def __call__(self, iteration: "Iteration", /) -> None: ...


class Iteration:
    """Measures from entering to leaving; a body that raises is no finished iteration and is not reported.

    The training thread only reads clocks and stores values; :meth:`sample` builds the message on another thread.

    Args:
        index: Iteration, counted from 0.
        tokens: Tokens N of this rank's batch.
        sum_of_squares: Sum of squared document lengths; 0 when not known.
        mark: ``evaluation`` or ``checkpoint`` when such a pause falls into the iteration, else empty.
        phases: The run's; told when this iteration begins and ends.
        segments: Made once per run by :func:`make_segments`.
        finished: Called on leaving, on the training thread.

    Raises:
        ValueError: Unknown mark.

    Attributes:
        loss: Set it to the iteration's loss: a number or a tensor. A tensor counts as it is on leaving, and is read
            later, on another thread.
        gradient_norm: Likewise, if measured.
    """

    __slots__ = (
        "_compute_seconds",
        "_finished",
        "_mark",
        "_phases",
        "_segments",
        "_started_seconds",
        "_started_unix_seconds",
        "_sum_of_squares",
        "_tokens",
        "_waiting_seconds",
        "_wall_seconds",
        "gradient_norm",
        "index",
        "loss",
    )

    def __init__(
        self,
        index: int,
        *,
        tokens: int,
        sum_of_squares: float,
        mark: str,
        phases: Phases,
        segments: "Segments",
        finished: _Finished,
    ) -> None:
        check_mark(mark)
        self.index = index
        self.loss: Any = None
        self.gradient_norm: Any = None
        self._tokens = tokens
        self._sum_of_squares = sum_of_squares
        self._mark = mark
        self._phases = phases
        self._segments = segments
        self._finished = finished
        self._started_seconds = 0.0
        self._started_unix_seconds = 0.0
        self._wall_seconds = 0.0
        self._compute_seconds: dict[ComputeKind, float] = {}
        self._waiting_seconds = 0.0

    def __enter__(self) -> Self:
        self._phases.begin_iteration(self.index, mark=self._mark)
        self._started_unix_seconds = time.time()
        self._started_seconds = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._wall_seconds = time.perf_counter() - self._started_seconds
        self._compute_seconds, self._waiting_seconds = self._phases.end_iteration()
        if kind is not None:
            return
        if self.loss is not None:
            self.loss = LeftValue(self.loss)
        if self.gradient_norm is not None:
            self.gradient_norm = LeftValue(self.gradient_norm)
        self._finished(self)

    def compute(self, kind: str) -> "Segment":
        """A context for one compute segment: ``forward``, ``backward``, ``optimizer`` or ``data``.

        Raises:
            ValueError: Unknown kind.
        """
        segment = self._segments.get(kind)
        if segment is None:
            raise ValueError(f"compute kind {kind!r}: use one of {', '.join(self._segments)}")
        return segment

    def waiting(self, *ranks: int) -> "Waiting":
        """A context around what waits for others, for example an all-reduce.

        A rank that hangs is told from those that wait for it by that; an adapter marks it by itself.

        Args:
            *ranks: Who is waited for, where known.
        """
        return Waiting(self._phases, ranks)

    def sample(self) -> pb.Sample:
        """The message; reads tensors, so it may wait for a GPU: never call it on the training thread."""
        seconds = self._compute_seconds
        sample = pb.Sample(
            iteration=self.index,
            started_at_unix_seconds=self._started_unix_seconds,
            wall_seconds=self._wall_seconds,
            compute=pb.ComputeSeconds(
                forward=seconds.get(ComputeKind.FORWARD, 0.0),
                backward=seconds.get(ComputeKind.BACKWARD, 0.0),
                optimizer=seconds.get(ComputeKind.OPTIMIZER, 0.0),
                data=seconds.get(ComputeKind.DATA, 0.0),
            ),
            waiting=pb.WaitingSeconds(gradient=self._waiting_seconds),
            micro_batches=[pb.MicroBatch(index=0, tokens=self._tokens, sum_of_squares=self._sum_of_squares)],
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAX_RSS_UNIT_BYTES,
            mark=_MARKS[self._mark],
        )
        loss, norm = (None if left is None else left.read() for left in (self.loss, self.gradient_norm))
        if loss is not None:
            sample.loss = loss
        if norm is not None:
            sample.gradient_norm = norm
        return sample


class Segment:
    """A context around one compute segment; the same object serves every iteration, one segment at a time."""

    __slots__ = ("_kind", "_phases")

    def __init__(self, kind: ComputeKind, phases: Phases) -> None:
        self._kind = kind
        self._phases = phases

    def __enter__(self) -> None:
        self._phases.compute(self._kind)

    def __exit__(self, *_: object) -> None:
        self._phases.rest()


class Waiting:
    """A context around a wait for other ranks."""

    __slots__ = ("_phases", "_ranks")

    def __init__(self, phases: Phases, ranks: tuple[int, ...]) -> None:
        self._phases = phases
        self._ranks = ranks

    def __enter__(self) -> None:
        self._phases.wait("others", self._ranks)

    def __exit__(self, *_: object) -> None:
        self._phases.rest()


Segments = dict[str, Segment]


def make_segments(phases: Phases) -> Segments:
    """The segments of a run, by kind."""
    kinds = (ComputeKind.FORWARD, ComputeKind.BACKWARD, ComputeKind.OPTIMIZER, ComputeKind.DATA)
    return {kind.value: Segment(kind, phases) for kind in kinds}
