"""Where invented people live: data, an index, a policy that seldom searches, and a run's flags."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from env.prepare.__main__ import main as prepare
from tests.support.examples import EXAMPLES
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised.__main__ import main as supervised

DATA = ("pretrain", "prompt_data", "eval_dataset", "input_key", "label_key")
FLAGS: dict[str, Any] = {
    name: value
    for name, value in yaml.safe_load((EXAMPLES / "search.yaml").read_text()).items()
    if name not in DATA
}
"""As examples/search.yaml has them."""
WARM_UP = {"max_epochs": 3, "max_len": 64, "learning_rate": 4e-3}
SMALL = ("--passages", "3000", "--train-size", "1000", "--eval-size", "64")


def make(root: Path, *sizes: str, warm_up: int = 400) -> Tiny:
    """Make data, `index`, and a policy that has been shown how to search and how to guess.

    `sizes`: flags of the task. `warm_up`: supervised steps.
    """
    assert prepare(["people", "--out", str(root), *sizes]) == 0
    corpus, index = str(root / "corpus.jsonl"), str(root / "index")
    assert prepare(["index", "--corpus", corpus, "--out", index]) == 0
    flags = {"pretrain": root / "model", "dataset": root / "warmup.jsonl", **WARM_UP}
    flags |= {"save_path": root / "warm", "max_steps": warm_up}
    assert supervised(["sft", *to_argv(flags)]) == 0
    return Tiny(root / "warm", root / "train.jsonl", root / "eval.jsonl")


def serve(root: Path, port: int) -> str:
    """Return the command that serves the index."""
    return f"{sys.executable} -m entrypoint serve-retriever --index {root / 'index'} --port {port}"


def arguments(*urls: str) -> str:
    """Return what --environment_args takes."""
    return json.dumps({"url": ",".join(urls), "topk": 1})


def assert_searching_was_learned(rows: Sequence[Mapping[str, Any]]) -> None:
    """`rows`: of metrics.jsonl."""
    for name, first, last in (("train/searched", 0.4, 0.9), ("train/reward", 0.2, 0.35)):
        values = [row[name] for row in rows if name in row]
        print(
            f"{name}: {values[0]:.2f} in the first step, {fmean(values[-5:]):.2f} in the last five"
        )
        assert values[0] < first
        assert fmean(values[-5:]) > last
    before, *_, after = [row["eval/pass1"] for row in rows if "eval/pass1" in row]
    print(f"right answers to held-out questions: {before:.0%} before, {after:.0%} after")
    assert before < 0.2
    assert after > 0.8
