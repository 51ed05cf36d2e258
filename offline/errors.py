"""What a recording can have wrong with it."""


class RecordingError(ValueError):
    """A file that cannot be read as what it should be; the message says where and what to do."""


class KafkaAwayError(RecordingError):
    """Kafka does not answer: nothing is known of what it holds."""
