"""vLLM's decoding on one GPU: tokens a second, its thread's share, the mismatch with the trainer.

Requests of eight samples a prompt are decoded by the trainer's engine, with random weights in the
shape of a Qwen2.5 and the logits of a trained model. For each number of requests a row has:

- tokens a second, and the engine's CPU milliseconds a step: of its thread, of them beside the
  model, and of these in vLLM's output processor, which builds the outputs. `--output delta` builds
  one a request and step, as vLLM does by default; `final_only` one a request, as the trainer's
  engine asks for.
- the difference of the log-probabilities that the engine and the trainer give to the sampled
  tokens, in nats: mean of its magnitude, and largest.

Value: tokens a second of the last row. `--prefix-caching` and `--head` are the engine's settings.
Without a GPU a tiny model decodes on the CPU: only the milliseconds beside the model and the
mismatch say something.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench.result import report
from bench.sides import models
from env.http.arguments import positive

SAMPLES = 8
"""Of a prompt."""
LOUD = 8.0
"""Of the logits: their deviation is then some 5, and their largest some 25."""
SCORED = 64
"""Samples of which the trainer gives the log-probabilities, too."""
NO_GPU = "a GPU: this decodes on a CPU, so that tokens a second say nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    requests: int
    prompt: int
    """Tokens."""
    tokens: int
    """Of a completion."""


def main() -> int:
    arguments = _parser().parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    shape = arguments.model or ("1.5B" if on_gpu else "tiny")
    prompt = arguments.prompt or (256 if on_gpu else 16)
    tokens = arguments.tokens or (1024 if on_gpu else 16)
    loads = [Load(requests=n, prompt=prompt, tokens=tokens) for n in arguments.requests]
    with tempfile.TemporaryDirectory(prefix="rc-rollout-gpu-") as directory:
        longest = max(512, prompt + tokens)
        model = models.write(
            Path(directory) / "model",
            loud=LOUD,
            **models.SHAPES[shape],
            max_position_embeddings=longest,
        )
        rows, mismatch = measured(model, loads, arguments)
    for row in rows:
        print(row, flush=True)
    detail = {"model": shape, "device": device_name(torch), "rows": rows, "mismatch": mismatch}
    settings = {n: getattr(arguments, n) for n in ("output", "prefix_caching", "head", "precision")}
    report(
        "rollout_gpu",
        rows[-1]["tokens_per_second"],
        unit="tokens/s",
        target=0,
        better="higher",
        detail=detail | settings,
        lacking="" if on_gpu else NO_GPU,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=models.SHAPES, help="default: 1.5B; tiny on a CPU")
    parser.add_argument("--requests", type=positive, nargs="+", default=[128, 256, 512])
    parser.add_argument("--prompt", type=positive, help="tokens of a prompt; default: 256, CPU 16")
    parser.add_argument("--tokens", type=positive, help="of a completion; default: 1024, CPU 16")
    parser.add_argument("--output", choices=("final_only", "delta"), default="final_only")
    parser.add_argument("--prefix-caching", choices=("on", "off"), default="on")
    parser.add_argument("--head", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--no-mismatch", action="store_true", help="leave the trainer out")
    return parser


def device_name(torch: Any) -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def measured(
    model: Path, loads: list[Load], arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, float] | None]:
    """A row for each load, and the mismatch of some samples; None if it is not wanted."""
    from trainer.config.options.parallelism import VLLMSettings
    from trainer.config.options.rollout import SamplingSettings
    from trainer.rollout import vllm_engine
    from trainer.rollout.engine import EngineSettings

    longest = max(load.tokens for load in loads)
    settings = EngineSettings(
        model=str(model),
        add_special_tokens=False,
        prompt_max_len=max(load.prompt for load in loads) + 1,
        sampling=SamplingSettings(max_new_tokens=longest),
        mixed_precision=arguments.precision == "bf16",
        slots=64,
        vllm=VLLMSettings(
            sync_backend="shared_memory",
            enable_prefix_caching=arguments.prefix_caching == "on",
            gpu_memory_utilization=0.5 if on_gpu() else None,
            enforce_eager=not on_gpu(),
            head_dtype=arguments.head,
        ),
    )
    known, most = vllm_engine.arguments, max(load.requests for load in loads)
    # On CPUs vLLM would decode 256 at a time; on a large GPU it takes 1024.
    more = {} if on_gpu() else {"max_num_seqs": most}
    with mock.patch.object(vllm_engine, "arguments", lambda settings: known(settings) | more):
        engine = vllm_engine.VLLMEngine(settings)
    decode(engine, replace(loads[0], tokens=8), arguments.output)  # compiles, and fills caches
    rows = [decode(engine, load, arguments.output) for load in loads]
    return rows, None if arguments.no_mismatch else mismatch_of(engine, settings, loads[0])


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def decode(engine: Any, load: Load, output: str) -> dict[str, Any]:
    """Decode the load to its end, by vLLM's own steps."""
    import numpy as np
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    steps, core = 0, engine._llm.llm_engine
    random = np.random.default_rng(load.requests)
    prompts = random.integers(3, 250, (-(-load.requests // SAMPLES), load.prompt)).tolist()
    params = SamplingParams(
        temperature=1.0,
        max_tokens=load.tokens,
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind[output.upper()],
    )
    for number in range(load.requests):
        prompt = {"prompt_token_ids": prompts[number // SAMPLES]}
        core.add_request(f"{load.tokens}-{load.requests}-{number}", prompt, params)
    executor = core.engine_core.engine_core.model_executor
    with (
        Watched(core.output_processor, "process_outputs") as outputs,
        Watched(executor, "execute_model", "sample_tokens") as computing,
    ):
        began, cpu = time.perf_counter(), time.thread_time()
        while core.has_unfinished_requests():
            core.step()
            steps += 1
        seconds, thread = time.perf_counter() - began, time.thread_time() - cpu
    return {
        "requests": load.requests,
        "steps": steps,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(load.requests * load.tokens / seconds, 1),
        "thread_ms_a_step": round(1000 * thread / steps, 3),
        "beside_model_ms_a_step": round(1000 * (thread - computing.seconds) / steps, 3),
        "output_ms_a_step": round(1000 * outputs.seconds / steps, 3),
        "thread_share": round(thread / seconds, 3),
    }


class Watched:
    """Adds up the CPU time of some methods of an object while it is entered."""

    def __init__(self, watched: Any, *methods: str) -> None:
        self._patches = [
            mock.patch.object(watched, name, self._timed(getattr(watched, name)))
            for name in methods
        ]
        self.seconds = 0.0

    def __enter__(self) -> Watched:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _timed(self, known: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **given: Any) -> Any:
            began = time.thread_time()
            try:
                return known(*args, **given)
            finally:
                self.seconds += time.thread_time() - began

        return timed


def mismatch_of(engine: Any, settings: Any, load: Load) -> dict[str, float]:
    """How far engine and trainer are apart, in nats of a sampled token."""
    import numpy as np
    import torch

    from tests.support.ragged import part_of
    from trainer.config.options.rollout import SamplingSettings
    from trainer.models.causal_lm import LogProbModel
    from trainer.models.loading import load_causal_lm
    from trainer.models.settings import ModelSettings
    from trainer.types import Request, Sequences

    seeds = range(min(SCORED, load.requests) // SAMPLES or 1)
    requests = [Request(f"{n} + {n} = ", tuple(seeds)) for n in range(SAMPLES)]
    written = engine.generate(requests, SamplingSettings(max_new_tokens=load.tokens))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = torch.bfloat16 if settings.mixed_precision else torch.float32
    wanted = ModelSettings(
        model=settings.model,
        mixed_precision=settings.mixed_precision,
        micro_batch_size=8,
        temperature=1.0,
    )
    model = load_causal_lm(settings.model, kind).to(device).eval()
    sequences = Sequences.collate(written)
    assert sequences.rollout_log_probs is not None
    with torch.no_grad():
        scored = LogProbModel(model, device, wanted).log_probs(part_of(sequences))
    apart = scored - sequences.rollout_log_probs
    return {
        "tokens": len(scored),
        "log_prob": round(float(scored.mean()), 4),
        "mean": round(float(np.abs(apart).mean()), 6),
        "worst": round(float(np.abs(apart).max()), 6),
    }


if __name__ == "__main__":
    sys.exit(main())
