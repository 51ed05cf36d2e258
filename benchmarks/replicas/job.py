"""Replicas as forked processes of which any can be killed and started again, and what they tell after each step."""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.replicas import Place

_LONGEST_SECONDS = 120.0


class Job:
    """Replicas of one rank, gloo.

    Args:
        num_replicas: How many.
        train: Runs in each; tells something after each step.

    Attributes:
        told: By replica, what its newest process has told so far.
    """

    def __init__(self, num_replicas: int, train: Callable[[Place, Callable[[Any], None]], None]) -> None:
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)  # loads what each would load
        self.told: dict[int, list[Any]] = {}
        self._num_replicas = num_replicas
        self._train = train
        self._store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pids: dict[int, int] = {}
        self._outputs: dict[int, Connection] = {}
        for replica in range(num_replicas):
            self.start(replica)

    def start(self, replica: int) -> None:
        """A process of a replica that has none."""
        reader, writer = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)
                address = f"127.0.0.1:{self._store.port}"
                place = Place(store_address=address, replica=replica, num_replicas=self._num_replicas)
                self._train(place, writer.send)
            finally:
                sys.stderr.flush()
                os._exit(1)
        writer.close()
        self._pids[replica], self._outputs[replica], self.told[replica] = pid, reader, []

    def kill(self, replica: int) -> None:
        """End its process by SIGKILL."""
        os.kill(self._pids[replica], signal.SIGKILL)
        os.waitpid(self._pids.pop(replica), 0)
        del self._outputs[replica]

    def until(self, condition: Callable[[], bool]) -> None:
        """Listen until a condition holds.

        Raises:
            TimeoutError: Nobody has told anything for two minutes.
        """
        while not condition():
            ready = wait(list(self._outputs.values()), _LONGEST_SECONDS)
            if not ready:
                raise TimeoutError(f"nobody has made a step for {_LONGEST_SECONDS:g} s")
            for replica, output in self._outputs.items():
                if output in ready:
                    self.told[replica].append(output.recv())

    def close(self) -> None:
        """End all."""
        for replica in tuple(self._pids):
            self.kill(replica)
