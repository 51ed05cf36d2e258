"""What the service runs before its first frame reaches what is compiled, as the service will call it."""

import importlib
import pkgutil

from evenkeel.numeric.compiled import Compiled
from evenkeel.services import detector
from evenkeel.services.detector.warm_up import warm_up

MODULES = [
    importlib.import_module(each.name)
    for each in pkgutil.walk_packages(detector.__path__, f"{detector.__name__}.")
    if not each.name.endswith("__main__")
]
# Called by others that are compiled, and so a part of them.
INNER = {"between_ranks", "middle_distance", "selected"}


def num_compiled() -> dict[str, int]:
    """Of each compiled function, for how many combinations of arguments."""
    return {
        f"{module.__name__}.{name}": len(value.signatures)
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Compiled) and name not in INNER
    }


def test_after_a_warm_up_everything_of_a_frame_is_compiled_and_a_second_one_compiles_nothing() -> None:
    warm_up()
    first = num_compiled()
    assert len(first) > 10
    assert [name for name, count in first.items() if count == 0] == []
    warm_up()
    assert num_compiled() == first
