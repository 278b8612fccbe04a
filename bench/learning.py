"""Reward per sample of the builtin GRPO against TRL's, on a bandit: the share of one digit.

Both have the same model directory, prompts, batch (32 prompts x 8 completions, two updates with all
of it), AdamW, constant learning rate, clip range and no KL; the loss is the mean over the batch's
tokens (TRL's `dapo`), the advantage (r - mean) / (std + epsilon) within a prompt. What differs is
epsilon, 1e-9 here and 1e-4 in TRL, and the random numbers drawn from a seed. The value is the
median over seeds of the ratio of the areas under the curves of reward over samples.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.result import report
from env.http.arguments import positive
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import RewardRequest, Score
from tests.support.local_workers import LocalLauncher
from trainer.cluster.stop import StopRequest
from trainer.config.parse import parse
from trainer.rollout import prompts as data
from trainer.training import loop
from trainer.training.inputs import TrainingInputs
from trainer.workers import groups

TARGET = 0.97
"""1.0, less noise: one trainer's areas differ between seeds by about 1 % (standard deviation)."""
PROMPTS, COMPLETIONS, EPOCHS, LONGEST = 32, 8, 2, 8
BATCHES = 24
LEARNING_RATE = 5e-3
BETAS = (0.9, 0.999)

Curve = list[float]
"""Mean reward of each batch, in order."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=positive, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    with tempfile.TemporaryDirectory(prefix="rollcall-learning-") as directory:
        root = Path(directory)
        prepare(root)
        ours = [quietly(with_rollcall, root, seed) for seed in seeds]
        theirs = [quietly(with_trl, root, seed) for seed in seeds]
    show(ours, theirs)
    areas = [(statistics.fmean(a), statistics.fmean(b)) for a, b in zip(ours, theirs, strict=True)]
    ok = report(
        "learning",
        statistics.median(our / their for our, their in areas),
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={
            "rollcall_areas": [round(our, 4) for our, _ in areas],
            "trl_areas": [round(their, 4) for _, their in areas],
            "samples": BATCHES * PROMPTS * COMPLETIONS,
        },
    )
    return 0 if ok else 1


def prepare(root: Path) -> None:
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, "0123456789+=", root / "model")
    prompts = [json.dumps({"prompt": f"{n}+1="}) for n in range(3 * PROMPTS)]
    (root / "prompts.jsonl").write_text("\n".join(prompts) + "\n")


def quietly(run: Callable[[Path, int], Curve], root: Path, seed: int) -> Curve:
    with contextlib.redirect_stdout(io.StringIO()):
        curve = run(root, seed)
    assert len(curve) == BATCHES
    return curve


def share_of_ones(texts: Sequence[str]) -> list[float]:
    return [text.count("1") / max(1, len(text)) for text in texts]


def with_rollcall(root: Path, seed: int) -> Curve:
    curve: Curve = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        shares = share_of_ones([request.response for request in requests])
        curve.append(statistics.fmean(shares))
        return [Score.of(share) for share in shares]

    samples = str(PROMPTS * COMPLETIONS)
    config = parse(
        [
            *("--pretrain", str(root / "model"), "--prompt_data", str(root / "prompts.jsonl")),
            *("--input_key", "prompt", "--run_dir", str(root / f"run-{seed}")),
            *("--remote_rm_url", "arithmetic"),  # must be named; the loop is handed another
            *("--advantage_estimator", "group_norm", "--init_kl_coef", "0"),
            *("--loss_aggregation", "token", "--eps_clip", "0.2"),
            *("--rollout_batch_size", str(PROMPTS), "--n_samples_per_prompt", str(COMPLETIONS)),
            *("--micro_rollout_batch_size", samples, "--generate_max_len", str(LONGEST)),
            *("--train_batch_size", samples, "--micro_train_batch_size", samples),
            *("--max_epochs", str(EPOCHS), "--max_steps", str(BATCHES), "--seed", str(seed)),
            *("--actor_learning_rate", str(LEARNING_RATE), "--lr_scheduler", "constant"),
            *("--lr_warmup_ratio", "0", "--adam_betas", *map(str, BETAS), "--max_norm", "1"),
        ]
    )
    config.files.root.mkdir()
    prompts = data.load(config)
    workers = groups.assemble(config, BATCHES, LocalLauncher())
    loop.train(config, workers, TrainingInputs(prompts, reward), StopRequest())
    return curve


def with_trl(root: Path, seed: int) -> Curve:
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    curve: Curve = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        shares = share_of_ones(completions)
        curve.append(statistics.fmean(shares))
        return shares

    disable_progress_bars()
    arguments = GRPOConfig(
        output_dir=str(root / f"trl-{seed}"),
        loss_type="dapo",
        scale_rewards="group",
        beta=0.0,
        epsilon=0.2,
        num_generations=COMPLETIONS,
        num_iterations=EPOCHS,
        per_device_train_batch_size=PROMPTS * COMPLETIONS,
        max_steps=BATCHES * EPOCHS,
        max_completion_length=LONGEST,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=1.0,
        model_init_kwargs={"dtype": torch.float32},
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(root / "model"),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_json(str(root / "prompts.jsonl"), keep_in_memory=True),
        processing_class=AutoTokenizer.from_pretrained(root / "model", padding_side="left"),
    )
    trainer.train()
    return curve


def show(ours: list[Curve], theirs: list[Curve]) -> None:
    print("samples  rollcall   TRL   (mean reward of the batch, over seeds)")
    for batch in range(BATCHES):
        mine, other = (statistics.fmean(c[batch] for c in curves) for curves in (ours, theirs))
        print(f"{(batch + 1) * PROMPTS * COMPLETIONS:7}  {mine:8.3f} {other:5.3f}")


if __name__ == "__main__":
    sys.exit(main())
