"""Runs a second of matrix products and of copies on every GPU.

Program: `python -m trainer.cluster.diagnostics.gpu_burn`. Prints one JSON row: for each GPU its
model, 10^12 operations and 10^9 bytes a second, and whether a product of whole numbers was exact.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

SECONDS = 0.5
"""Seconds for each of the two loads, after a first pass as warm-up."""


def burn(
    device: torch.device, *, size: int, copied: int, seconds: float = SECONDS
) -> dict[str, Any]:
    """Return the row of one device. `size`: rows of a matrix; `copied`: bytes of the buffer."""
    on_gpu = device.type == "cuda"
    kind = torch.bfloat16 if on_gpu else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    source = torch.empty(copied, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    products = _rate(lambda: torch.mm(left, right), device, seconds)
    copies = _rate(lambda: target.copy_(source), device, seconds)
    return {
        "model": torch.cuda.get_device_name(device) if on_gpu else "CPU",
        "tflops": 2 * size**3 * products / 1e12,
        "copy_gbs": 2 * copied * copies / 1e9,  # read and written
        "correct": _is_exact(device, kind),
    }


def _rate(load: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return passes per second."""
    load()
    _wait(device)
    began, passes = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            load()
        _wait(device)
        passes += 4
    return passes / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _is_exact(device: torch.device, kind: torch.dtype) -> bool:
    """Multiply matrices of zeros and ones: sums of 64 terms are exact in every type."""
    left, right = (torch.randint(0, 2, (64, 64)) for _ in range(2))
    product = left.to(device, kind) @ right.to(device, kind)
    return torch.equal(product.cpu().long(), left @ right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="burn the CPU, to see that this works")
    parser.add_argument("--gpus", type=int, help="how many, of those that torch sees; else all")
    given = parser.parse_args()
    if given.cpu:
        print(json.dumps([burn(torch.device("cpu"), size=256, copied=1 << 22, seconds=0.05)]))
        return 0
    numbers = range(torch.cuda.device_count())[: given.gpus]
    devices = [torch.device("cuda", index) for index in numbers]
    if not devices:
        print("torch sees no GPU", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(len(devices)) as pool:
        rows = pool.map(lambda device: burn(device, size=8192, copied=1 << 30), devices)
        print(json.dumps(list(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
