"""How a text is chosen once and for all by passive stores, some of which may be away: by a majority of them. Pure.

Single-decree Paxos (Lamport, "Paxos Made Simple", section 2) with one twist: its acceptors are registers that can only
be compared and set, so whoever proposes does the acceptors' part too. A register that comes back empty has forgotten
what it promised; where that can happen, let everybody who knows what was chosen write it there first.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Self

from evenkeel.layouts.json_schema import record_from

Ballot = tuple[int, str]
"""A round, and who proposes in it: no two proposals share one."""

_NONE: Ballot = (0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """What one store holds of a choice.

    Attributes:
        promised: No older ballot is taken.
        accepted: Ballot of the text; that of nobody while there is none.
        text: The newest text that was accepted.
    """

    promised: Ballot = _NONE
    accepted: Ballot = _NONE
    text: str = ""

    def to_text(self) -> str:
        """As a store holds it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of :meth:`to_text`; an empty text is an empty register."""
        return record_from(cls, json.loads(text)) if text else cls()


class Proposal:
    """One process's attempt at having its text chosen, or at hearing which one was.

    Args:
        proposer: Unique to this attempt.
        text: What it would like.

    Attributes:
        change: What to do with each register now: in all stores that answer, at once or one after the other.
        is_accepting: A majority has promised to take nothing older.
    """

    def __init__(self, proposer: str, text: str) -> None:
        self._proposer = proposer
        self._wanted = text
        self._text = ""
        self.is_accepting = False
        self.change: Callable[[Register], Register] = self._promise
        self._ballot: Ballot = (1, proposer)

    def heard(self, registers: Iterable[Register]) -> str | None:
        """Registers of a majority of stores after :attr:`change`: the text that is chosen, or None: go on."""
        found = list(registers)
        newest = max(each.promised for each in found)
        if newest > self._ballot:
            self._begin(newest[0] + 1)
            return None
        if self.is_accepting:
            return self._text
        # Whatever may have been chosen already is the newest that any majority has accepted.
        before = max(found, key=lambda each: each.accepted)
        self._text = before.text if before.accepted > _NONE else self._wanted
        self.is_accepting = True
        self.change = self._accept
        return None

    def _begin(self, number: int) -> None:
        self._ballot = (number, self._proposer)
        self.is_accepting = False
        self.change = self._promise

    def _promise(self, register: Register) -> Register:
        return register if register.promised >= self._ballot else replace(register, promised=self._ballot)

    def _accept(self, register: Register) -> Register:
        if register.promised > self._ballot:
            return register
        return Register(promised=self._ballot, accepted=self._ballot, text=self._text)
