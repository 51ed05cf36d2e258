"""What ranks and agents load, loaded before they are forked."""

import pytest

from evenkeel.trainer_sdk.launcher.agent.script_rank import preload


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> None:
    """Without it each of them imports for a second and a half of a processor before it joins."""
    preload()
