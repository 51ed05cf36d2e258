"""What tests of ranks compute on: ``EVENKEEL_TEST_DEVICE=cuda:0`` runs those of engine and replicas over NCCL."""

import os

import torch

DEVICE = torch.device(os.environ.get("EVENKEEL_TEST_DEVICE", "cpu"))
"""Of every rank. The process of the tests itself stays away from an accelerator: CUDA does not survive a fork."""


def take_device(rank: int) -> None:
    """Called first in a rank's process.

    NCCL refuses two ranks on one GPU of one host, so each rank says that it is a host of its own: they speak over
    sockets, as ranks on several hosts do.
    """
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        os.environ.update(NCCL_HOSTID=f"rank-{rank}", NCCL_SOCKET_IFNAME="lo")
        torch.cuda.set_device(DEVICE)
