"""What a seed draws: the job's shape, and what goes wrong when."""

from dataclasses import dataclass, field
from random import Random

_SHAPES = [(1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 3, 2), (1, 2, 3), (1, 4, 1), (2, 1, 3)]
_EVENTS = {"joined": 3, "prepared": 40, "committed": 30, "taken": 20, "moved": 20, "voted": 200, "heard": 200}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The job: ``tensor`` x ``pipeline`` x ``data`` ranks and standbys, and how often an answer of a rank is lost."""

    seed: int
    tensor: int = 1
    pipeline: int = 2
    data: int = 2
    standbys: int = 0
    devices_per_node: int = 2
    answers_lost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``kind`` strikes ``rank``: at a time, or so long after the ``nth`` ``event`` of the protocol.

    Rank -1 is whoever the event is about.
    """

    kind: str
    rank: int = -1
    seconds: float = 0.0
    event: str = ""
    nth: int = 0


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        broken: Which invariants were broken, with what was seen.
        num_steps: Steps of the job.
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
    tensor, pipeline, data = random.choice(_SHAPES)
    standbys = random.choice([0, 0, 1, 2])
    num_ranks = tensor * pipeline * data + standbys
    scenario = Scenario(
        seed=seed,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        standbys=standbys,
        devices_per_node=random.choice([1, 2, max(1, num_ranks // 2), num_ranks]),
        answers_lost=random.choice([0.0, 0.0, 0.02]),
    )
    faults, at = [], 2.0
    for _ in range(random.randint(1, 4)):
        at += random.uniform(8.0, 12.0)
        kind = random.choice(["kill", "kill", "kill", "crash", "cut", "slow store", "slow rank"])
        rank = random.randrange(num_ranks)
        faults.append(Fault(kind=kind, rank=rank, seconds=at))
        if random.random() < 0.5:
            event = random.choice(sorted(_EVENTS))
            other = random.choice(["kill", "kill", "crash", "cut"])
            delay = random.choice([0.0, random.uniform(0.0, 0.05)])
            faults.append(Fault(kind=other, event=event, nth=random.randint(1, _EVENTS[event]), seconds=delay))
        elif kind == "kill" and random.random() < 0.5:
            other_rank = random.choice([one for one in range(num_ranks) if one != rank])
            faults.append(Fault(kind="kill", rank=other_rank, seconds=at + random.uniform(0.0, 1.0)))
    return scenario, tuple(faults)
