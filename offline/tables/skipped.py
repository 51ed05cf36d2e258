"""Messages of a recording that cannot be used: counted and left out, as services do with records of their topics."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Skipped:
    """What was left out of a recording.

    Attributes:
        reasons: How many, by a word that says what was wrong.
        first: Where the first one is and what was wrong with it; empty while there is none.
        place: Where the reader is.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""
    place: str = ""

    @property
    def count(self) -> int:
        """How many messages were left out."""
        return self.reasons.total()

    def add(self, word: str, reason: str) -> None:
        """Counts the message at which the reader is."""
        self.reasons[word] += 1
        self.first = self.first or f"{self.place}: {reason}"

    @property
    def text(self) -> str:
        """One line for a person."""
        kinds = ", ".join(f"{count} {word}" for word, count in sorted(self.reasons.items()))
        return f"{self.count} message{'s' * (self.count != 1)} skipped ({kinds}); the first: {self.first}"
