"""A probe of a device's speed: square matrix products, timed as the device would take."""

import time

from evenkeel.trainer_sdk.devices.device import ComputeKind, Device

LONGEST_SECONDS = 0.010
"""After so long nothing is repeated: everybody waits for a probed rank, the longer the slower its device is."""


class MatrixProbe:
    """Times matrix products on a device; the training thread runs it at an iteration border.

    Args:
        device: Paces the products if it is an emulated one.
        torch_device: Where the matrices live, for example ``cpu`` or ``cuda:0``.
    """

    def __init__(self, device: Device, torch_device: str = "cpu") -> None:
        self._device = device
        self._torch_device = torch_device

    def __call__(self, matrix_size: int, repetitions: int) -> list[float]:
        """Seconds of each product of two square matrices: one, or up to ``repetitions`` while they are quick."""
        import torch  # noqa: PLC0415 - the SDK loads without torch

        left = torch.ones(matrix_size, matrix_size, device=self._torch_device)
        out = torch.empty_like(left)
        if out.is_cuda:  # a process's first product loads the library that makes them: no speed of the device's
            torch.mm(left, left, out=out)
            torch.cuda.synchronize(out.device)
        seconds = []
        for _ in range(repetitions):
            started = time.perf_counter()
            self._device.begin(ComputeKind.PROBE)
            torch.mm(left, left, out=out)
            if out.is_cuda:
                torch.cuda.synchronize(out.device)
            self._device.end(2.0 * matrix_size**3, ComputeKind.PROBE)
            seconds.append(time.perf_counter() - started)
            if sum(seconds) >= LONGEST_SECONDS:
                break
        return seconds
