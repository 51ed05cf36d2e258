"""Ctrl-C while a program loads."""

import signal
import subprocess
import sys

import pytest

from evenkeel.contracts.interrupts import ending_on_interrupt

# A program that is interrupted when it begins to load the module that its second argument names.
_INTERRUPTED = """
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            signal.raise_signal(signal.SIGINT)

program, module = sys.argv[1:]
sys.meta_path.insert(0, Interrupting())
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        *((f"evenkeel.services.{name}", "structlog") for name in ("telemetry", "detector", "scheduler")),
        ("evenkeel.stack", "evenkeel.stack.stack"),
        ("evenkeel.demo", "rich"),
        ("evenkeel.cli", "typer"),
        ("evenkeel.trainer_sdk.launcher", "evenkeel.trainer_sdk.launcher.launcher"),
        ("evenkeel.trainer_sdk.launcher.agent", "evenkeel.trainer_sdk.launcher.agent.agent"),
    ],
)
def test_a_program_that_is_interrupted_while_it_loads_ends_without_a_word(program: str, module: str) -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED, program, module], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_afterwards_an_interrupt_is_an_exception_again() -> None:
    with ending_on_interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_whoever_is_deaf_to_interrupts_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_on_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
