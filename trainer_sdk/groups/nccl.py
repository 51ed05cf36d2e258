"""NCCL groups whose ranks outlive one another."""

import os
from datetime import timedelta

import torch

from evenkeel.trainer_sdk.groups.c10d import Backend, Store, c10d

_SURVIVE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""By default torch's watchdog ends the process that sees a peer's connection break, or an abort that takes long (torch,
"ProcessGroupNCCL Environment Variables"); desync debug and blocking waits bring that back. Here, survivors park."""


def nccl_backend(store: Store, place: int, size: int, *, device: torch.device, timeout: timedelta) -> Backend:
    """A connected NCCL backend; blocks until all peers are there, so not on the training thread.

    Left to itself it would connect in its first operation: on the training thread, where no interrupt ends it.

    Args:
        store: A prefix of its own.
        place: This rank's place in the group.
        size: Number of ranks.
        device: With its index: helper threads do not have the training thread's current device.
        timeout: For the whole life of each operation.
    """
    os.environ.update(_SURVIVE)  # read whenever a backend is made
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = c10d.ProcessGroupNCCL(store, place, size, options)
    backend.eager_connect_single_device(device)
    return backend
