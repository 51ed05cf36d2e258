"""One launcher at a time in a folder: a second one would share its speed table, its state and its checkpoints."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_NAME = "launcher.lock"


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Keeps other launchers out of a folder, which is made if need be; a launcher that was killed keeps nobody out.

    Raises:
        ValueError: Another launcher runs there.
        OSError: The folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / FILE_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"a job runs in {run_dir} already: stop it (Ctrl-C), or give this one another folder with --run-dir"
            ) from None
        yield
