"""Signatures of batches: what the job's key signed is believed, and nothing else."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.mac import (
    TAIL_BYTES,
    JobKey,
    UnbelievedError,
    is_signed,
    job_key,
    signed,
    verified,
    without_signature,
)
from evenkeel.telemetry.v2 import batch_pb2 as pb
from tests.unit.contracts.measured import batch_messages

_KEY = JobKey(3, b"k" * 32)


@given(batch_messages())
def test_a_signature_is_the_messages_last_field(message: pb.Batch) -> None:
    value = message.SerializeToString()
    parsed = pb.Batch.FromString(signed(value, _KEY))
    assert len(parsed.mac) == 1
    assert value + pb.Batch(mac=parsed.mac).SerializeToString() == signed(value, _KEY)
    assert len(signed(value, _KEY)) == len(value) + TAIL_BYTES
    assert verified(signed(value, _KEY), _KEY) == without_signature(signed(value, _KEY)) == value


@given(batch_messages(), st.data())
def test_one_changed_bit_is_noticed(message: pb.Batch, data: st.DataObject) -> None:
    value = bytearray(signed(message.SerializeToString(), _KEY))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(UnbelievedError):
        verified(bytes(value), _KEY)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (b"", "unsigned"),
        (b"\x0a\x01j", "unsigned"),
        (signed(b"\x0a\x01j", JobKey(5, b"k" * 32)), "unknown_key"),
        (signed(b"\x0a\x01j", JobKey(3, b"l" * 32)), "signature"),
        (signed(b"\x0a\x01j", _KEY) + b"\x0a\x01k", "unsigned"),
    ],
)
def test_why_a_batch_is_not_believed(value: bytes, word: str) -> None:
    with pytest.raises(UnbelievedError) as raised:
        verified(value, _KEY)
    assert raised.value.word == word


def test_unsigned_bytes_stay_as_they_are() -> None:
    assert without_signature(b"\x0a\x01j") == b"\x0a\x01j"
    assert not is_signed(b"\x0a\x01j")


def test_a_key_is_in_no_log() -> None:
    assert "kkk" not in repr(_KEY)


def test_a_jobs_key_follows_from_its_id_and_its_token() -> None:
    # Of NIST SP 800-108r1, counter mode, by hand: HMAC-SHA256(token, 00000001 label 00 job 00000100).
    fixed = b"\0\0\0\1evenkeel.telemetry.batches\0job\0\0\1\0"
    assert job_key("job", "token") == JobKey(1, hmac.new(b"token", fixed, hashlib.sha256).digest())
    assert job_key("job", "") is None
    assert len({job_key("job", "token"), job_key("bob", "token"), job_key("job", "nekot")}) == 3
    assert signed(b"\x0a\x01j", None) == b"\x0a\x01j"
