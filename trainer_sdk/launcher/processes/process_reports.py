"""What the launcher tells Kafka of its ranks' processes."""

import signal

from evenkeel.contracts.speakers import LAUNCHER_INCARNATION, NO_RANK
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.emitter import Emitter, process_event
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_EVICTED

_LAST_WORDS_SECONDS = 5.0
"""How long the end waits for Kafka to take what was said of the ranks' ends."""


class ProcessReports:
    """Ends of processes, as events on the job's topic; nothing for a job without Kafka. Any thread.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._emitter: Emitter = Emitter()

    def open(self) -> None:
        """From here on what is told is sent."""
        source = Source(
            job_id=self._spec.job_id,
            rank=NO_RANK,
            incarnation=LAUNCHER_INCARNATION + (self._spec.host or 0),
            node=self._spec.node_of(self._spec.own_ranks[0]),
        )
        self._emitter = self._spec.emitter(source, is_rank=False)

    def ended(self, process: RankProcess, detail: str, *, in_order: bool = False) -> None:
        """A process ended, as it should or otherwise."""
        kind = pb.PROCESS_EVENT_KIND_FINISHED if in_order else pb.PROCESS_EVENT_KIND_DIED
        self._emitter.emit_event(process_event(kind, process.rank, process.incarnation, detail))

    def close(self) -> None:
        """Wait a little until Kafka has it all."""
        self._emitter.close(_LAST_WORDS_SECONDS)


def exit_words(code: int, last_line: str = "") -> str:
    """An exit code for a person, with the last words of who ended; negative codes are signals."""
    if code == EXIT_EVICTED:
        words = "left the job: it was evicted"
    elif code >= 0:
        words = f"exit status {code}"
    elif -code in set(signal.Signals):
        words = f"killed by {signal.Signals(-code).name}"
    else:
        words = f"killed by signal {-code}"
    return f"{words}: {last_line}" if last_line else words
