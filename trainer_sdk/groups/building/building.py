"""Groups in the making: built beside the work of whoever wants them, who may give them up at any time."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evenkeel.trainer_sdk.groups.building.graveyard import bury
from evenkeel.trainer_sdk.groups.group import Group

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.groups.building.builder import GroupSpec


class Building:
    """Some groups, built in an order that all their members share: so nobody waits in a circle.

    A helper thread does it, as building blocks in the transport. The training thread never waits for it here.

    Args:
        specs: What to build.
        connect: Builds a group; blocks, on the helper thread. Raises RuntimeError when a member does not come.

    Attributes:
        groups: Those that are there, by name.
        error: Why there will be no more of them; None as long as there may be.
    """

    def __init__(self, specs: "Sequence[GroupSpec]", connect: "Callable[[GroupSpec], Group]") -> None:
        self.groups: dict[str, Group] = {}
        self.error: RuntimeError | None = None
        self._specs, self._connect = specs, connect
        self._lock = threading.Lock()
        self._given_up = False
        self._ended = threading.Event()
        threading.Thread(target=self._build, name="evenkeel-build", daemon=True).start()

    @property
    def group(self) -> Group | None:
        """The first of them, once it is there."""
        with self._lock:
            return next(iter(self.groups.values()), None)

    def has(self, number: int) -> bool:
        """Whether so many are there, or no more will be."""
        return len(self.groups) >= number or self._ended.is_set()

    def wait(self) -> Group | None:
        """Wait on a helper thread until no more will be built; the first, or None where it was given up."""
        self._ended.wait()
        return self.group

    def give_up(self) -> None:
        """Nobody needs them any more; also while they are built. Returns at once."""
        with self._lock:
            self._given_up = True
            groups, self.groups = self.groups, {}
        self._ended.set()
        bury(groups.values())

    def _build(self) -> None:
        try:
            for spec in self._specs:
                group = self._connect(spec)
                with self._lock:
                    if self._given_up:
                        bury([group])
                        return
                    self.groups[spec.name] = group
        except RuntimeError as error:  # what torch raises for a store or a peer that does not answer
            self.error = error.with_traceback(None)  # whose frames would hold what is half built
        self._ended.set()
