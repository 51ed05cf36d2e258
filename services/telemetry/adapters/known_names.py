"""Job ids and places of processes, checked once each: records bring the same bytes again and again."""

import numpy as np
from google.protobuf.message import DecodeError

from evenkeel.numeric.arrays import Bytes, Ints
from evenkeel.services.telemetry.adapters.byte_table import ByteTable, distinct
from evenkeel.services.telemetry.domain.sample_block import Names
from evenkeel.services.telemetry.domain.validate import HostileRecordError, check_record
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

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
        self._places = ByteTable()
        self._places.add(b"")
        self._pairs: Ints = np.zeros((64, 2), dtype=np.int64)

    def make_room(self) -> None:
        """Forgets all if there is too much; to be called before, and not between, what one block is made of."""
        if len(self._places) + len(self._job_ids) >= _MAX_NAMES:
            self._forget()

    def job_ids(self, wire: Bytes, begins: Ints, ends: Ints) -> tuple[list[str], Ints]:
        """The job ids in a buffer, each once, and which of them each is; empty where nobody can have meant it."""
        which, firsts = distinct(wire, begins, ends)
        raws = [wire[begins[row] : ends[row]].tobytes() for row in firsts.tolist()]
        return [self._job_ids.get(raw) or self._learned_job_id(raw) for raw in raws], which

    def places(self, wire: Bytes, begins: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of the names are the nodes and devices in a buffer, and which of the rows nobody can have meant.

        Args:
            wire: The buffer.
            begins: First byte of each: records of nothing but node and device.
            ends: Behind its last byte.
        """
        places = self._places.find(wire, begins, ends)
        odd = np.flatnonzero(places < 0)
        if len(odd):
            raws = [wire[begins[row] : ends[row]].tobytes() for row in odd.tolist()]
            for raw in dict.fromkeys(raws):
                self._learn_place(raw)
            places[odd] = self._places.find(wire, begins[odd], ends[odd])
            odd = np.flatnonzero(places < 0)
            places[odd] = 0
        pairs = self._pairs[places]
        return pairs[:, 0], pairs[:, 1], odd

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
        number = self._places.add(raw)
        if number == len(self._pairs):
            self._pairs = np.concatenate([self._pairs, np.zeros_like(self._pairs)])
        self._pairs[number] = self._number_of(named.node), self._number_of(named.device)

    def _number_of(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number
