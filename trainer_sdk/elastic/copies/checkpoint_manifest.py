"""What a complete checkpoint says of itself: JSON that is written last, so that a half-written one has none."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from evenkeel.layouts.json_schema import record_from
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_to_json
from evenkeel.trainer_sdk.elastic.state.ownership import Slice

FORMAT = 1


class Extent(NamedTuple):
    """``[start, stop)`` of a parameter's cut axis."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """One rank's file.

    Attributes:
        name: In the checkpoint's folder.
        num_bytes: Its size.
        sha256: Of its bytes, in hexadecimal digits.
        extents: What it holds: for each, the value and both moments.

    Raises:
        ValueError: Its name leads out of the folder.
    """

    name: str
    num_bytes: int
    sha256: str
    extents: tuple[Extent, ...]

    def __post_init__(self) -> None:
        if "/" in self.name or self.name.startswith("."):
            raise ValueError(f"a checkpoint's file is named {self.name!r}: it must lie in the checkpoint's folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint.

    Attributes:
        steps_applied: Optimizer steps that it contains.
        epoch: Epoch in which it was written.
        training: What the numbers depend on, as :func:`training_identity` gives it.
        files: All of its files; every element of every parameter is in one of them, once.
    """

    steps_applied: int
    epoch: int
    training: dict[str, Any]
    files: tuple[CheckpointFile, ...]


def training_identity(config: TrainingConfig) -> dict[str, Any]:
    """The parts of a training configuration in JSON form that a run must share with the checkpoint it goes on from."""
    values = config_to_json(config)
    plain: dict[str, Any] = json.loads(
        json.dumps({name: values[name] for name in ("seed", "dtype", "model", "workload")})
    )
    return plain


def manifest_to_text(manifest: Manifest) -> str:
    """The text of a manifest."""
    plain = asdict(manifest)
    # The word of this format, by which versions before this one find a size.
    files = [{"bytes": each.pop("num_bytes"), **each} for each in plain.pop("files")]
    return json.dumps({"format": FORMAT, **plain, "files": files}, indent=1)


def manifest_from_text(text: str) -> Manifest:
    """The inverse of :func:`manifest_to_text`.

    Raises:
        ValueError: The text is cut off, is not a manifest, or is of a format that this version does not know.
    """
    try:
        plain = json.loads(text)
        if (written := plain.pop("format")) != FORMAT:
            raise ValueError(f"not a checkpoint's manifest: format {written}: this version reads format {FORMAT}")
        files = [{"num_bytes": each.pop("bytes"), **each} for each in plain.pop("files")]
        return record_from(Manifest, {**plain, "files": files})
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a checkpoint's manifest: {error!r}") from error


def parts_of(
    files: Sequence[CheckpointFile], wanted: Mapping[str, Slice]
) -> list[tuple[CheckpointFile, list[tuple[Extent, Slice]]]]:
    """Of each file that has something of these slices: its extents that do, each with what they have in common.

    Raises:
        ValueError: Some part of a slice is in no file.
    """
    found: list[tuple[CheckpointFile, list[tuple[Extent, Slice]]]] = []
    num_found = Counter[str]()
    for file in files:
        parts: list[tuple[Extent, Slice]] = []
        for extent in file.extents:
            part = wanted[extent.name].within(extent.start, extent.stop) if extent.name in wanted else None
            if part:
                parts.append((extent, part))
                num_found[extent.name] += len(part)
        if parts:
            found.append((file, parts))
    for name, held in wanted.items():
        if num_found[name] < len(held):
            lacking = f"{name}[{held.start}:{held.stop}], or a part of it"
            raise ValueError(f"the checkpoint lacks {lacking}: it was written by another model")
    return found
