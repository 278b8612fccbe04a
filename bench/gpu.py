"""Training a randomly initialised Qwen2 in bf16 on a GPU, as a run trains it by default.

Value: MFU of an update, the share of the GPU's peak (its maker's, for dense bf16) that the model's
own arithmetic is: per token 6 operations for each parameter that multiplies (the embedding only
looks up, unless it is the head, too) and 12 x layers x hidden x length for attention (Chowdhery et
al. 2022, appendix B; halved, as each token sees those before it only). Padding does not count, nor
what is computed anew by gradient checkpointing. Adapters need 4 operations in place of 6. The
policy's own update is timed, with its optimizer.

Its passes, packing, kernels and checkpointing are what `rollcall plan` chooses for this GPU and
model in a run of GRPO, unless a flag here says otherwise. Samples are all of one length; with
--ragged from an eighth of that length to all of it, evenly spread.

It needs one GPU that `contract.resources` knows. Without a GPU the same is done with a
tiny model on a CPU in fp32, as `plan` chooses for a GPU of 80 GB, against a matrix product measured
there, to see that it works: nothing is judged by that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.result import report
from bench.sides import models
from env.http.arguments import positive

if TYPE_CHECKING:
    from trainer.config.config import Config
    from trainer.types import Experience, IntArray

TARGET = 0.45
WARM, UPDATES = 2, 5
ASSUMED_MEMORY = 80 * 10**9
"""Bytes of the GPU that is taken for granted without one."""
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
    tied: bool = True
    """The head is the embedding."""
    samples: int
    length: int
    """Tokens of the longest sample."""
    ragged: bool = False
    """Samples have from an eighth of `length` to all of it; else all have it."""
    lora: int = 0
    """Rank of the adapters that are trained; 0: the whole model is."""

    @property
    def lengths(self) -> IntArray:
        import numpy as np

        shortest = self.length // 8 if self.ragged else self.length
        lengths = np.linspace(shortest, self.length, self.samples).astype(np.int64)
        return np.random.default_rng(0).permutation(lengths)

    @property
    def multiplying(self) -> int:
        """Parameters that take part in a matrix product; an embedding only looks up."""
        keys = self.hidden // self.heads * self.key_heads
        attention = 2 * self.hidden * (self.hidden + keys)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def operations(self) -> float:
        """Of one update."""
        lengths, each = self.lengths, 4 if self.lora else 6
        attention = 2 * each * self.layers * self.hidden / 2
        return float(each * self.multiplying * lengths.sum() + attention * (lengths**2).sum())


ON_GPU = {
    name: Load(
        vocabulary=shape["vocab_size"],
        hidden=shape["hidden_size"],
        intermediate=shape["intermediate_size"],
        layers=shape["num_hidden_layers"],
        heads=shape["num_attention_heads"],
        key_heads=shape["num_key_value_heads"],
        tied=shape["tie_word_embeddings"],
        samples=64,
        length=2_048,
    )
    for name, shape in models.SHAPES.items()
    if name != "tiny"
}
"""The shapes of Qwen2.5."""
ON_CPU = replace(
    ON_GPU["0.5B"],
    vocabulary=1_024,
    hidden=128,
    intermediate=512,
    layers=2,
    heads=4,
    samples=8,
    length=128,
)


def main() -> int:
    arguments = _parser().parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    load = replace(
        ON_GPU[arguments.model] if on_gpu else ON_CPU,
        ragged=arguments.ragged,
        lora=arguments.lora,
    )
    name, peak, lacking = peak_of(torch)
    if lacking:
        print(f"This machine lacks {lacking}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="rc-gpu-") as directory:
        memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else ASSUMED_MEMORY
        model, flags = Path(directory) / "model", flags_of(arguments, on_gpu=on_gpu)
        config = planned(model, load, flags, (name, memory))
        row = trained(models.write(model, **shape_of(load)), load, config)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=ON_GPU, default="0.5B", help="parameters of the model")
    parser.add_argument("--ragged", action="store_true", help="samples of different lengths")
    parser.add_argument("--padded", action="store_true", help="pad samples; else they are packed")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--micro", type=positive, help="samples of one pass; more need more memory")
    limit.add_argument("--tokens", type=positive, help="tokens of one pass")
    parser.add_argument("--lora", type=positive, default=0, help="rank of adapters to train")
    parser.add_argument(
        "--checkpointing", action=argparse.BooleanOptionalAction, help="gradient checkpointing"
    )
    parser.add_argument("--liger", action=argparse.BooleanOptionalAction, help="Liger's kernels")
    parser.add_argument("--attention", help="transformers' name of another attention")
    return parser


def flags_of(arguments: argparse.Namespace, *, on_gpu: bool) -> list[str]:
    """The trainer's flags that the benchmark's own stand for; the others are left to `plan`."""
    flags = {
        "packing_samples": False if arguments.padded else None,
        "micro_train_batch_size": arguments.micro,
        "train_max_tokens_per_gpu": arguments.tokens,
        "use_dynamic_batch": True if arguments.tokens else None,
        "gradient_checkpointing": arguments.checkpointing,
        "use_liger_kernel": arguments.liger,
        "attn_implementation": arguments.attention,
        "lora_rank": arguments.lora or None,
        "param_dtype": None if on_gpu else "fp32",
    }
    return [
        word
        for flag, value in flags.items()
        if value is not None
        for word in (f"--{flag}", str(value).lower())
    ]


def planned(model: Path, load: Load, flags: list[str], gpu: tuple[str, int]) -> Config:
    """The flags of a run on one GPU (its name and its bytes), completed as `plan` does.

    Writes the model's config.json. Raises SystemExit if the GPU has no room for it.
    """
    from contract.resources import NodeResources
    from trainer.cluster.auto_layout.api import complete
    from trainer.config.parse import named_in, parse

    run = {
        **{"pretrain": model, "run_dir": model.parent, "prompt_data": "some/prompts"},
        **{"remote_rm_url": "arithmetic", "advantage_estimator": "group_norm"},
        **{"n_samples_per_prompt": 8, "rollout_batch_size": max(1, load.samples // 8)},
        **{"train_batch_size": load.samples, "max_len": load.length},
        "generate_max_len": load.length // 2,
    }
    argv = [word for name, value in run.items() for word in (f"--{name}", str(value))]
    argv += flags
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2", **shape_of(load)}))
    node = NodeResources(name="node", gpus=1, gpu_model=gpu[0], gpu_memory=gpu[1], cpus=8)
    choice = complete(parse(argv, incomplete=True), named_in(argv), [node])
    if choice.faults:
        raise SystemExit("\n".join(choice.faults))
    print("plan:", *choice.words, flush=True)
    config = parse([*argv, *choice.words])
    if config.sharding.adam_offload:
        raise SystemExit("The optimizer has no room on this GPU. Give --lora, or a smaller --model")
    return config


def trained(model: Path, load: Load, config: Config) -> dict[str, Any]:
    """Medians of the policy's updates on the same samples."""
    import torch

    from tests.support.ragged import learn
    from trainer.algorithms.batching import micro_batches
    from trainer.algorithms.objectives import PolicyObjective
    from trainer.workers.policy import PolicyActor

    settings = models.learner(
        model,
        samples=load.samples,
        longest=load.length,
        mixed_precision=config.mixed_precision,
        gradient_checkpointing=config.gradient_checkpointing,
        liger=config.use_liger_kernel,
        lora=config.lora,
    )
    how = replace(
        settings.model, packing=config.packing_samples, attention=config.attn_implementation
    )
    train = replace(
        settings.train,
        micro_train_batch_size=config.train.micro_train_batch_size,
        use_dynamic_batch=config.train.use_dynamic_batch,
        train_max_tokens_per_gpu=config.train.train_max_tokens_per_gpu,
    )
    actor = PolicyActor(replace(settings, model=how, train=train), PolicyObjective())
    samples = _samples(load)
    limits = actor._scorer.limits(train.micro_train_batch_size, train.max_tokens)
    passes = len(micro_batches(load.lengths, limits))
    seconds, metrics = [], {}
    for step in range(WARM + UPDATES):
        began = time.perf_counter()
        metrics = learn(actor, samples, step)  # it reads the loss: the device has finished
        seconds.append(time.perf_counter() - began)
    middle, tokens = statistics.median(seconds[WARM:]), int(load.lengths.sum())
    return {
        "parameters": load.multiplying,
        "seconds": round(middle, 4),
        "tokens_per_second": round(tokens / middle),
        "memory_gb": round(metrics["policy_update_memory_gb"], 3),
        "samples": load.samples,
        "longest": load.length,
        "tokens": tokens,
        "passes": passes,
        "attention": actor._scorer.attention,
        "gradient_checkpointing": config.gradient_checkpointing,
        "liger": config.use_liger_kernel,
        "lora": load.lora,
        "torch": torch.__version__,
    }


def _samples(load: Load) -> Experience:
    import numpy as np

    from trainer.types import Experience, Sequences

    random, count = np.random.default_rng(0), int(load.lengths.sum())
    tokens = random.integers(3, load.vocabulary, count, dtype=np.int32)
    action_mask = np.ones(count, dtype=np.bool_)
    action_mask[np.cumsum(load.lengths) - load.lengths] = False  # nothing is before a first token
    advantages = random.normal(size=int(action_mask.sum())).astype(np.float32)
    return Experience(
        sequences=Sequences(tokens, load.lengths, action_mask),
        old_log_probs=None,
        advantages=advantages,
        returns=advantages,
    )


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


def shape_of(load: Load) -> dict[str, Any]:
    return {
        "vocab_size": load.vocabulary,
        "hidden_size": load.hidden,
        "intermediate_size": load.intermediate,
        "num_hidden_layers": load.layers,
        "num_attention_heads": load.heads,
        "num_key_value_heads": load.key_heads,
        "tie_word_embeddings": load.tied,
        "max_position_embeddings": load.length,
    }


if __name__ == "__main__":
    sys.exit(main())
