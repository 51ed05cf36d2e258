"""All levers: whatever this folder and those in it have, one file each."""

from importlib import import_module
from pkgutil import walk_packages

from evenkeel.planning.levers.lever import Asked, Lever

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)

REGISTRY: dict[str, Lever] = {
    lever.name: lever for lever in sorted([each() for each in Lever.__subclasses__()], key=lambda one: one.asked)
}
"""By name, in the order in which they are asked."""


def asked_at(*phases: Asked) -> list[Lever]:
    """The levers of some phases, in order."""
    return [lever for lever in REGISTRY.values() if lever.asked[0] in phases]


__all__ = ["REGISTRY", "Asked", "Lever", "asked_at"]
