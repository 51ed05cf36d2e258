"""Notes that ranks leave of themselves in the run's folder, for their launcher to register those that come up together.

A rank that nobody has registered by then does it itself after :data:`ALONE_AFTER_SECONDS`, so nothing depends on
this: it saves a busy fleet API most of the calls of a job's start.
"""

from contextlib import suppress
from pathlib import Path

from evenkeel.scheduler.v1 import scheduler_pb2 as pb

ALONE_AFTER_SECONDS = 10.0


class RankNotes:
    """Those of one run. Any thread, any process.

    Args:
        run_dir: The run's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def clear(self) -> None:
        """Throw away what earlier runs have left."""
        for path in self._run_dir.glob("registers-*"):
            path.unlink(missing_ok=True)

    def leave(self, process: pb.RankProcess) -> None:
        """Leave word of oneself; one that cannot be written is none."""
        path = self._path(process.rank, process.incarnation)
        fresh = path.with_suffix(".new")
        with suppress(OSError):
            fresh.write_bytes(process.SerializeToString())
            fresh.replace(path)

    def read(self, rank: int, incarnation: int) -> pb.RankProcess | None:
        """The note of a process; None while it is not up."""
        try:
            return pb.RankProcess.FromString(self._path(rank, incarnation).read_bytes())
        except OSError:
            return None

    def drop(self, rank: int, incarnation: int) -> None:
        """Nobody needs it any more."""
        self._path(rank, incarnation).unlink(missing_ok=True)

    def _path(self, rank: int, incarnation: int) -> Path:
        return self._run_dir / f"registers-{rank}-{incarnation}"
