"""All ranks of an epoch, who agree in groups of a few: what they say is put together level by level, then told back.

In each group everybody hears everybody; the first rank goes on for its group, and hands on what comes of it. Where
one group is wide enough there is one level, and nothing is handed on. Nobody hears a result before everybody said
something; but when somebody dies, some may have heard it and others never will.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from evenkeel.layouts.ranks.levels import levels_of, path_of
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.store.texts import join_texts, split_texts

T = TypeVar("T")
Wait = Callable[[tuple[int, ...], Callable[[], Any]], Any]
"""Runs what waits for those ranks, and returns its result."""

_HEAD_BYTES = 8
_FIRST_BYTES = 4096
"""What is sent at once of a text: the ledger of a rank with a few hundred parameters, so that one round is enough."""


def assembly_specs(name: str, ranks: Sequence[int], widest: int) -> tuple[GroupSpec, ...]:
    """The groups of an assembly, in the order in which every rank builds them.

    Args:
        name: The assembly's.
        ranks: Everybody.
        widest: Most ranks of a group.
    """
    levels = levels_of(ranks, widest)
    return tuple(
        GroupSpec(name=_group_name(name, len(levels), height, members), ranks=members)
        for height, groups in enumerate(levels)
        for members in groups
        if len(members) > 1
    )


def _group_name(name: str, num_levels: int, height: int, members: tuple[int, ...]) -> str:
    return name if num_levels == 1 else f"{name}/{height}/{members[0]}"


class Assembly:
    """One rank's part in an assembly. Training thread only.

    Args:
        name: As its groups were named.
        ranks: Everybody; this rank among them.
        widest: Most ranks of a group.
        rank: This rank.
        groups: The epoch's groups by name.
        device: Where the groups' tensors live.
        wait: Runs each wait.

    Attributes:
        whole: The group of everybody; None where there are several, or nobody else.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        widest: int,
        *,
        rank: int,
        groups: Mapping[str, Group],
        device: torch.device,
        wait: Wait = lambda _, wait: wait(),
    ) -> None:
        levels = levels_of(ranks, widest)
        path = path_of(levels, rank)
        names = [
            _group_name(name, len(levels), height, members) for height, members in enumerate(path) if len(members) > 1
        ]
        self._rank = rank
        self._path = [groups[each] for each in names]
        self._is_top = len(path) == len(levels)
        self._device = device
        self._wait = wait
        self.whole = self._path[0] if len(levels) == 1 and self._path else None

    def fold(self, mine: Sequence[float], combine: Callable[[Tensor], Tensor]) -> list[float]:
        """Everybody's numbers made one row, the same bit for bit on every rank.

        Args:
            mine: This rank's row of numbers.
            combine: Makes one row of several; the same in whatever groups they come. One row stays as it is.

        Raises:
            WaitBroken: The rank should park.
        """
        row = torch.tensor(mine, dtype=torch.float64, device=self._device)
        for group in self._path:
            row = combine(self._wait(group.others, partial(group.all_gather, row)))
        self._hand_on(row)
        found: list[float] = row.cpu().tolist()
        return found

    def gather(self, mine: Sequence[bytes]) -> dict[int, tuple[bytes, ...]]:
        """Everybody's texts by rank; a text that several ranks say goes up and comes back once.

        Args:
            mine: What this rank says; everybody says as many texts.

        Raises:
            WaitBroken: The rank should park.
        """
        said = join_texts({self._rank: mine})
        for group in self._path:
            heard: dict[int, tuple[bytes, ...]] = {}
            for each in self._exchange(group, said):
                heard |= split_texts(each)
            said = join_texts(heard)
        if self._path and self.whole is None:
            size = torch.tensor([len(said)], device=self._device)
            self._hand_on(size)
            everything = self._tensor(said) if self._is_top else size.new_empty(int(size), dtype=torch.uint8)
            self._hand_on(everything)
            said = everything.cpu().numpy().tobytes()
        return split_texts(said)

    def _hand_on(self, result: Tensor) -> None:
        """Receive the result from who leads this rank's last group, and send it to those whom this rank leads."""
        if not self._path:
            return
        *led, last = self._path
        if not self._is_top:
            leader = last.ranks[0]
            self._wait((leader,), partial(_tell, last, result, leader))
        for group in reversed(led):
            self._wait(group.others, partial(_tell, group, result, self._rank))

    def _exchange(self, group: Group, text: bytes) -> list[bytes]:
        """The texts of a group, in its order."""
        sized = len(text).to_bytes(_HEAD_BYTES, "little") + text
        firsts = self._all_gather(group, sized[:_FIRST_BYTES], _FIRST_BYTES)
        sizes = [_HEAD_BYTES + int.from_bytes(first[:_HEAD_BYTES], "little") for first in firsts]
        rests = [b""] * len(firsts)
        if max(sizes) > _FIRST_BYTES:
            rests = self._all_gather(group, sized[_FIRST_BYTES:], max(sizes) - _FIRST_BYTES)
        return [(first + rest)[_HEAD_BYTES:size] for first, rest, size in zip(firsts, rests, sizes, strict=True)]

    def _all_gather(self, group: Group, mine: bytes, length: int) -> list[bytes]:
        """Everybody's bytes, padded to ``length``."""
        padded = self._tensor(mine.ljust(length, b"\0"))
        rows = self._wait(group.others, partial(group.all_gather, padded))
        return [row.numpy().tobytes() for row in rows.cpu()]

    def _tensor(self, text: bytes) -> Tensor:
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self._device)


def _tell(group: Group, result: Tensor, leader: int) -> None:
    group.start_broadcast(result, leader).wait()
