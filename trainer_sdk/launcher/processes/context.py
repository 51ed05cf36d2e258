"""What a rank's entry point is given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.launcher.progress.progress_board import Note

JOB_FINISHED = "finished"
"""Key in the rendezvous store, below the job's id: its work is done. Set by ranks that finish, and by their parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """A rank's surroundings; all of it is ready to use when the entry point is called.

    Attributes:
        job_id: Job.
        rank: Rank.
        incarnation: Which process of the rank.
        mailbox: Plans from the scheduler; publish states here.
        device: Measures and paces compute.
        torch_device: Where tensors live, for example ``cpu`` or ``cuda:0``.
        emitter: Takes samples and progress.
        store_address: ``host:port`` of the rendezvous store, which no rank hosts, or of several, comma-separated.
        config: The job's own configuration.
        initial_layout: Layout of epoch 0; None for a replacement, which waits for a plan.
        run_dir: The job's folder.
        links: Emulated links between ranks; None = real ones.
        node_of: Node of a rank.
        note: Takes how far this rank is, for the launcher to show; well under 10 us.
    """

    job_id: str
    rank: int
    incarnation: int
    mailbox: Mailbox
    device: Device
    torch_device: str
    emitter: Emitter
    store_address: str
    config: dict[str, Any]
    initial_layout: Layout | None
    run_dir: Path
    links: Links | None = None
    node_of: Callable[[int], str]
    note: Callable[[Note], None] = lambda _: None
