"""``python -m benchmarks.replicas.recovery --torchft-python PATH``: one of four replicas dies, beside torchft.

Both libraries take turns in one run, torchft in an environment of its own (``pip install torchft-nightly torch``) and
tuned: frequent heartbeats, a lighthouse that believes in a death early, short timeouts; with its defaults a death costs
5 seconds, and now and then a minute. What counts is the longest pause of a survivor, less one of its iterations. Table
and JSON.
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
_LIGHTHOUSE = ("--heartbeat_timeout_ms", "300", "--quorum_tick_ms", "10", "--join_timeout_ms", "1000")
_MANAGER = ("--heartbeat-interval", "0.05", "--timeout", "2")


@contextmanager
def _lighthouse(python: Path) -> Iterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [str(python.with_name("torchft_lighthouse")), "--min_replicas", "1", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen([*command, *_LIGHTHOUSE], stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _run(which: str, python: Path, seed: int) -> dict[str, float]:
    """One death under one library."""
    with contextlib.ExitStack() as stack:
        options = ["--seed", str(seed)]
        if which == "ours":
            command = [sys.executable, str(_TRIAL), "ours", *options]
        else:
            address = stack.enter_context(_lighthouse(python))
            command = [str(python), str(_TRIAL), "torchft", "--address", address, *_MANAGER, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{which} failed: {done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas.recovery", description=__doc__)
    parser.add_argument("--torchft-python", type=Path, required=True, help="the Python that has torchft")
    parser.add_argument("--trials", type=int, default=8, help="deaths under each library")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"ours": [], "torchft": []}
    for seed in range(options.trials):
        for which, rows in found.items():
            rows.append(_run(which, options.torchft_python, seed))
    extra = {
        which: [each["pause_seconds"] - each["step_seconds"] for each in trials] for which, trials in found.items()
    }
    theirs = statistics.median(extra["torchft"])
    print(f"{'':<8} {'deaths':>6} {'median ms':>10} {'worst ms':>9} {'iteration ms':>13} {'x torchft':>10}")
    for which, seconds in extra.items():
        step = statistics.median(each["step_seconds"] for each in found[which])
        median = statistics.median(seconds)
        print(
            f"{which:<8} {len(seconds):>6} {1e3 * median:>10.0f} {1e3 * max(seconds):>9.0f} {1e3 * step:>13.0f} "
            f"{median / theirs:>10.2f}"
        )
    print(json.dumps({"trials": found, "load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
