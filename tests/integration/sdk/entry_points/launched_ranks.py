"""Entry points of the ranks that the launcher's tests start."""

import os
from dataclasses import replace
from datetime import timedelta

from torch.distributed import TCPStore

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.launcher.processes.context import RankContext


def until_told(context: RankContext) -> None:
    """Write ``rank-R-I`` into the run directory, then work until a file ``finish`` or ``fail-R`` appears there."""
    assert os.environ["RANK"] == str(context.rank)
    assert (context.initial_layout is None) == (context.incarnation > 0)
    host, _, port = context.store_address.rpartition(":")
    store = TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=100))
    store.add("ranks", 1)
    phase = RankPhase.TRAINING if context.initial_layout else RankPhase.JOINING
    context.mailbox.publish(replace(context.mailbox.state, phase=phase))
    note = context.run_dir / f"rank-{context.rank}-{context.incarnation}"
    note.with_suffix(".new").write_text(str(store.add("ranks", 0)))
    note.with_suffix(".new").replace(note)
    segments = 0
    while not (context.run_dir / "finish").exists():
        if (context.run_dir / f"fail-{context.rank}").exists():
            raise RuntimeError("told to fail")
        if context.mailbox.leaving():
            return
        segments += 1
        (context.run_dir / f"segments-{context.rank}").write_text(f"{segments:09}")
        context.device.begin(ComputeKind.FORWARD)
        context.device.end(1e7, ComputeKind.FORWARD)  # 10 ms on a healthy device
