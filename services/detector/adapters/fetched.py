"""What a fetch brings, job by job."""

from collections.abc import Iterator, Sequence

from evenkeel.services.common.kafka import Rejection
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.detector.adapters.observation_codec import Arrived
from evenkeel.services.detector.domain.frames.observation import FrameObservation, LivenessObservation, Observation

# About 20 ms of a slow core, whatever the size of jobs.
_SAMPLES_AT_ONCE = 8192


def by_job(messages: Sequence[Message[Arrived]]) -> Iterator[tuple[str, list[Message[Arrived]]]]:
    """The observations of each job in their order, few enough at a time for the loop to have its turn."""
    found: dict[str, list[Message[Arrived]]] = {}
    count = 0
    for message in messages:
        found.setdefault(message.content.observations[0].job_id, []).append(message)
        count += max(num_samples(message), 1)
        if count >= _SAMPLES_AT_ONCE:
            yield from found.items()
            found, count = {}, 0
    yield from found.items()


def is_picture(observation: Observation) -> bool:
    """Whether it says where everybody is, and of nothing that happened."""
    return isinstance(observation, LivenessObservation) and observation.event is None


def num_samples(message: Message[Arrived]) -> int:
    """Of all of its frames, which have as many ranks each."""
    observations = message.content.observations
    return len(observations) * len(observations[0]) if isinstance(observations[0], FrameObservation) else 0


def set_aside(messages: Sequence[Message[Arrived]], refused: Sequence[tuple[int, Exception]]) -> list[Rejection]:
    """The records of observations that nobody can take, each once."""
    owners = [message.record for message in messages for _ in message.content.observations]
    reasons = {owners[place].offset: (owners[place], repr(error)) for place, error in reversed(refused)}
    return [
        Rejection(record=record, error="not_observed", reason=reason) for _, (record, reason) in sorted(reasons.items())
    ]
