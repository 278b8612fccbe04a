"""Cost of a step's checksums of weights, against the passes of the step, on this machine's CPUs.

A rank reads its weights three times in a step (`--weight_check_steps 1`), an engine twice. The step
is the least that a trainer does with such weights: one forward and one backward pass of TOKENS
tokens through linear layers of the same size. Value: seconds of five readings / seconds of the
passes, in CPU time of one thread. Beside it elements a second, and those of a plain sum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from bench.result import report
from trainer.models.fingerprint import fingerprint

LAYERS, WIDTH, TOKENS = 8, 1024, 2048
READINGS = 5
REPEATS = 3
TARGET = 0.02


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    weights = list(model.parameters())
    elements = sum(one.numel() for one in weights)
    batch = torch.randn(TOKENS, WIDTH)
    reading = fastest(lambda: fingerprint(weights))
    plain = fastest(lambda: sum(int(one.detach().view(torch.int32).sum()) for one in weights))
    passes = fastest(lambda: model(batch).square().mean().backward())
    ok = report(
        "checksums",
        READINGS * reading / passes,
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={
            "elements": elements,
            "elements_per_second": round(elements / reading),
            "elements_per_second_of_a_plain_sum": round(elements / plain),
            "ms_of_a_reading": round(1000 * reading, 2),
            "ms_of_the_passes": round(1000 * passes, 1),
            "tokens": TOKENS,
        },
    )
    return 0 if ok else 1


def fastest(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of some calls: others may have the CPUs."""
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    sys.exit(main())
