"""``python -m evenkeel.demo``: sets up a stack of its own, plays the scenario, judges it, writes the report.

The exit status is 0 when every expectation held, 1 when one did not or the run failed, 130 when it was interrupted.
No process is left behind in any case: the stack and the launcher watch over theirs.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from evenkeel.demo.live import choose_view
from evenkeel.demo.observed.lateness import ON_TIME, lateness
from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.performance import perform
from evenkeel.demo.report.expectations import Expectation, expectations_of
from evenkeel.demo.report.summary import Summary, summarise
from evenkeel.stack.errors import StackError
from evenkeel.stack.stack import Stack

STACK_NAME = "demo"
EXIT_HELD, EXIT_NOT_HELD, EXIT_INTERRUPTED = 0, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo once; returns the exit status."""
    parser = argparse.ArgumentParser(prog="evenkeel demo", description="The main job through its failures.")
    parser.add_argument("--seed", type=int, default=0, help="decides the model, the data and the victims")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where report.html and summary.json go")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        with _terminate_like_interrupt():
            return _run(options.seed, options.out, console)
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped", style="bold")
        return EXIT_INTERRUPTED
    except (StackError, RuntimeError, OSError) as error:
        print(f"the demo could not be run: {error}", file=sys.stderr)
        return EXIT_NOT_HELD


def _run(seed: int, out: Path, console: Console) -> int:
    started = time.monotonic()
    _clear(out)
    console.print("starting Kafka, PostgreSQL and the services …")
    with Stack(STACK_NAME, keep_data=False) as stack:
        console.print(f"they run after {time.monotonic() - started:.1f} s; logs in {stack.log_folder}")
        with choose_view(console) as view:
            seen = asyncio.run(perform(stack, seed, view, stack.folder / "job"))
    summary, expectations = summarise(seen), expectations_of(seen)
    late = lateness(seen)
    if late > ON_TIME:
        console.print(
            f"others want this machine's processors: devices that nobody slowed took up to {late:.2f} times as long as "
            "they should, so what is said about speed and time may be off"
        )
    try:
        _write(out, seen, summary, expectations, seed=seed, seconds=time.monotonic() - started)
    except OSError as error:
        print(f"the report cannot be written: {error}; free some space, or choose another --out", file=sys.stderr)
        _verdict(console, expectations, out, time.monotonic() - started)
        return EXIT_NOT_HELD
    return _verdict(console, expectations, out, time.monotonic() - started)


def _clear(out: Path) -> None:
    """Make the folder, without the results of an earlier run; what cannot be written is found now, not at the end.

    Raises:
        OSError: The folder cannot be made or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for stale in ("report.html", "summary.json"):
            (out / stale).unlink(missing_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another --out") from error


def _write(
    out: Path,
    seen: Observations,
    summary: Summary,
    expectations: Sequence[Expectation],
    *,
    seed: int,
    seconds: float,
) -> None:
    # Late: the plotting library is not needed while the job runs, and costs a second of a core.
    from evenkeel.demo.report import pictures  # noqa: PLC0415
    from evenkeel.demo.report.page import render_report  # noqa: PLC0415

    images = [
        (
            (
                "Each device's compute speed, iteration by iteration. Dotted: what was done to the job. Triangles: "
                "what the detector found. Green: from here on every rank runs the plan."
            ),
            pictures.heat_map(seen),
        ),
        (
            (
                "Speed of the whole job against its healthy self on the same documents: long documents are more "
                "work, not less speed. The bound is the sum of the live devices' speeds over their number; what of an "
                "iteration is not compute (exchange, pipeline bubbles) does not follow it."
            ),
            pictures.throughput(seen),
        ),
        (
            "Loss of the run against the failure-free run of the same seed, and how far they differ.",
            pictures.loss(seen),
        ),
    ]
    facts = [
        ("seed", str(seed)),
        ("job", seen.log.job_id),
        ("seconds, start to report", f"{seconds:.0f}"),
        ("machine", f"{os.cpu_count()} cores, Python {platform.python_version()}"),
        ("compute took", f"up to {lateness(seen):.2f} times as long as on the devices that are emulated"),
    ]
    report = render_report(seen, summary, expectations, images, facts=facts)
    # Both or, where somebody interrupts, neither: half a result looks like a result.
    for name, text in (("report.html", report), ("summary.json", json.dumps(summary.as_json(), indent=2) + "\n")):
        (out / f".{name}").write_text(text)
    for name in ("report.html", "summary.json"):
        (out / f".{name}").replace(out / name)


def _verdict(console: Console, expectations: Sequence[Expectation], out: Path, seconds: float) -> int:
    broken = [expectation for expectation in expectations if not expectation.held]
    for expectation in expectations:
        mark = "held    " if expectation.held else "NOT HELD"
        console.print(
            f"{mark}  {expectation.name}: {expectation.detail}", highlight=False, markup=False, soft_wrap=True
        )
    console.print(f"{len(expectations) - len(broken)} of {len(expectations)} expectations held, {seconds:.0f} s")
    console.print(f"report: {out / 'report.html'}   figures: {out / 'summary.json'}", soft_wrap=True)
    return EXIT_NOT_HELD if broken else EXIT_HELD


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """While inside, SIGTERM does what Ctrl-C does: the event loop cancels its work, blocking code is interrupted."""

    def on_terminate(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, on_terminate)
    # A shell starts what it puts into the background deaf to Ctrl-C: then nothing would interrupt us.
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if deaf:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if deaf:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    raise SystemExit(main())
