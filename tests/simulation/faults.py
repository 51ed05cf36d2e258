"""What a seed draws: the jobs' shapes, and what goes wrong when."""

from dataclasses import dataclass, field
from random import Random

_SHAPES = [(1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 3, 2), (1, 2, 3), (1, 4, 1), (2, 1, 3), (1, 1, 3), (1, 1, 4)]
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
_FIRST = ["kill", "kill", "kill", "crash", "cut", "slow store", "slow rank", "stop", "stop scheduler"]
_BESIDE = ["kill", "kill", "crash", "cut", "stop scheduler"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One job: ``tensor`` x ``pipeline`` x ``data`` ranks and standbys; whole replicas where the first two are 1."""

    tensor: int = 1
    pipeline: int = 2
    data: int = 2
    standbys: int = 0
    devices_per_node: int = 2
    iteration_seconds: float = 0.1

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
    """A scenario and its faults."""
    random = Random(seed)
    shapes = [_shape(random) for _ in range(random.choice([1, 1, 1, 1, 2, 2, 3]))]
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
        first = _fault(random, _FIRST, job=job, rank=rank, seconds=at)
        faults.append(first)
        if random.random() < 0.5:
            event = random.choice(sorted(_EVENTS))
            delay = random.choice([0.0, random.uniform(0.0, 0.05)])
            nth = random.randint(1, _EVENTS[event])
            faults.append(_fault(random, _BESIDE, event=event, nth=nth, seconds=delay))
        elif first.kind == "kill" and random.random() < 0.5:
            other = random.choice([one for one in range(shapes[job].num_ranks) if one != rank])
            faults.append(Fault(kind="kill", job=job, rank=other, seconds=at + random.uniform(0.0, 1.0)))
    return scenario, tuple(faults)


def _shape(random: Random) -> Shape:
    tensor, pipeline, data = random.choice(_SHAPES)
    standbys = random.choice([0, 0, 1, 2])
    num_ranks = tensor * pipeline * data + standbys
    return Shape(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        standbys=standbys,
        devices_per_node=random.choice([1, 2, max(1, num_ranks // 2), num_ranks]),
        iteration_seconds=random.choice([0.1, 0.4]),
    )


def _fault(random: Random, kinds: list[str], **where: object) -> Fault:
    kind = random.choice(kinds)
    lasts = {"stop": [0.5, 3.0, 8.0], "stop scheduler": [0.5, 1.5, 3.0]}.get(kind, [0.0])
    steps = random.choice([0, random.randint(1, 120)]) if kind in ("crash", "stop scheduler") else 0
    return Fault(kind=kind, steps=steps, lasts_seconds=random.choice(lasts), **where)  # type: ignore[arg-type]
