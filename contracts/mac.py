"""Signs batches by the key of their job, and tells those that are not.

A signature covers the bytes of a batch as they are, so no canonical form is needed: it is the message's last field,
39 bytes behind all others, and is cut off before anything is parsed.
"""

import hmac
from dataclasses import dataclass

_LABEL = b"evenkeel.telemetry.batches"
_NUMBER_BYTES, _DIGEST_BYTES = 4, 32
_TAG = bytes(((31 << 3 | 2) & 0x7F | 0x80, (31 << 3 | 2) >> 7, _NUMBER_BYTES + _DIGEST_BYTES))
"""Field 31, a text of bytes, and how many: RFC 2104 over SHA-256 behind the key's number."""
TAIL_BYTES = len(_TAG) + _NUMBER_BYTES + _DIGEST_BYTES


class UnbelievedError(ValueError):
    """A batch that nobody believes; ``word``, from a closed set, says what is wrong with it."""

    def __init__(self, word: str, reason: str) -> None:
        """Keeps the word to count by beside the reason for a person."""
        super().__init__(reason)
        self.word = word


@dataclass(frozen=True, slots=True)
class JobKey:
    """A key of a job.

    Attributes:
        number: Which of the job's keys, 0 to 2^32 - 1: the newest signs, older ones are still believed for a while.
        secret: The key, 32 bytes; not for any log.
    """

    number: int
    secret: bytes

    def __repr__(self) -> str:
        return f"JobKey(number={self.number})"


def job_key(job_id: str, job_token: str) -> JobKey | None:
    """The key that signs a job's batches, derived from its token; None without a token.

    Whoever learns the key cannot call the job's ranks: the token does not follow from it. One block of the counter mode
    of NIST SP 800-108r1, section 4.1, over HMAC-SHA256. A job's token never changes, so it has this one key.
    """
    if not job_token:
        return None
    fixed = (1).to_bytes(4) + _LABEL + b"\0" + job_id.encode() + (8 * _DIGEST_BYTES).to_bytes(4)
    return JobKey(1, hmac.digest(job_token.encode(), fixed, "sha256"))


def signed(value: bytes, key: JobKey | None) -> bytes:
    """The bytes of a batch with their signature behind them; as they are without a key."""
    if key is None:
        return value
    return value + _TAG + key.number.to_bytes(_NUMBER_BYTES) + hmac.digest(key.secret, value, "sha256")


def is_signed(value: bytes) -> bool:
    """Whether there is a signature, right or wrong."""
    return value[-TAIL_BYTES : len(_TAG) - TAIL_BYTES] == _TAG


def without_signature(value: bytes) -> bytes:
    """The bytes of a batch alone, whatever signed them."""
    return value[:-TAIL_BYTES] if is_signed(value) else value


def verified(value: bytes, key: JobKey) -> bytes:
    """The bytes of a batch alone, if the job's key signed them.

    Args:
        value: As it came.
        key: The job's.

    Raises:
        UnbelievedError: It is not signed, or not by this key.
    """
    if not is_signed(value):
        raise UnbelievedError("unsigned", "the batch is not signed by its job's key")
    number = int.from_bytes(value[len(_TAG) - TAIL_BYTES : -_DIGEST_BYTES])
    if number != key.number:
        raise UnbelievedError("unknown_key", f"the batch is signed by key {number}, which its job does not have")
    if not hmac.compare_digest(hmac.digest(key.secret, value[:-TAIL_BYTES], "sha256"), value[-_DIGEST_BYTES:]):
        raise UnbelievedError("signature", f"the batch is not what key {number} of its job signed")
    return value[:-TAIL_BYTES]
