"""What a job's full shape tells of stages that are wider than its own.

Fewer and wider stages have smaller bubbles, so a model that prices no more than measured collectives finds jobs up to
twice as fast with them, and collectives of widths that never ran are not measured. But whoever registered the job chose
the full shape and not the wider one. So the wider one is taken to be no faster: its shards are slower by what its
smaller bubble would have saved (revealed preference, Samuelson 1938).
"""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualShape:
    """The full shape, as far as it says what sharding costs.

    Attributes:
        width: Shards of its widest stage.
        num_stages: Of a replica.
        quota: Mean micro-batches of a replica.
    """

    width: int
    num_stages: int
    quota: float

    def slowdown(self, num_shards: int) -> float:
        """Seconds of a stage of so many shards per second that it would take by its shards' speeds; at least 1.

        Pipelines of p stages take (q + p - 1) times a stage's seconds for q micro-batches. With stages k times as wide
        there are p / k of them, each as fast as before: (q + p / k - 1) times the same. The factor makes the two equal.
        """
        if num_shards <= self.width:
            return 1.0
        wider = min(num_shards / self.width, self.num_stages)
        rest = self.quota - 1.0
        return (rest + self.num_stages) / (rest + self.num_stages / wider)


def usual_shape(home: Layout) -> UsualShape:
    """That of a job's full shape."""
    stages = home.replicas[0].stages
    return UsualShape(
        width=max([len(stage.ranks) for stage in stages]),
        num_stages=len(stages),
        quota=max(1.0, home.num_micro_batches / len(home.replicas)),
    )
