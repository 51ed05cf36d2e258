"""What is said of a batch that nobody believes."""


class UnbelievedError(ValueError):
    """A batch that cannot be believed: ``word``, from a closed set, says what is wrong with it."""

    def __init__(self, word: str, reason: str) -> None:
        """Keeps the word to count by beside the reason for a person."""
        super().__init__(reason)
        self.word = word
