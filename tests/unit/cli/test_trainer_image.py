"""In a trainer's image there is the SDK with torch and nothing of the services: faults are injected from there."""

import subprocess
import sys
from pathlib import Path

import pytest

from evenkeel.stack.paths import checkout_root

# Runs the command line with every package hidden that requirements/trainer.lock does not install.
RUNNER = """
import re, runpy, sys
from importlib.metadata import packages_distributions
from pathlib import Path

lines = Path(sys.argv[1]).read_text().splitlines()
locked = {re.split("[=;]", line)[0].lower() for line in lines if line[:1].isalnum()}
locked |= {name.replace("-", "_") for name in locked} | {"evenkeel"}
hidden = {
    package
    for package, names in packages_distributions().items()
    if not any(name.lower() in locked for name in names)
}


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])


sys.meta_path.insert(0, Hidden())
sys.argv = ["evenkeel", *sys.argv[2:]]
runpy.run_module("evenkeel.cli.main", run_name="__main__")
"""


def evenkeel(*arguments: str) -> subprocess.CompletedProcess[str]:
    lock = checkout_root() / "requirements" / "trainer.lock"
    return subprocess.run(
        [sys.executable, "-c", RUNNER, str(lock), *arguments], capture_output=True, text=True, check=False, timeout=600
    )


def test_a_fault_can_be_injected(tmp_path: Path) -> None:
    helped = evenkeel("inject", "slow", "--help")
    assert (helped.returncode, "SPEED" in helped.stdout) == (0, True), helped.stderr
    refused = evenkeel("inject", "kill", str(tmp_path), "0")
    assert refused.returncode == 2
    assert f"no job runs in {tmp_path}" in refused.stderr


@pytest.mark.parametrize("arguments", [("db", "upgrade"), ("doctor",)])
def test_a_command_of_the_services_says_which_package_it_lacks(arguments: tuple[str, ...]) -> None:
    lacking = evenkeel(*arguments)
    assert lacking.returncode == 3
    assert "needs the package psycopg" in lacking.stderr
    assert "Traceback" not in lacking.stderr
