"""``python -m benchmarks.replicas.recovery --torchft-python PATH``: one of four replicas dies, beside torchft.

Both libraries take turns in one run, torchft in an environment of its own (``pip install torchft-nightly torch``),
once with its defaults and once tuned: frequent heartbeats, and a lighthouse that believes in a death early. What
counts is the longest pause of a survivor, less one of its iterations. Table and JSON.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIAL = Path(__file__).with_name("recovery_trial.py")
_LIGHTHOUSE = {
    "torchft": (),
    "torchft tuned": ("--heartbeat_timeout_ms", "300", "--quorum_tick_ms", "10", "--join_timeout_ms", "1000"),
}
_MANAGER = {"torchft": (), "torchft tuned": ("--heartbeat-interval", "0.05", "--timeout", "5")}


@contextmanager
def _lighthouse(python: Path, which: str) -> Iterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [str(python.with_name("torchft_lighthouse")), "--min_replicas", "1", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen([*command, *_LIGHTHOUSE[which]], stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _run(which: str, python: Path, trials: int, seed: int) -> list[dict[str, float]]:
    """Some trials of one library."""
    with contextlib.ExitStack() as stack:
        options = ["--trials", str(trials), "--seed", str(seed)]
        if which == "ours":
            command = [sys.executable, str(_TRIAL), "ours", *options]
        else:
            address = stack.enter_context(_lighthouse(python, which))
            command = [str(python), str(_TRIAL), "torchft", "--address", address, *_MANAGER[which], *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{which} failed: {done.stderr[-2000:]}")
        found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas.recovery", description=__doc__)
    parser.add_argument("--torchft-python", type=Path, required=True, help="the Python that has torchft")
    parser.add_argument("--blocks", type=int, default=5, help="turns of each library")
    parser.add_argument("--trials", type=int, default=2, help="deaths in a turn")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"ours": [], "torchft tuned": [], "torchft": []}
    for block in range(options.blocks):
        for which in found:
            found[which] += _run(which, options.torchft_python, options.trials, seed=block)
    extra = {
        which: [each["pause_seconds"] - each["step_seconds"] for each in trials] for which, trials in found.items()
    }
    theirs = statistics.median(extra["torchft tuned"])
    print(f"{'':<14} {'deaths':>6} {'median ms':>10} {'worst ms':>9} {'iteration ms':>13} {'x torchft tuned':>16}")
    for which, seconds in extra.items():
        step = statistics.median(each["step_seconds"] for each in found[which])
        median = statistics.median(seconds)
        print(
            f"{which:<14} {len(seconds):>6} {1e3 * median:>10.0f} {1e3 * max(seconds):>9.0f} {1e3 * step:>13.0f} "
            f"{median / theirs:>16.2f}"
        )
    print(json.dumps({"trials": found, "load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
