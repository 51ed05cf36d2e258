"""Who is in the job: what follows from the log of those who came and went. Pure.

Every rank reads the same log in the same order, so all come to the same epochs without asking one another.
"""

import json
from dataclasses import asdict, dataclass, replace

from evenkeel.layouts.json_schema import record_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A replica's processes are there and have built their model and optimizer.

    Attributes:
        replica: Number of the replica.
        token: Tells its processes from those that it had before.
        lines: ``host:port`` of each of its ranks, where others notice its end.
        num_replicas: How many begin the job together, as it was told; 0 = as those that came before were.
    """

    replica: int
    token: str
    lines: tuple[str, ...]
    num_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A replica's processes have ended, or count as ended.

    Attributes:
        replica: Number of the replica.
        token: Which processes.
        why: For people.
        standing: How far it was, where it could say so; else empty.
        finished: Its loop had come to its end.
    """

    replica: int
    token: str
    why: str
    standing: str = ""
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """An epoch does not work though nobody is gone: its members have another one, with whoever came since.

    Attributes:
        epoch: Number of the epoch.
        why: For people.
        anew: None of them holds any state: they begin the job, once as many are there as are to begin it.
    """

    epoch: int
    why: str
    anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """A plan of the scheduler's on who runs how many micro-batches, from the end of a step on.

    Attributes:
        plan: Its number, above those of all plans before it.
        weights: Pairs of a replica and its micro-batches. A replica that is there and is not named gets none; one that
            comes later gets as many as others have, until a plan names it.
    """

    plan: int
    weights: tuple[tuple[int, int], ...]


_REPLACED = "another process has taken its place; if that was no restart, two hosts or launchers have the same number"
_NUM_KEPT = 64
"""A rank is behind its mates by an epoch or two."""

Entry = Ready | Gone | Again | Quotas
_KINDS: dict[str, type[Entry]] = {"ready": Ready, "gone": Gone, "again": Again, "quotas": Quotas}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A replica in an epoch.

    Attributes:
        replica: Number of the replica.
        token: Its processes.
        lines: As in :class:`Ready`.
        founds: It was there at the job's first epoch: its state is the initial one, not somebody's.
        weight: Its part of the micro-batches, in relation to the others'.
    """

    replica: int
    token: str
    lines: tuple[str, ...] = ()
    founds: bool = False
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Who trains together.

    Attributes:
        number: Above those of all earlier epochs.
        members: Ascending by replica.
        left: Standings of members that went away in order.
        plan: Number of the newest plan that its weights follow; 0 = none.
    """

    number: int
    members: tuple[Member, ...]
    left: tuple[str, ...] = ()
    plan: int = 0


class Roster:
    """The epochs of a job, entry by entry.

    Args:
        num_replicas: How many replicas begin together, as long as none that came says another number.

    Attributes:
        num_replicas: How many begin together, as who came last was told: the same for all that read the log.
        epochs: The newest ones by number.
        epoch: The newest; None while nobody trains, as those that are to begin are not all there.
        newest_abrupt: Number of the newest change that waits for no step's end: an epoch, or that there is none.
        gone: Why, by token, for everybody who is gone.
        finished: Nobody trains, some had come to the end of their loops, and nobody has begun anew since.
    """

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self._members: dict[int, Member] = {}
        self._left: list[str] = []
        self._number = 0
        self._plan = 0
        self.epoch: Epoch | None = None
        self.epochs: dict[int, Epoch] = {}
        self.newest_abrupt = 0
        self.gone: dict[str, str] = {}
        self.finished = False
        self._some_finished = False

    @property
    def num_members(self) -> int:
        """Replicas that are there, whether or not enough to begin."""
        return len(self._members)

    def apply(self, entry: Entry) -> None:
        """Take note of the log's next entry; one that says nothing new changes nothing."""
        match entry:
            case Ready():
                self._came(entry)
            case Gone():
                self._went(entry)
            case Again(anew=anew):
                if not self.is_due(entry):
                    return
                if anew:
                    self._members = {name: replace(each, founds=True) for name, each in self._members.items()}
                    self._end()
                    self._begin()
                else:
                    self._go_on(abrupt=True)
            case Quotas():
                self._shared_out(entry)

    def is_due(self, entry: Entry) -> bool:
        """Whether an entry says something that no earlier one has said."""
        if isinstance(entry, Again):
            # An abrupt change since then takes its members out of it anyway; other changes wait for a step's end in it,
            # which does not come.
            return self.epoch is not None and self.newest_abrupt <= entry.epoch <= self.epoch.number
        if isinstance(entry, Quotas):
            return entry.plan > self._plan
        return entry.token not in self.gone

    def _came(self, entry: Ready) -> None:
        before = self._members.get(entry.replica)
        if entry.token in self.gone or (before is not None and before.token == entry.token):
            return
        if before is not None:
            self.gone[before.token] = _REPLACED
        self.num_replicas = entry.num_replicas or self.num_replicas
        weights = [each.weight for each in self._members.values()]
        self._members[entry.replica] = Member(
            replica=entry.replica,
            token=entry.token,
            lines=entry.lines,
            founds=self.epoch is None,
            weight=max(1, round(sum(weights) / len(weights))) if weights else 1,
        )
        if self.epoch is None:
            self._begin()
        else:
            self._go_on(abrupt=before is not None)

    def _begin(self) -> None:
        if len(self._members) >= self.num_replicas:
            self.finished = self._some_finished = False
            self._go_on(abrupt=True)

    def _went(self, entry: Gone) -> None:
        if entry.token in self.gone:
            return
        self.gone[entry.token] = entry.why
        member = self._members.get(entry.replica)
        if member is None or member.token != entry.token:
            return
        del self._members[entry.replica]
        if entry.standing:
            self._left.append(entry.standing)
        if self.epoch is None:
            return
        self._some_finished |= entry.finished
        if self._members:
            self._go_on(abrupt=True)
        else:  # nobody holds any state: whoever comes now begins anew
            self._end()

    def _shared_out(self, entry: Quotas) -> None:
        if not self.is_due(entry):
            return
        self._plan, named = entry.plan, dict(entry.weights)
        self._members = {name: replace(each, weight=named.get(name, 0)) for name, each in self._members.items()}
        if self.epoch is not None:
            self._go_on(abrupt=False)

    def _end(self) -> None:
        """Nobody trains: whoever tries to, leaves off, and waits until enough are there to begin."""
        self.epoch, self._left = None, []
        self.finished = self._some_finished
        self._number += 1
        self.newest_abrupt = self._number

    def _go_on(self, *, abrupt: bool) -> None:
        self._number += 1
        members = tuple(self._members[each] for each in sorted(self._members))
        self.epoch = self.epochs[self._number] = Epoch(
            number=self._number, members=members, left=tuple(self._left), plan=self._plan
        )
        self.epochs.pop(self._number - _NUM_KEPT, None)
        if abrupt:
            self.newest_abrupt = self._number


def entry_to_text(entry: Entry) -> str:
    """An entry as the log holds it."""
    kind = next(name for name, each in _KINDS.items() if isinstance(entry, each))
    return json.dumps({"kind": kind, **asdict(entry)})


def entry_from_text(text: str) -> Entry:
    """The inverse of :func:`entry_to_text`.

    Raises:
        ValueError: It is none.
    """
    try:
        plain = json.loads(text)
        return record_from(_KINDS[plain.pop("kind")], plain)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no entry of a job's log: {text[:200]}") from error
