"""A trainer whose rank controller is called all the time while DataLoader workers are forked. Run as a process.

A process of its own, as a trainer is: whatever else a test process has loaded (an asyncio gRPC server, for one, kills
forked workers) would be tested with it.
"""

# isort: skip_file
# The SDK before gRPC, as in a trainer: it switches gRPC's fork handlers off, which crash workers now and then.
import threading

from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer

import grpc
import torch
from evenkeel.control.v1 import control_pb2, control_pb2_grpc
from torch.utils.data import DataLoader, Dataset

TOKEN = "a-token-of-this-job"


class Numbers(Dataset[torch.Tensor]):
    """Sixty-four numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def main() -> None:
    torch.set_num_threads(1)
    server = ControlServer(Mailbox(rank=0), job_id="job", job_token=TOKEN)
    server.start()
    stop = threading.Event()
    num_calls = 0

    def keep_calling() -> None:
        nonlocal num_calls
        with grpc.insecure_channel(server.address()) as channel:
            stub = control_pb2_grpc.RankControlServiceStub(channel)
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            while not stop.is_set():
                stub.Status(control_pb2.StatusRequest(job_id="job"), timeout=60, metadata=metadata)
                num_calls += 1

    caller = threading.Thread(target=keep_calling)
    caller.start()
    try:
        for _ in range(6):
            loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=100)
            total = sum(float(batch.sum()) for batch in loader)
            assert total == 8 * sum(range(64)), total
    finally:
        stop.set()
        caller.join()
        server.stop()
    assert num_calls > 10, "the controller was not busy at all"


if __name__ == "__main__":
    main()
