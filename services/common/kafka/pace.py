"""How many records to take at once: as many as are worked off in a moment, however fast or slow that goes just now."""

TARGET_SECONDS = 0.2
FEWEST_RECORDS = 16
MOST_RECORDS = 20_000


class BatchPace:
    """Follows the time that batches take. Pure: the caller has the clock.

    A batch that took too long halves the next at most, a full one that was quick doubles it at most. One that was not
    full says nothing of larger ones.

    Args:
        first: Records of the first batch.
        most: Records of the largest.
    """

    def __init__(self, first: int = 512, most: int = MOST_RECORDS) -> None:
        self._most = most
        self.max_records = min(first, most)

    def took(self, num_records: int, seconds: float) -> None:
        """A batch of so many records took so long."""
        factor = min(max(TARGET_SECONDS / max(seconds, 1e-6), 0.5), 2.0)
        if factor < 1.0 or num_records >= self.max_records:
            fewest = min(FEWEST_RECORDS, self._most)
            self.max_records = min(max(round(self.max_records * factor), fewest), self._most)
