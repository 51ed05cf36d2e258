"""What the SDK measures on one GPU, and what that costs: ``python -m benchmarks.engine.accelerator``; needs CUDA.

Prints a table and JSON: compute segments by CUDA events beside a loop of known length, the time that they cost the
training thread, the speed probe's spread, and what both say while a neighbour computes on the same GPU.
"""

import json
import subprocess
import sys
import time
from statistics import median

import torch

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.devices.real_device import CudaDevice

_SIZE = 4096
_PRODUCTS = 20
_PROBE_SIZE, _PROBE_REPETITIONS = 1024, 5
_NUM_TURNS = 20
_SETTLE_SECONDS = 8.0
_NEIGHBOUR = f"""
import torch
left = torch.ones({_SIZE}, {_SIZE}, device="cuda")
while True:
    for _ in range({_PRODUCTS}):
        left @ left
    torch.cuda.synchronize()
"""


def main() -> int:
    """Measure alone and beside a neighbour, and print the result."""
    if not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with a GPU", file=sys.stderr)
        return 2
    rows = {"alone": measured()}
    neighbour = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
    try:
        time.sleep(_SETTLE_SECONDS)
        rows["beside a neighbour"] = measured()
    finally:
        neighbour.kill()
        neighbour.wait()
    names = list(rows["alone"])
    print(f"{'':28}" + "".join(f"{case:>24}" for case in rows))
    for name in names:
        print(f"{name:28}" + "".join(f"{rows[case][name]:>24.4f}" for case in rows))
    print(json.dumps({"card": torch.cuda.get_device_name(), "torch": torch.__version__, **rows}))
    return 0


def measured() -> dict[str, float]:
    """Figures of this process's device now."""
    device = CudaDevice()
    left = torch.ones(_SIZE, _SIZE, device="cuda")
    products(left)
    device.take()
    by_events, by_wall, cost = [], [], []
    for _ in range(_NUM_TURNS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        device.begin(ComputeKind.FORWARD)
        begun = time.perf_counter()
        products(left, wait=False)
        ending = time.perf_counter()
        device.end(0.0, ComputeKind.FORWARD)
        ended = time.perf_counter()
        early = device.take().seconds  # the GPU still computes: nothing is ready, and nothing waits for it
        torch.cuda.synchronize()
        by_wall.append(time.perf_counter() - started)
        by_events.append(early.get(ComputeKind.FORWARD, 0.0) + device.take().seconds.get(ComputeKind.FORWARD, 0.0))
        cost.append((begun - started) + (ended - ending))
    probe = MatrixProbe(device, "cuda")
    first = median(probe(_PROBE_SIZE, _PROBE_REPETITIONS))
    probes = [median(probe(_PROBE_SIZE, _PROBE_REPETITIONS)) for _ in range(_NUM_TURNS)]
    return {
        "segment_ms_by_events": median(by_events) * 1e3,
        "segment_ms_by_wall": median(by_wall) * 1e3,
        "segment_events_spread": (max(by_events) - min(by_events)) / median(by_events),
        "segment_cost_us": median(cost) * 1e6,
        "tflops_fp32": 2 * _SIZE**3 * _PRODUCTS / median(by_events) / 1e12,
        "probe_first_ms": first * 1e3,
        "probe_ms": median(probes) * 1e3,
        "probe_spread": (max(probes) - min(probes)) / median(probes),
    }


def products(left: torch.Tensor, *, wait: bool = True) -> None:
    """Work of the same length each time."""
    for _ in range(_PRODUCTS):
        torch.mm(left, left)
    if wait:
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
