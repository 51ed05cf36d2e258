"""One iteration of a plain training loop, measured: what ``with run.iteration(...)`` gives."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.trainer_sdk.emit.left_value import left, number
from evenkeel.trainer_sdk.emit.measured import NOWHERE, Measured
from evenkeel.trainer_sdk.emit.phases import Phased, Phases, Segment
from evenkeel.trainer_sdk.watch.guard import say_once

_MOST = 1e18  # that a column holds
_MARKS = {"": pb.MARK_UNSPECIFIED, "evaluation": pb.MARK_EVALUATION, "checkpoint": pb.MARK_CHECKPOINT}


def known_mark(mark: str) -> str:
    """The mark, or none for one that is not known, which is said once."""
    if mark in _MARKS:
        return mark
    say_once("mark", "mark %r is not known and ignored: use one of %s", mark, ", ".join(map(repr, _MARKS)))
    return ""


def known_index(index: Any, expected: int) -> int:
    """The number of an iteration; the one that is expected in place of what is none, which is said once."""
    try:
        found = int(index)
    except Exception:  # whatever it is, the loop goes on
        found = -1
    if 0 <= found < _MOST:
        return found
    say_once("index", "index %r is no number of an iteration, and not used: they go on from %d", index, expected)
    return expected


def _amount(what: str, value: Any) -> float:
    """What a loop says that a batch holds; 0 in place of what cannot be, which is said once."""
    amount = number(value, what)
    if amount is not None and 0 <= amount < _MOST:
        return amount
    say_once(what, "the %s of an iteration is not reported, as it cannot be %r", what, amount)
    return 0.0


class Iteration:
    """Measures from entering to leaving; a body that raises is no finished iteration and is not reported.

    The training thread only reads clocks and stores values; :meth:`measured` sorts them on another thread.

    Args:
        index: Iteration, counted from 0.
        tokens: Tokens N of this rank's batch.
        sum_of_squares: Sum of squared document lengths; 0 when not known.
        mark: ``evaluation`` or ``checkpoint`` when such a pause falls into the iteration, else empty.
        phases: The run's; told when this iteration begins and ends.
        finished: Called on leaving, on the training thread.

    Attributes:
        loss: Set it to the iteration's loss: a number or a tensor. A tensor counts as it is on leaving, and is read
            later, on another thread.
        gradient_norm: Likewise, if measured.
        tokens: Of this rank's batch, a number or a tensor; they count as they are on leaving, and so does what follows.
        num_micro_batches: That they are in.
        mark: Of the pause that falls into it, which may be known only later.
        place: Where in a layout it ran.
    """

    def __init__(
        self,
        index: int,
        *,
        tokens: int,
        sum_of_squares: float,
        mark: str,
        phases: Phases,
        finished: "Callable[[Iteration], None]",
    ) -> None:
        self.index = index
        self.loss: Any = None
        self.gradient_norm: Any = None
        self.tokens: Any = tokens
        self.num_micro_batches: Any = 1
        self.place = NOWHERE
        self._sum_of_squares: Any = sum_of_squares
        self.mark = mark and known_mark(mark)
        self._phases = phases
        self._finished = finished
        self._phased: Phased | None = None

    def __enter__(self) -> Self:
        self._phases.begin_iteration(self.index, mark=self.mark)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._phased = self._phases.end_iteration()
            if kind is not None:
                return
            self.loss = left(self.loss)
            self.gradient_norm = left(self.gradient_norm)
            self.tokens, self.num_micro_batches = left(self.tokens), left(self.num_micro_batches)
            self._sum_of_squares = left(self._sum_of_squares)
            self._finished(self)
        except Exception as error:
            self._phases.guard.note("the end of an iteration", error)

    def compute(self, kind: str) -> Segment | nullcontext[None]:
        """A context for one compute segment: ``forward``, ``backward``, ``optimizer`` or ``data``."""
        segments: dict[Any, Segment] = self._phases.segments  # kinds are texts too
        segment = segments.get(kind)
        if segment is None:
            say_once("kind", "compute kind %r is not measured: use one of %s", kind, ", ".join(segments))
            return nullcontext()
        return segment

    def waiting(self, *ranks: int) -> Segment:
        """A context around what waits for others, for example an all-reduce.

        A rank that hangs is told from those that wait for it by that; an adapter marks it by itself.

        Args:
            *ranks: Who is waited for, where known.
        """
        return Segment(partial(self._phases.wait, "others", ranks), self._phases)

    def measured(self) -> Measured:
        """What was measured; values that were left on a device are still there."""
        assert self._phased is not None, "it has ended"
        phased = self._phased
        measured = Measured(
            iteration=self.index,
            started_at_unix_seconds=phased.began_at_unix_seconds,
            wall_seconds=phased.wall_seconds,
            wait_gradient_seconds=sum(phased.waited_seconds.values()),
            tokens=round(_amount("tokens", self.tokens)),
            num_micro_batches=max(1, round(_amount("num_micro_batches", self.num_micro_batches))),
            place=self.place,
            sum_of_squares=_amount("sum_of_squares", self._sum_of_squares),
            loss=self.loss,
            gradient_norm=self.gradient_norm,
            mark=_MARKS[known_mark(self.mark)],
        )
        measured.add(phased.computed, phased.usage)
        return measured
