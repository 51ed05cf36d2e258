"""Job ids and places of processes, checked once each: records bring the same bytes again and again."""

from collections.abc import Sequence

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.telemetry.domain.sample_block import Ints, Names
from services.telemetry.domain.validate import HostileRecordError, check_record

_MAX_NAMES = 100_000


class KnownNames:
    """What has been checked, by its bytes on the wire; bounded, forgets all at once.

    Attributes:
        names: Nodes and devices. Blocks share the list, which is only ever added to.
    """

    def __init__(self) -> None:
        """Starts knowing none."""
        self._forget()

    def _forget(self) -> None:
        self.names = Names([""])
        self._job_ids: dict[bytes, str] = {}
        self._numbers = {"": 0}
        self._places: dict[bytes, int] = {b"": 0}
        self._pairs: Ints = np.zeros((64, 2), dtype=np.int64)

    def make_room(self) -> None:
        """Forgets all if there is too much; to be called before, and not between, what one block is made of."""
        if len(self._places) + len(self._job_ids) >= _MAX_NAMES:
            self._forget()

    def job_ids(self, raws: Sequence[bytes]) -> list[str]:
        """The job ids in these bytes; empty where nobody can have meant them."""
        known = {raw: self._job_ids.get(raw) or self._learned_job_id(raw) for raw in set(raws)}
        return [*map(known.__getitem__, raws)]

    def places(self, raws: Sequence[bytes]) -> tuple[Ints, Ints, Ints]:
        """Which of the names are the nodes and devices in these bytes, and which of the rows nobody can have meant.

        Args:
            raws: Records of nothing but node and device.
        """
        found = [*map(self._places.get, raws)]
        if None in found:
            for raw in dict.fromkeys(raw for raw, place in zip(raws, found, strict=True) if place is None):
                self._learn_place(raw)
            found = [self._places.get(raw, -1) for raw in raws]
        places = np.array(found, dtype=np.int64)
        odd = np.flatnonzero(places < 0)
        places[odd] = 0
        return self._pairs[places, 0], self._pairs[places, 1], odd

    def _learned_job_id(self, raw: bytes) -> str:
        try:
            named = pb.Record(job_id=raw.decode())
            check_record(named, key=raw)
        except (UnicodeDecodeError, HostileRecordError):
            return ""
        self._job_ids[raw] = named.job_id
        return named.job_id

    def _learn_place(self, raw: bytes) -> None:
        try:
            named = pb.Record.FromString(raw)
            named.job_id = "any"
            check_record(named, key=b"any")
        except (DecodeError, HostileRecordError):
            return
        number = len(self._places)
        if number == len(self._pairs):
            self._pairs = np.concatenate([self._pairs, np.zeros_like(self._pairs)])
        self._pairs[number] = self._number_of(named.node), self._number_of(named.device)
        self._places[raw] = number

    def _number_of(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number
