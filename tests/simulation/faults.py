"""What a seed draws, the jobs' shapes and what goes wrong when; and the faults that hurt most."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

_SHAPES = [(1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 3, 2), (1, 2, 3), (1, 4, 1), (2, 1, 3), (1, 1, 3), (1, 1, 4)]
_WIDE_SHAPES = [*_SHAPES, (1, 1, 2), (1, 2, 1), (2, 2, 3)]
_LARGE_SHAPES = [(1, 4, 4), (4, 2, 2), (1, 2, 12), (2, 4, 4), (4, 4, 2), (2, 4, 8), (4, 4, 4)]
_REPLICAS, _MANY_REPLICAS = [2, 3, 4, 5, 8], [16, 24, 32]
_MOST_RANKS = 64
_EVENTS = {
    "joined": 3,
    "prepared": 40,
    "committed": 30,
    "taken": 20,
    "moved": 20,
    "voted": 200,
    "heard": 200,
    "saved": 12,
}
_FIRST_KINDS = ["kill", "kill", "kill", "crash", "cut", "slow store", "slow rank", "stop", "stop scheduler"]
_BESIDE_KINDS = ["kill", "kill", "crash", "cut", "stop scheduler"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One job: ``tensor`` x ``pipeline`` x ``data`` ranks and standbys; replicas are of one rank each where whole."""

    tensor: int = 1
    pipeline: int = 2
    data: int = 2
    standbys: int = 0
    devices_per_node: int = 2
    iteration_seconds: float = 0.1
    is_whole: bool = False

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline * self.data + self.standbys


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Jobs, schedulers, and how often a message between a rank and the scheduler is lost or comes twice."""

    seed: int
    jobs: tuple[Shape, ...] = (Shape(),)
    num_schedulers: int = 1
    messages_lost: float = 0.0
    messages_doubled: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``kind`` strikes ``rank`` of ``job``, or the scheduler in charge ``steps`` of its steps later.

    At a time, or so long after the ``nth`` ``event`` of the protocol; rank -1 is whoever the event is about.
    """

    kind: str
    job: int = 0
    rank: int = -1
    seconds: float = 0.0
    event: str = ""
    nth: int = 0
    steps: int = 0
    lasts_seconds: float = 0.0


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        broken: Which invariants were broken, with what was seen.
        num_steps: Steps of the first job.
        num_plans: Plans that were made.
        trace: What happened, in order.
    """

    broken: list[str]
    num_steps: int
    num_plans: int
    trace: list[str] = field(repr=False)


def drawn(seed: int) -> tuple[Scenario, tuple[Fault, ...]]:
    """A scenario and its faults; every other seed is of few small jobs, so that most take little time."""
    random, is_wide = Random(seed), seed % 2 == 1
    num_jobs = random.choice([1, 1, 1, 2, 2, 3, 4, 5] if is_wide else [1, 1, 1, 1, 2, 2, 3])
    shapes = [_wide_shape(random) if is_wide else _shape(random, *random.choice(_SHAPES)) for _ in range(num_jobs)]
    scenario = Scenario(
        seed=seed,
        jobs=tuple(shapes),
        num_schedulers=random.choice([1, 2, 2]),
        messages_lost=random.choice([0.0, 0.0, 0.02]),
        messages_doubled=random.choice([0.0, 0.0, 0.05]),
    )
    faults, at = [], 3.0
    for _ in range(random.randint(1, 4)):
        at += random.uniform(8.0, 12.0)
        job = random.randrange(len(shapes))
        rank = random.randrange(shapes[job].num_ranks)
        first = _fault(random, _FIRST_KINDS, job=job, rank=rank, seconds=at)
        faults.append(first)
        num_beside = random.choice([0, 1, 2, 2]) if is_wide else int(random.random() < 0.5)
        for _ in range(num_beside):
            event = random.choice(sorted(_EVENTS))
            delay = random.choice([0.0, random.uniform(0.0, 0.05)])
            nth = random.randint(1, _EVENTS[event])
            faults.append(_fault(random, _BESIDE_KINDS, event=event, nth=nth, seconds=delay))
        if not num_beside and first.kind == "kill" and random.random() < 0.5:
            other = random.choice([one for one in range(shapes[job].num_ranks) if one != rank])
            faults.append(Fault(kind="kill", job=job, rank=other, seconds=at + random.uniform(0.0, 1.0)))
    return scenario, tuple(faults)


def _wide_shape(random: Random) -> Shape:
    is_large = random.random() < 0.05
    if random.random() < 0.6:
        return _shape(random, *random.choice(_LARGE_SHAPES if is_large else _WIDE_SHAPES))
    shape = _shape(random, 1, 1, random.choice(_MANY_REPLICAS if is_large else _REPLICAS))
    return replace(shape, standbys=0, is_whole=True)


def _shape(random: Random, tensor: int, pipeline: int, data: int) -> Shape:
    standbys = min(random.choice([0, 0, 1, 2]), _MOST_RANKS - tensor * pipeline * data)
    num_ranks = tensor * pipeline * data + standbys
    return Shape(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        standbys=standbys,
        devices_per_node=random.choice([1, 2, max(1, num_ranks // 2), num_ranks]),
        iteration_seconds=random.choice([0.1, 0.4] if num_ranks <= 10 else [0.4, 0.8]),
    )


def _fault(random: Random, kinds: list[str], **where: object) -> Fault:
    kind = random.choice(kinds)
    lasts = {"stop": [0.5, 3.0, 8.0], "stop scheduler": [0.5, 1.5, 3.0], "cut": [2.0, 8.0]}.get(kind, [0.0])
    steps = random.choice([0, random.randint(1, 120)]) if kind in ("crash", "stop scheduler") else 0
    return Fault(kind=kind, steps=steps, lasts_seconds=random.choice(lasts), **where)  # type: ignore[arg-type]


TWO_NODES = Scenario(
    seed=22, jobs=(Shape(tensor=2, pipeline=2, data=2, devices_per_node=4, iteration_seconds=0.1),), num_schedulers=2
)
"""Ranks 0 to 3 are a replica on one node, 4 to 7 the other one: 0 and 1 its first stage, 2 and 3 its last."""
_FIRST_DEATH = Fault(kind="kill", rank=3, seconds=5.0)
"""Seven survivors are asked and told; once the next process of the rank is there, all eight are."""


def _killed(rank: int, seconds: float) -> Fault:
    return Fault(kind="kill", rank=rank, seconds=seconds)


def _at(event: str, nth: int, kind: str = "kill", **of: float) -> Fault:
    return Fault(kind=kind, event=event, nth=nth, **of)  # type: ignore[arg-type]


NOT_WANTED = "a rank that is slow until the plan against it comes to nothing"
"""It is well again before another one can be reached, who is waited for in vain: no other plan follows."""

HURTFUL: Mapping[str, tuple[Fault, ...]] = {
    "a rank of the first stage in its iteration": (_killed(0, 5.0),),
    "a rank that has voted": (_at("voted", 100),),
    "a rank that has heard what was voted": (_at("heard", 101),),
    "two tensor peers": (_killed(0, 5.0), _killed(1, 5.3)),
    "two of one node": (_killed(0, 5.0), _killed(3, 5.3)),
    "two of two nodes": (_killed(1, 5.0), _killed(6, 5.3)),
    "both that train a slice, at once": (_killed(0, 5.0), _killed(4, 5.0)),
    "another one, asked about the recovery": (_FIRST_DEATH, _at("prepared", 2)),
    "another one, told to recover": (_FIRST_DEATH, _at("committed", 2)),
    "another one, on its way to the new layout": (_FIRST_DEATH, _at("taken", 3)),
    "another one, with all that it needs": (_FIRST_DEATH, _at("moved", 3)),
    "a joiner that is just there": (_FIRST_DEATH, _at("joined", 1)),
    "a joiner that is asked": (_FIRST_DEATH, _at("prepared", 10, rank=3)),
    "a joiner that is told": (_FIRST_DEATH, _at("committed", 10, rank=3)),
    "a joiner on its way": (_FIRST_DEATH, _at("taken", 10, rank=3)),
    "a joiner with all that it needs": (_FIRST_DEATH, _at("moved", 8, rank=3)),
    "a rank that hangs": (Fault(kind="stop", rank=5, seconds=5.0, lasts_seconds=8.0),),
    "a rank that hangs for a moment": (Fault(kind="stop", rank=5, seconds=5.0, lasts_seconds=0.5),),
    "a rank that hangs for long": (Fault(kind="stop", rank=5, seconds=5.0, lasts_seconds=120.0),),
    "a rank that the scheduler cannot reach, and another dies": (
        Fault(kind="cut", rank=6, seconds=4.9, lasts_seconds=2.0),
        _FIRST_DEATH,
    ),
    "the scheduler while it asks": (_FIRST_DEATH, _at("prepared", 3, "crash")),
    "the scheduler that has decided": (_FIRST_DEATH, _at("committed", 1, "crash")),
    "the scheduler stops while it asks": (_FIRST_DEATH, _at("prepared", 3, "stop scheduler", lasts_seconds=3.0)),
    "the scheduler with a rank, and soon the next one": (
        Fault(kind="crash", seconds=4.8),
        _FIRST_DEATH,
        Fault(kind="crash", seconds=8.0),
    ),
    NOT_WANTED: (
        Fault(kind="slow rank", rank=5, seconds=5.0),
        Fault(kind="cut", rank=6, seconds=5.0, lasts_seconds=8.0),
    ),
    "a rank while the history is slow": (Fault(kind="slow store", seconds=4.5), _FIRST_DEATH),
}

ALONE = Scenario(seed=14104, jobs=(Shape(pipeline=4, data=1, standbys=2, devices_per_node=1),))
"""Each slice is trained by one rank: whoever dies is read from its copy."""

ONE_BY_ONE = (_killed(0, 5.0), _killed(1, 6.0))
"""Of two replicas the second dies when the layout in force counts on nobody else; the first may be back before it."""

HALF_WAY_BACK = (_killed(5, 11.676), _at("moved", 8), _at("taken", 14))
"""A rank dies in a new epoch before its copies are there, and another one on the way back to those of the epoch before:
some have gone back by then, others have not."""
