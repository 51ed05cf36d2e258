"""What a model tells the engine of its parameters: enough to cut, move and reduce them without knowing the model."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter tensor.

    Attributes:
        name: Unique in the model.
        block: Model block that it belongs to.
        shape: Whole shape.
        axis: Axis along which shards are cut; None when every shard of a stage holds the whole tensor.
        granule: Smallest unit of the axis that may not be cut.
    """

    name: str
    block: int
    shape: tuple[int, ...]
    axis: int | None = None
    granule: int = 1

    @property
    def cut_axis(self) -> int:
        """The axis that slices refer to, also for a tensor that every shard holds whole."""
        return 0 if self.axis is None else self.axis

    @property
    def cut_size(self) -> int:
        """Length of :attr:`cut_axis`."""
        return self.shape[self.cut_axis]

    @property
    def row_elements(self) -> int:
        """Elements per unit of :attr:`cut_axis`."""
        return prod(self.shape) // self.cut_size

    def slice_shape(self, length: int) -> tuple[int, ...]:
        """Shape of a slice of ``length`` along :attr:`cut_axis`."""
        axis = self.cut_axis
        return (*self.shape[:axis], length, *self.shape[axis + 1 :])
