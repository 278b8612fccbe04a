r"""A reward of your own: right digits count, and each digit too many costs a tenth.

python -m trainer --config examples/tiny.yaml --remote_rm_url examples/own_reward.py:reward \
    --run_dir runs/own-reward

On a GPU: gsm8k-0.5b-one-gpu.yaml in place of tiny.yaml. Two other forms are in docs/python.md, for
a program that calls `train`, and in docs/data-and-rewards.md, for OpenRLHF's `reward_func`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def reward(
    completions: Sequence[str],
    answer: Sequence[str],
    log_metric: Callable[[str, float], None],
    **columns: object,
) -> list[float]:
    """Return one number for each completion. `answer` is a column of the data, as `columns` are.

    This is TRL's protocol: a reward function of TRL runs as it is.
    """
    scores = [score(text, right) for text, right in zip(completions, answer, strict=True)]
    log_metric("exact", scores.count(1.0) / len(scores))  # train/exact among the metrics of a step
    return scores


def score(text: str, right: str) -> float:
    """Return 1 for the right digits alone, and less the more of them are wrong."""
    same = sum(a == b for a, b in zip(text, right, strict=False))
    return same / len(right) - 0.1 * max(0, len(text) - len(right))
