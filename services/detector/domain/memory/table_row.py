"""Rows of a table as attributes: state of many things in few arrays, as an array's own upkeep is that of 14 numbers."""

from typing import Generic, TypeVar

Row = TypeVar("Row")


class TableRow(Generic[Row]):
    """One row of a table, as a view.

    Args:
        table: The attribute that holds the table, one column a thing.
        row: Its number, or the names of all rows, one of which is that of the attribute which this becomes.
    """

    __slots__ = ("_index", "_names", "_table")

    def __init__(self, table: str, row: int | tuple[str, ...]) -> None:
        self._table = table
        self._index, self._names = (row, ()) if isinstance(row, int) else (0, row)

    def __set_name__(self, owner: type, name: str) -> None:
        if self._names:
            self._index = self._names.index(name)

    def __get__(self, holder: object, owner: type | None = None) -> Row:
        found: Row = getattr(holder, self._table)[self._index]
        return found
