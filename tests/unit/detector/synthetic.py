"""Jobs that do not exist: frames with a known truth, from a linear cost model, long-tailed lengths and chosen noise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Throughput = Callable[[int, int], float]

TOKENS = 4096
SECONDS_PER_FLOP = 1e-12
DEARER_ATTENTION = 0.6e-12
SECONDS_PER_MICRO_BATCH = 0.0004

REPORT_ONLY = frozenset(
    (
        VerdictKind.NOT_FINITE,
        VerdictKind.SPIKE,
        VerdictKind.STAGE_IMBALANCE,
        VerdictKind.SEQUENCE_IMBALANCE,
        VerdictKind.JITTER,
        VerdictKind.SUSPECTED_CORRUPTION,
        VerdictKind.INPUT_STALL,
        VerdictKind.PERIODIC_PAUSE,
    )
)
"""Kinds that are told with advice and never lead to a plan."""


def gaussian(sigma: float) -> Noise:
    return lambda rng, shape: rng.normal(0, sigma, shape)


def student(scale: float, freedom: float) -> Noise:
    return lambda rng, shape: scale * rng.standard_t(freedom, shape)


def right_skewed(sigma: float) -> Noise:
    """A narrow body and, in 3 % of the cases, a slow excursion of 10 % on average."""
    return lambda rng, shape: rng.normal(0, sigma, shape) + (rng.random(shape) < 0.03) * rng.exponential(0.1, shape)


def wandering(sigma: float, correlation: float) -> Noise:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        steps = rng.normal(0, sigma * np.sqrt(1 - correlation**2), shape)
        for row in range(1, shape[0]):
            steps[row] += correlation * steps[row - 1]
        return steps

    return draw


def contended(sigma: float, correlation: float) -> Noise:
    """Processes that share cores: noise that wanders, and slow outliers of 5 to 20 % in 4 % of the iterations."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        outliers = (rng.random(shape) < 0.04) * rng.uniform(0.05, 0.2, shape)
        return wandering(sigma, correlation)(rng, shape) + outliers

    return draw


@dataclass
class Place:
    """Where a rank stands and what fraction of its stage it computes."""

    replica: int
    stage: int
    shard: int
    fraction: float = 1.0
    layers: int = 8


@dataclass
class SyntheticJob:
    """A job whose every number is known.

    Attributes:
        places: One a rank.
        noise: Relative noise of compute, log units.
        throughput: (rank, iteration) -> p.
        stage_factor: Cost of a stage relative to the model: what the linear expectation cannot know.
        drift: iteration -> log factor common to all.
        length_scale: iteration -> factor on document lengths.
    """

    places: list[Place]
    noise: Noise = field(default_factory=lambda: gaussian(0.01))
    throughput: Throughput = lambda rank, iteration: 1.0
    quotas: tuple[int, ...] = (4, 4)
    stage_factor: dict[int, float] = field(default_factory=dict)
    device_factor: dict[int, float] = field(default_factory=dict)
    drift: Callable[[int], float] = lambda iteration: 0.0
    length_scale: Callable[[int], float] = lambda iteration: 1.0
    incarnations: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0

    def frames(self, start: int, stop: int) -> Iterator[FrameObservation]:
        rng = np.random.default_rng((self.seed, start, self.epoch))
        count = len(self.places)
        noise = self.noise(rng, (stop - start, count))
        replicas = np.array([place.replica for place in self.places])
        stages = np.array([place.stage for place in self.places])
        fraction = np.array([place.fraction * place.layers / 8 for place in self.places])
        factor = np.array(
            [
                self.stage_factor.get(place.stage, 1.0) * self.device_factor.get(rank, 1.0)
                for rank, place in enumerate(self.places)
            ]
        )
        quotas = np.array(self.quotas)[replicas]
        per_token, per_square, multiple = 2e6, 500.0, 2.0
        for number, iteration in enumerate(range(start, stop)):
            squares = [
                sum(_sum_of_squares(rng, self.length_scale(iteration)) for _ in range(quota)) for quota in self.quotas
            ]
            squares_of = np.array(squares)[replicas]
            token_flops = per_token * TOKENS * quotas * fraction * (1 + multiple)
            square_flops = per_square * squares_of * fraction * (1 + multiple)
            speed = np.array([self.throughput(rank, iteration) for rank in range(count)])
            seconds = (
                SECONDS_PER_FLOP * token_flops
                + (SECONDS_PER_FLOP + DEARER_ATTENTION) * square_flops
                + SECONDS_PER_MICRO_BATCH * quotas
            )
            seconds = seconds * factor / speed * np.exp(noise[number] + self.drift(iteration))
            wall = np.full(count, seconds.max() + 0.01)
            yield FrameObservation(
                job_id="job",
                sequence=self.epoch * 10_000_000 + iteration,
                iteration=iteration,
                epoch=self.epoch,
                closed_at_unix_seconds=1000.0 + iteration,
                ranks=np.arange(count),
                incarnations=np.array([self.incarnations.get(rank, 0) for rank in range(count)]),
                nodes=tuple(f"node-{rank // 4}" for rank in range(count)),
                devices=tuple(f"device-{rank % 4}" for rank in range(count)),
                planned=np.zeros(count, dtype=np.bool_),
                compute_seconds=seconds,
                other_seconds=np.full(count, 0.005),
                wall_seconds=wall,
                wait_seconds=np.column_stack(
                    [np.zeros(count), (wall - seconds) * 0.5, (wall - seconds) * 0.4, (wall - seconds) * 0.1]
                ),
                token_flops=token_flops,
                square_flops=square_flops,
                has_flops=np.ones(count, dtype=np.bool_),
                num_micro_batches=quotas,
                tokens=(TOKENS * quotas).astype(np.float64),
                sums_of_squares=squares_of,
                work_keys=fraction * (1 + 1e-3),
                replicas=replicas,
                stages=stages,
                shards=np.array([place.shard for place in self.places]),
                losses=np.full(count, 3.0 + 0.01 * rng.normal()),
                has_loss=np.ones(count, dtype=np.bool_),
                gradient_norms=np.full(count, np.nan),
                has_gradient_norm=np.zeros(count, dtype=np.bool_),
            )


def _sum_of_squares(rng: np.random.Generator, scale: float) -> float:
    """Documents of long-tailed length packed to the token budget."""
    lengths = np.minimum(scale * rng.lognormal(5.5, 1.2, 64), TOKENS)
    kept = lengths[np.cumsum(lengths) <= TOKENS]
    rest = TOKENS - kept.sum()
    return float((kept**2).sum() + rest**2 if len(kept) < 64 else (kept**2).sum())


def cube(tensor: int = 2, pipeline: int = 2, data: int = 2) -> list[Place]:
    return [
        Place(replica=d, stage=s, shard=t, fraction=1 / tensor, layers=8 + (s == pipeline - 1))
        for d in range(data)
        for s in range(pipeline)
        for t in range(tensor)
    ]


def verdicts_of(
    detector: JobDetector, frames: Iterator[FrameObservation], *, everything: bool = False
) -> list[Verdict]:
    """The verdicts that may lead to a plan, or all."""
    found = [one for frame in frames for one in detector.observe(frame) if isinstance(one, Verdict)]
    return [verdict for verdict in found if everything or verdict.kind not in REPORT_ONLY]


def slow_from(rank: int, start: int, throughput: float, stop: int = 1 << 60) -> Throughput:
    return lambda other, iteration: throughput if other == rank and start <= iteration < stop else 1.0


__all__ = [
    "Noise",
    "Place",
    "Profile",
    "SyntheticJob",
    "Throughput",
    "Verdict",
    "VerdictKind",
    "contended",
    "cube",
    "gaussian",
    "replace",
    "right_skewed",
    "slow_from",
    "student",
    "verdicts_of",
    "wandering",
]
