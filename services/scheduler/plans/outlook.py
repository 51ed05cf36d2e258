"""How long a plan will be of use: learned from the job's own failures, with priors for a job that has had none.

Events (deaths, hangs, new slowdowns) are a Poisson process whose rate has a Gamma prior with the weight of one event,
at the rate of a published run (419 interruptions of 16,384 GPUs in 54 days, Llama 3 report). A slowdown's duration is
exponential with a Gamma prior on its rate: the expected rest of one that has lasted t, after n others that lasted D
together, is (prior + D + t) / (1 + n). So a fault that has lasted long is expected to last, and a job whose faults
pass in seconds soon stops reshaping for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FLIP_MEMORY_SECONDS = 900.0
PRIOR_EVENTS_PER_DEVICE_SECOND = 419.0 / (16384.0 * 54.0 * 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a job's failures so far say about the next ones.

    Attributes:
        num_events: Faults that have begun.
        num_ended: Slowdowns that have ended.
        ended_seconds: How long those lasted together.
        slow_since: Unix seconds since which each slow rank has been slow.
        flips: For each rank the Unix seconds at which it turned slow or healthy, as long as that is remembered.
    """

    num_events: int = 0
    num_ended: int = 0
    ended_seconds: float = 0.0
    slow_since: Mapping[int, float] = field(default_factory=dict)
    flips: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def after_death(self, rank: int) -> "Outlook":
        """A rank died or hangs; a slowdown of it that death cut short says nothing about how long slowdowns last."""
        return replace(self, num_events=self.num_events + 1, slow_since=self._without(rank))

    def after_slowdown(self, rank: int, at_unix_seconds: float) -> "Outlook":
        """A rank turned slow; if it was slow already nothing new has begun."""
        if rank in self.slow_since:
            return self
        return replace(
            self,
            num_events=self.num_events + 1,
            slow_since={**self.slow_since, rank: at_unix_seconds},
            flips=self._turned(rank, at_unix_seconds),
        )

    def after_recovery(self, rank: int, at_unix_seconds: float) -> "Outlook":
        """A slow rank is healthy again."""
        since = self.slow_since.get(rank)
        if since is None:
            return self
        return replace(
            self,
            num_ended=self.num_ended + 1,
            ended_seconds=self.ended_seconds + max(0.0, at_unix_seconds - since),
            slow_since=self._without(rank),
            flips=self._turned(rank, at_unix_seconds),
        )

    def seconds_to_next_event(self, *, num_devices: int, observed_seconds: float) -> float:
        """Expected time to the next fault of the job.

        Args:
            num_devices: Devices of the job.
            observed_seconds: How long the job has run.
        """
        prior_exposure = 1.0 / (PRIOR_EVENTS_PER_DEVICE_SECOND * num_devices)
        return (prior_exposure + max(0.0, observed_seconds)) / (1.0 + self.num_events)

    def rest_of_slowdown_seconds(self, now_unix_seconds: float, prior_seconds: float) -> float | None:
        """Expected rest of the youngest slowdown; None when nobody is slow."""
        if not self.slow_since:
            return None
        age = max(0.0, now_unix_seconds - max(self.slow_since.values()))
        return (prior_seconds + self.ended_seconds + age) / (1.0 + self.num_ended)

    def horizon_seconds(
        self, *, now_unix_seconds: float, prior_seconds: float, num_devices: int, observed_seconds: float
    ) -> float:
        """How long a plan made now is expected to be of use: until the next fault, or until this one passes.

        Args:
            now_unix_seconds: Now.
            prior_seconds: How long things stay as they are where nothing has been learned.
            num_devices: Devices of the job.
            observed_seconds: How long the job has run.
        """
        rest = self.rest_of_slowdown_seconds(now_unix_seconds, prior_seconds) or prior_seconds
        following = self.seconds_to_next_event(num_devices=num_devices, observed_seconds=observed_seconds)
        return 1.0 / (1.0 / rest + 1.0 / following)

    def _turned(self, rank: int, at_unix_seconds: float) -> dict[int, tuple[float, ...]]:
        recent = tuple(at for at in self.flips.get(rank, ()) if at_unix_seconds - at < FLIP_MEMORY_SECONDS)
        return {**self.flips, rank: (*recent, at_unix_seconds)}

    def _without(self, rank: int) -> dict[int, float]:
        return {other: since for other, since in self.slow_since.items() if other != rank}
