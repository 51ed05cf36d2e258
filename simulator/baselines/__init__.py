"""Published systems and ours behind one port, one file each: source and deviations are in each file's docstring."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

from evenkeel.simulator.fleet.strategy import Strategy


def _systems() -> Iterator[Strategy]:
    for found in walk_packages(__path__, f"{__name__}."):
        for kind in vars(import_module(found.name)).values():
            if isinstance(kind, type) and kind.__module__ == found.name and hasattr(kind, "answer"):
                yield kind()


STRATEGIES: dict[str, Strategy] = {
    system.name: system for system in sorted(_systems(), key=lambda one: one.name.casefold())
}
"""By name: whatever this folder and those in it have."""

__all__ = ["STRATEGIES"]
