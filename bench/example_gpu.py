"""Steps of the 0.5 B example on one GPU, and of TRL's GRPO on the same prompts.

Both sides have the example's algorithm and sizes: GRPO with a KL to the reference in the loss, 64
prompts of eight samples a step, two updates of 256. Weights are random, in the shape of
Qwen2.5-0.5B, so that no completion ends before its limit: both sides write and learn from as many
tokens. The builtin trainer runs as in a job, with the layout that `rollcall plan` chooses; TRL with
bf16, vLLM on the same GPU and its sleep.

Value: median seconds of a step, without the first two. Without a GPU tiny models run on the CPU,
TRL without vLLM, to see that both sides run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models, task
from bench.step import started
from env.http.arguments import positive

WARM, SAMPLES, UPDATES = 2, 8, 2
LENGTH = 100
"""Tokens of a prompt: bytes."""
LONGEST_STEP = 120.0
"""Seconds: the example's stage of `gpu_hour.sh` would not end in its time."""
NO_GPU = "a GPU: a tiny model is trained on a CPU"


@dataclass(frozen=True, slots=True)
class Work:
    """A folder with a model, prompts and a reward; the sizes of a run."""

    root: str
    prompts: int
    longest: int
    steps: int

    @property
    def folder(self) -> Path:
        return Path(self.root)

    @property
    def samples(self) -> int:
        return self.prompts * SAMPLES


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.work:
        trl(Work(**json.loads(arguments.work)))
        return 0
    import torch

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="rc-example-") as directory:
        work = Work(directory, arguments.prompts, arguments.longest, arguments.steps)
        written(work, models.SHAPES[arguments.model])
        if arguments.side == "builtin":
            rows = builtin(work, gpu_of(torch) if on_gpu else None)
        else:
            started(["bench.example_gpu", "--work", json.dumps(asdict(work))], work.folder / "log")
            rows = json.loads((work.folder / "trl.json").read_text())
    steady = rows[min(WARM, len(rows) - 1) :]
    for row in rows:
        print(row, flush=True)
    report(
        "example_gpu",
        statistics.median(row["seconds"] for row in steady),
        unit="s",
        target=LONGEST_STEP,
        better="lower",
        detail={"side": arguments.side, "model": arguments.model, "rows": rows},
        lacking="" if on_gpu else NO_GPU,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("builtin", "trl"), default="builtin")
    parser.add_argument("--model", choices=models.SHAPES, default="0.5B")
    parser.add_argument("--prompts", type=positive, default=64, help="of a step")
    parser.add_argument("--longest", type=positive, default=512, help="tokens of a completion")
    parser.add_argument("--steps", type=positive, default=8)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser


def gpu_of(torch: Any) -> tuple[str, int]:
    """Name and bytes of the GPU."""
    return torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory


def written(work: Work, shape: dict[str, Any]) -> None:
    room = LENGTH + work.longest + 8
    models.write(work.folder / "model", **shape, max_position_embeddings=room)
    rows = (f"{number:05d} ".ljust(LENGTH, "x") for number in range(work.prompts * work.steps))
    lines = [json.dumps({"prompt": row}) + "\n" for row in rows]
    (work.folder / "prompts.jsonl").write_text("".join(lines))
    (work.folder / "reward.py").write_text(task.REWARD)


def builtin(work: Work, gpu: tuple[str, int] | None) -> list[dict[str, Any]]:
    """Metrics of each step of the trainer. `gpu`: its name and bytes; None: on a CPU."""
    run = work.folder / "run"
    flags = {
        **{"pretrain": work.folder / "model", "prompt_data": work.folder / "prompts.jsonl"},
        **{"input_key": "prompt", "remote_rm_url": work.folder / "reward.py", "run_dir": run},
        **{"advantage_estimator": "group_norm", "n_samples_per_prompt": SAMPLES},
        **{"rollout_batch_size": work.prompts, "train_batch_size": work.samples // UPDATES},
        **{"prompt_max_len": LENGTH + 4, "generate_max_len": work.longest},
        **{"actor_learning_rate": 1e-6, "init_kl_coef": 0.001, "use_kl_loss": "true"},
        **{"kl_estimator": "k3", "max_steps": work.steps, "disable_ds_ckpt": "true"},
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    if gpu:
        words += chosen(words, *gpu)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray:
        started(["trainer", *words], work.folder / "log", RAY_TMPDIR=ray)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {
            "seconds": row["timing/step"],
            **{name: row[name] for name in row if name.startswith(("timing/", "memory/"))},
            "mean_length": row["train/response_length"],
            "tokens_per_second": row["perf/tokens_per_second"],
        }
        for row in lines
        if "timing/step" in row
    ]


def chosen(words: list[str], name: str, memory: int) -> tuple[str, ...]:
    """The flags that `rollcall plan` chooses for this GPU."""
    import os

    from contract.resources import NodeResources
    from trainer.cluster.auto_layout.api import complete
    from trainer.config.parse import named_in, parse

    cpus = os.cpu_count() or 1
    node = NodeResources(name="node", gpus=1, gpu_model=name, gpu_memory=memory, cpus=cpus)
    choice = complete(parse(words, incomplete=True), named_in(words), [node])
    if choice.faults:
        raise SystemExit("\n".join(choice.faults))
    print("plan:", *choice.words, flush=True)
    return tuple(choice.words)


def trl(work: Work) -> None:
    """TRL's GRPO, in a process of its own; writes a row for each step of the builtin's size."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    space: dict[str, Any] = {}
    exec((work.folder / "reward.py").read_text(), space)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [space["share"](completion) for completion in completions]

    ends: list[float] = []

    class Times(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    on_gpu = torch.cuda.is_available()
    each = min(8, work.samples // UPDATES)
    config = GRPOConfig(
        output_dir=str(work.folder / "trl"),
        per_device_train_batch_size=each,
        gradient_accumulation_steps=work.samples // UPDATES // each,
        generation_batch_size=work.samples,
        num_generations=SAMPLES,
        max_completion_length=work.longest,
        learning_rate=1e-6,
        beta=0.001,
        max_steps=work.steps * UPDATES,
        use_vllm=on_gpu,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.5,
        vllm_enable_sleep_mode=on_gpu,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
    )
    rows = [json.loads(line) for line in (work.folder / "prompts.jsonl").read_text().splitlines()]
    trainer = GRPOTrainer(
        str(work.folder / "model"), reward, args=config, train_dataset=Dataset.from_list(rows)
    )
    trainer.add_callback(Times())
    began = time.perf_counter()
    trainer.train()
    starts = [began, *ends[UPDATES - 1 :: UPDATES]]
    logged = [row for row in trainer.state.log_history if "completions/mean_length" in row]
    found = [
        {"seconds": end - start, "mean_length": row["completions/mean_length"]}
        for start, end, row in zip(starts, starts[1:], logged, strict=False)
    ]
    for row in found:
        row["tokens_per_second"] = work.samples * (LENGTH + row["mean_length"]) / row["seconds"]
    (work.folder / "trl.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
