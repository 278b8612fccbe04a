"""Peak memory and time of the log-probability pass at a vocabulary of 150,000, against the model.

The floor is what the model itself holds: its hidden states for the same 4,096 tokens, with no head
at all. Value: peak of the pass above the loaded model / peak of the bare model. Beside it the plain
pass, with float32 logits and log-softmax over the whole vocabulary. Each is measured in a process
of its own, as the growth of its resident peak.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.result import report

VOCABULARY, TOKENS, SAMPLES = 150_000, 4_096, 16
TARGET = 1.3
WAYS = ("model", "plain", "blockwise", "blockwise with entropy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    way = parser.parse_args().way
    if way:
        print(json.dumps(measure(way)))
        return 0
    rows = {way: in_a_process(way) for way in WAYS}
    for name, row in rows.items():
        print(f"{name}: {row['peak_mib']:.0f} MiB, {row['seconds']:.1f} s", flush=True)
    blockwise, plain = rows["blockwise"], rows["plain"]
    faster = blockwise["seconds"] <= plain["seconds"]
    ok = report(
        "memory",
        blockwise["peak_mib"] / rows["model"]["peak_mib"],
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={
            "vocabulary": VOCABULARY,
            "tokens": TOKENS,
            "plain_to_model": round(plain["peak_mib"] / rows["model"]["peak_mib"], 2),
            "seconds_to_plain": round(blockwise["seconds"] / plain["seconds"], 3),
            **rows,
        },
        besides=faster,
    )
    return 0 if ok else 1


def in_a_process(way: str) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    command = [sys.executable, "-m", "bench.memory", "--way", way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(way: str) -> dict[str, float]:
    """Growth of the resident peak in MiB, and seconds."""
    import numpy as np
    import torch

    from tests.support.ragged import sequences_of
    from trainer.models.causal_lm import LogProbModel
    from trainer.models.loading import prepare_process
    from trainer.models.settings import ModelSettings

    device = prepare_process()
    model = a_model()
    wanted = ModelSettings(
        model="", mixed_precision=False, micro_batch_size=SAMPLES, temperature=0.9
    )
    scorer = LogProbModel(model, device, wanted)
    length = TOKENS // SAMPLES + 1  # an action's logits come from the token before it
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (SAMPLES, length))
    action_mask = np.broadcast_to(np.arange(length) > 0, tokens.shape)
    batch = sequences_of(tokens, [length] * SAMPLES, action_mask)
    scorer(batch.rows(np.arange(1)))  # what is made once and kept is none of the pass's
    with torch.inference_mode():
        before, began = reset_peak(), time.perf_counter()
        if way == "model":
            scorer._forward.states(batch)
        elif way == "plain":
            logits = model(input_ids=torch.from_numpy(tokens[:, :-1].copy())).logits.float() / 0.9
            chosen = torch.from_numpy(tokens[:, 1:, None].copy())
            logits.log_softmax(-1).gather(-1, chosen)
        else:
            scorer(batch, entropy="entropy" in way)
        seconds = time.perf_counter() - began
    return {"peak_mib": (peak() - before) / 1024, "seconds": seconds}


def a_model() -> Any:
    """Of half a billion parameters' shape, with fewer layers: without gradients one counts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=2,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def reset_peak() -> int:
    """Let the kernel count the peak from here. Returns what is resident now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """KiB"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
