"""Saves the samples of a step that failed to train, for diagnosis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from contract.run_dir import write_atomically
from trainer.types import Sample


def save(directory: Path, step: int, samples: Sequence[Sample]) -> Path:
    """Write a JSON line for each sample: prompt, completion, label, reward. Returns the file."""
    path = directory / f"failed-step-{step}.jsonl"
    write_atomically(path, "".join(json.dumps(_row(sample)) + "\n" for sample in samples))
    return path


def _row(sample: Sample) -> dict[str, object]:
    return {
        "index": sample.prompt.index,
        "prompt": sample.prompt.text,
        "completion": sample.completion.text,
        "label": sample.prompt.label,
        "reward": repr(sample.score.reward),  # JSON has no name for NaN and infinity
        "error": sample.score.error,
        "metrics": {name: repr(value) for name, value in sample.score.metrics.items()},
        "tokens": sample.completion.tokens.tolist(),
        "finished": sample.completion.finished,
    }
