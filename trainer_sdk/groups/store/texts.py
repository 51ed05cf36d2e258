"""What many ranks say, as one text: equal texts are written once, and each rank says which it means."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

_NUMBER = np.dtype("<u4")
_COUNTS = 3


def join_texts(said: Mapping[int, Sequence[bytes]]) -> bytes:
    """One text of all: how many texts, ranks and texts a rank; the texts' lengths; each rank and its texts; the texts.

    Args:
        said: By rank; everybody says as many texts, and somebody says something.
    """
    places: dict[bytes, int] = {}
    rows = [(rank, *[places.setdefault(text, len(places)) for text in texts]) for rank, texts in said.items()]
    numbers = ((len(places), len(rows), len(rows[0]) - 1), [len(text) for text in places], rows)
    return b"".join([*[np.array(each, dtype=_NUMBER).tobytes() for each in numbers], *places])


def split_texts(joined: bytes) -> dict[int, tuple[bytes, ...]]:
    """The inverse of :func:`join_texts`; equal texts are one object."""
    num_texts, num_ranks, per_rank = np.frombuffer(joined, dtype=_NUMBER, count=_COUNTS).tolist()
    num_numbers = _COUNTS + num_texts + num_ranks * (1 + per_rank)
    numbers = np.frombuffer(joined, dtype=_NUMBER, count=num_numbers)
    borders = accumulate(numbers[_COUNTS : _COUNTS + num_texts].tolist(), initial=num_numbers * _NUMBER.itemsize)
    texts = [joined[start:stop] for start, stop in pairwise(borders)]
    rows = numbers[_COUNTS + num_texts :].reshape(num_ranks, 1 + per_rank).tolist()
    return {rank: tuple([texts[place] for place in meant]) for rank, *meant in rows}
