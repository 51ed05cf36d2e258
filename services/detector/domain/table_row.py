"""Rows of a table as attributes: state of many things in few arrays, as an array's own upkeep is that of 14 numbers."""

from typing import Generic, TypeVar

Row = TypeVar("Row")


class TableRow(Generic[Row]):
    """One row of a table, by its name, as a view.

    Args:
        table: The attribute that holds the table, one column a thing.
        names: Of its rows; one of them is that of the attribute which this becomes.
    """

    def __init__(self, table: str, names: tuple[str, ...]) -> None:
        self._table, self._names, self._index = table, names, 0

    def __set_name__(self, owner: type, name: str) -> None:
        self._index = self._names.index(name)

    def __get__(self, holder: object, owner: type | None = None) -> Row:
        found: Row = getattr(holder, self._table)[self._index]
        return found
