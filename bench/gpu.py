"""Training a randomly initialised Qwen2 of half a billion parameters in bf16 on a GPU.

Value: MFU of an update, the share of the GPU's peak (its maker's, for dense bf16) that the model's
own arithmetic is: per token 6 operations for each parameter that multiplies (the embedding only
looks up, unless it is the head, too) and 12 x layers x hidden x length for attention (Chowdhery et
al. 2022, appendix B; halved, as each token sees those before it only). What is computed anew by
gradient checkpointing does not count. The policy's own update is timed, with its optimizer.

It needs one GPU of 40 GB and more that `contract.resources` knows. Without a GPU the
same is done with a tiny model on a CPU, against a matrix product measured there, to see that it
works: nothing is judged by that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models
from env.http.arguments import positive

TARGET = 0.45
WARM, UPDATES = 2, 5
NO_GPU = "a GPU: this is a tiny model on a CPU, which shows that the benchmark runs and no more"
UNKNOWN = "the peak of this GPU in contract.resources; it was measured instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A model and the samples of one update."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    samples: int
    length: int
    micro: int
    """Samples of one pass."""

    @property
    def multiplying(self) -> int:
        """Parameters that take part in a matrix product; the head is the embedding."""
        keys = self.hidden // self.heads * self.key_heads
        attention = 2 * self.hidden * (self.hidden + keys)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def tokens(self) -> int:
        return self.samples * self.length

    @property
    def operations(self) -> float:
        """Of one update."""
        attention = 12 * self.layers * self.hidden * self.length / 2
        return self.tokens * (6 * self.multiplying + attention)


ON_GPU = Load(
    vocabulary=151_936,
    hidden=896,
    intermediate=4_864,
    layers=24,
    heads=14,
    key_heads=2,
    samples=64,
    length=2_048,
    micro=8,
)
ON_CPU = replace(
    ON_GPU,
    vocabulary=1_024,
    hidden=128,
    intermediate=512,
    layers=2,
    heads=4,
    samples=4,
    length=128,
    micro=2,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro", type=positive, help="samples of one pass; more need more memory")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--liger", action="store_true", help="Liger's kernels, if installed")
    arguments = parser.parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    load = ON_GPU if on_gpu else ON_CPU
    load = replace(load, micro=arguments.micro or load.micro)
    name, peak, lacking = peak_of(torch)
    if lacking:
        print(f"This machine lacks {lacking}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="rc-gpu-") as directory:
        row = trained(
            Path(directory) / "model",
            load,
            checkpointing=arguments.checkpointing,
            liger=arguments.liger,
        )
    mfu = load.operations / row["seconds"] / 1e12 / peak
    print(f"{name}: MFU {mfu:.1%}, {row['tokens_per_second']} tokens/s, {row['memory_gb']} GB")
    ok = report(
        "gpu",
        mfu,
        unit="MFU",
        target=TARGET,
        better="higher",
        detail={"device": name, "peak_tflops": round(peak, 3), **row, "shape": shape_of(load)},
        lacking=lacking,
    )
    return 0 if ok else 1


def peak_of(torch: Any) -> tuple[str, float, str]:
    """The device, its 10^12 operations a second, and what is lacking for them to be its maker's."""
    from contract.resources import gpu_model
    from trainer.cluster.diagnostics.gpu_burn import burn

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        burnt = burn(torch.device("cpu"), size=512, copied=1 << 20, seconds=0.3)
        return "CPU", float(burnt["tflops"]), NO_GPU
    name = torch.cuda.get_device_name()
    if known := gpu_model(name):
        return name, known.tflops, ""
    return name, float(burn(torch.device("cuda"), size=8_192, copied=1 << 30)["tflops"]), UNKNOWN


def trained(directory: Path, load: Load, *, checkpointing: bool, liger: bool) -> dict[str, Any]:
    """Medians of the policy's updates on the same samples."""
    import numpy as np
    import torch

    from trainer.algorithms.objectives import PolicyObjective
    from trainer.types import Experience, Sequences
    from trainer.workers.policy import PolicyActor

    settings = models.learner(
        models.write(directory, **shape_of(load)),
        samples=load.samples,
        longest=load.length,
        mixed_precision=torch.cuda.is_available(),
        gradient_checkpointing=checkpointing,
        liger=liger,
    )
    settings = replace(settings, train=replace(settings.train, micro_train_batch_size=load.micro))
    actor = PolicyActor(settings, PolicyObjective())
    random = np.random.default_rng(0)
    shape = (load.samples, load.length)
    action_mask = np.broadcast_to(np.arange(load.length) >= 1, shape)
    advantages = random.normal(size=shape).astype(np.float32)
    tokens = random.integers(3, load.vocabulary, shape)
    samples = Experience(
        sequences=Sequences(tokens, np.full(load.samples, load.length), action_mask),
        old_log_probs=None,
        advantages=advantages,
        returns=advantages,
    )
    seconds, metrics = [], {}
    for step in range(WARM + UPDATES):
        began = time.perf_counter()
        metrics = actor.update(samples, step)  # it reads the loss: the device has finished
        seconds.append(time.perf_counter() - began)
    middle = statistics.median(seconds[WARM:])
    return {
        "parameters": load.multiplying,
        "seconds": round(middle, 4),
        "tokens_per_second": round(load.tokens / middle),
        "memory_gb": round(metrics["policy_update_memory_gb"], 3),
        "samples": load.samples,
        "length": load.length,
        "micro_batch": load.micro,
        "gradient_checkpointing": checkpointing,
        "liger": liger,
    }


def shape_of(load: Load) -> dict[str, int]:
    return {
        "vocab_size": load.vocabulary,
        "hidden_size": load.hidden,
        "intermediate_size": load.intermediate,
        "num_hidden_layers": load.layers,
        "num_attention_heads": load.heads,
        "num_key_value_heads": load.key_heads,
        "max_position_embeddings": load.length,
    }


if __name__ == "__main__":
    sys.exit(main())
