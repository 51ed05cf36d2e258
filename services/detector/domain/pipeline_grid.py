"""Which entries of a frame share a replica and a stage: sorted once for a layout, asked in every frame."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def same_numbers(one: Ints, other: Ints) -> bool:
    """Whether two arrays hold the same numbers; at once where they are one."""
    return one is other or (len(one) == len(other) and np.count_nonzero(one == other) == len(one))


class PipelineGrid:
    """Replicas by stages; those that nobody is in are left out.

    Args:
        replicas: Replica of each entry; at least one.
        stages: Its stage.
    """

    def __init__(self, replicas: Ints, stages: Ints) -> None:
        self._replicas, self._stages = replicas, stages
        known_replicas, replica_of = np.unique(replicas, return_inverse=True)
        known_stages, stage_of = np.unique(stages, return_inverse=True)
        self.shape = len(known_replicas), len(known_stages)
        self._cells = replica_of * self.shape[1] + stage_of
        self._order = np.argsort(self._cells, kind="stable")
        self._taken, self._firsts = np.unique(self._cells[self._order], return_index=True)

    def fits(self, replicas: Ints, stages: Ints) -> bool:
        """Whether these entries are laid out like this."""
        return same_numbers(self._replicas, replicas) and same_numbers(self._stages, stages)

    def highest(self, values: Floats) -> Floats:
        """The highest value of each replica and stage; 0 where nobody is."""
        found = np.zeros(self.shape[0] * self.shape[1])
        found[self._taken] = np.maximum.reduceat(values[self._order], self._firsts)
        return found.reshape(self.shape)

    def lowest(self, values: Floats) -> Floats:
        """The lowest value of each replica and stage; infinite where nobody is."""
        found = np.full(self.shape[0] * self.shape[1], np.inf)
        found[self._taken] = np.minimum.reduceat(values[self._order], self._firsts)
        return found.reshape(self.shape)
