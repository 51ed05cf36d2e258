"""Which processes are dead, which came back: life-cycle events, each finding once per incarnation.

A launcher that saw a process die is believed at once. A broken stream from the scheduler is believed when something
else speaks for it (a peer lost a connection, nothing was heard since, the rank is missing from a frame), because a
stream also breaks when a process ends as planned. A lost connection alone names the one who reports it, and accuses
nobody.
"""

from dataclasses import dataclass, field

from evenkeel.services.detector.domain.frames.observation import ProcessEvent, ProcessEventKind, RankProgress
from evenkeel.services.detector.domain.memory.state import DERIVED

_SUPPORT_WINDOW_SECONDS = 5.0
_SILENCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFinding:
    """A process that is dead, or one that replaces it.

    Attributes:
        rank: Rank.
        incarnation: Incarnation that died or came up.
        rejoined: It came up; otherwise it died.
        confidence: 0 to 1.
        evidence: One sentence a fact.
        again: It was told as dead before, and had lived on until now.
    """

    rank: int
    incarnation: int
    rejoined: bool
    confidence: float
    evidence: tuple[str, ...]
    again: bool = False


@dataclass(slots=True, eq=False)
class ProcessWatch:
    """Life and death of a job's processes; bounded by its number of ranks."""

    _newest: dict[int, int] = field(default_factory=dict)
    # Ranks; None until a process ends, as most of a job's time nobody asks.
    _perhaps_alive: set[int] | None = field(default=None, metadata=DERIVED)
    _up: dict[int, int] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)
    _finished: dict[int, int] = field(default_factory=dict)
    _broken: dict[int, tuple[int, float, str]] = field(default_factory=dict)
    # Processes that were told as dead and whose end nobody saw, and since when.
    _presumed: dict[int, tuple[int, float]] = field(default_factory=dict)
    _lost: list[tuple[int, float]] = field(default_factory=list)
    _places: dict[int, tuple[int, str, str]] = field(default_factory=dict)

    def is_dead(self, rank: int, incarnation: int) -> bool:
        """True when this incarnation is known to have ended, one way or the other."""
        return incarnation <= max(self._ended.get(rank, -1), self._finished.get(rank, -1))

    @property
    def all_finished(self) -> bool:
        """Every rank's newest process has ended, and at least one as planned."""
        if not self._finished:
            return False
        # Who has ended is looked at once, not again with each of thousands of ends.
        if self._perhaps_alive is None:
            self._perhaps_alive = set(self._newest)
        while self._perhaps_alive:
            rank = self._perhaps_alive.pop()
            if not self.is_dead(rank, self._newest[rank]):
                self._perhaps_alive.add(rank)
                return False
        return True

    def seen(self, rank: int, incarnation: int) -> None:
        """A process was heard of."""
        if incarnation > self._newest.get(rank, -1):
            self._newest[rank] = incarnation
            if self._perhaps_alive is not None:
                self._perhaps_alive.add(rank)

    def place(self, rank: int, incarnation: int) -> tuple[str, str]:
        """Node and device of a process as its events told them; empty where they did not."""
        known, node, device = self._places.get(rank, (-1, "", ""))
        return (node, device) if known == incarnation else ("", "")

    def on_event(self, event: ProcessEvent) -> list[ProcessFinding]:
        """Takes one life-cycle event."""
        rank, incarnation = event.rank, event.incarnation
        if rank < 0:
            return []
        known = self._places.get(rank, (-1, "", ""))
        if incarnation > known[0]:
            self._places[rank] = (incarnation, event.node, event.device)
        elif incarnation == known[0]:
            self._places[rank] = (incarnation, known[1] or event.node, known[2] or event.device)
        match event.kind:
            case ProcessEventKind.STARTED:
                return self._started(rank, incarnation)
            case ProcessEventKind.DIED:
                self.seen(rank, incarnation)
                process, since = self._presumed.get(rank, (-1, 0.0))
                again = process == incarnation and event.at_unix_seconds - since > _SUPPORT_WINDOW_SECONDS
                text = f"its end was seen: {event.detail or 'no detail'}"
                return self._died(rank, incarnation, 0.999, text, again=again)
            case ProcessEventKind.FINISHED:
                self.seen(rank, incarnation)
                self._broken.pop(rank, None)
                self._finished[rank] = max(incarnation, self._finished.get(rank, -1))
                return []
            case ProcessEventKind.STREAM_BROKEN:
                self.seen(rank, incarnation)
                if not self.is_dead(rank, incarnation):
                    self._broken[rank] = (incarnation, event.at_unix_seconds, event.detail)
                return self._supported(event.at_unix_seconds)
            case ProcessEventKind.CONNECTION_LOST:
                self._lost = [*self._lost[-15:], (rank, event.at_unix_seconds)]
                return self._supported(event.at_unix_seconds)
            case ProcessEventKind.PROBED:
                return []

    def on_progress(self, at_unix_seconds: float, progress: tuple[RankProgress, ...]) -> list[ProcessFinding]:
        """Takes a picture of who was heard when."""
        found: list[ProcessFinding] = []
        for one in progress:
            self.seen(one.rank, one.incarnation)
            broken = self._broken.get(one.rank)
            if broken is None or broken[0] != one.incarnation:
                continue
            heard_at = at_unix_seconds - one.seconds_since_heard
            if heard_at > broken[1] + _SILENCE_SECONDS:
                del self._broken[one.rank]  # It spoke after its stream broke: the stream was ill, not the rank.
            elif one.seconds_since_heard >= _SILENCE_SECONDS:
                found += self._confirm(one.rank, f"nothing heard from it for {one.seconds_since_heard:.1f} s")
        return found

    def on_missing(self, ranks: tuple[int, ...]) -> list[ProcessFinding]:
        """Takes the ranks that a frame was closed without."""
        return [finding for rank in ranks if rank in self._broken for finding in self._confirm(rank, "no sample came")]

    def _started(self, rank: int, incarnation: int) -> list[ProcessFinding]:
        known = self._newest.get(rank)
        self.seen(rank, incarnation)
        # "Newest" does not tell: a process may report progress, or its stream break, before word of its start comes.
        told = incarnation <= self._up.get(rank, 0) or self.is_dead(rank, incarnation)
        if told or (known is not None and incarnation < known):
            return []
        self._up[rank] = incarnation
        if known != incarnation:
            self._broken.pop(rank, None)
        found: list[ProcessFinding] = []
        if known is not None:
            earlier = min(known, incarnation - 1)
            found += self._died(rank, earlier, 0.99, f"incarnation {incarnation} was started in its place")
        text = f"incarnation {incarnation} is up and its rank controller answers"
        return [
            *found,
            ProcessFinding(rank=rank, incarnation=incarnation, rejoined=True, confidence=0.999, evidence=(text,)),
        ]

    def _died(
        self, rank: int, incarnation: int, confidence: float, *evidence: str, again: bool = False
    ) -> list[ProcessFinding]:
        self._presumed.pop(rank, None)
        if self.is_dead(rank, incarnation) and not again:
            return []
        self._ended[rank] = max(incarnation, self._ended.get(rank, -1))
        broken = self._broken.pop(rank, None)
        if broken is not None:
            evidence = (*evidence, f"the scheduler's stream to it broke: {broken[2] or 'no detail'}")
        return [
            ProcessFinding(
                rank=rank,
                incarnation=incarnation,
                rejoined=False,
                confidence=confidence,
                evidence=evidence,
                again=again,
            )
        ]

    def _supported(self, now: float) -> list[ProcessFinding]:
        reporters = {rank for rank, at in self._lost if abs(now - at) <= _SUPPORT_WINDOW_SECONDS}
        found: list[ProcessFinding] = []
        for rank, (_, at, _) in sorted(self._broken.items()):
            others = sorted(reporters - {rank} - set(self._broken))
            if others and abs(now - at) <= _SUPPORT_WINDOW_SECONDS:
                found += self._confirm(rank, f"ranks {others} lost a connection at the same time")
        return found

    def _confirm(self, rank: int, support: str) -> list[ProcessFinding]:
        incarnation, at, _ = self._broken[rank]
        found = self._died(rank, incarnation, 0.97, support)
        self._presumed[rank] = (incarnation, at)
        return found
