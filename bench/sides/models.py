"""Models with random weights, and the trainer's settings for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "tie_word_embeddings"),
)
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(KEYS, values, strict=True))
    for name, values in {
        "tiny": (1_024, 128, 512, 2, 4, 2, True),
        "0.5B": (151_936, 896, 4_864, 24, 14, 2, True),
        "1.5B": (151_936, 1_536, 8_960, 28, 12, 2, True),
        "7B": (152_064, 3_584, 18_944, 28, 28, 4, False),
    }.items()
}
"""Shapes of Qwen2.5's models, from their config.json, and a tiny one for CPUs."""


def write(directory: Path, *, loud: float = 1.0, **shape: Any) -> Path:
    """A Qwen2 of this shape with a tokeniser of bytes; transformers' names.

    `loud`: factor of the logits. A trained model's are larger than random weights make them.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from env.prepare.model import write_model
    from env.prepare.tiny_model import TinyModel

    write_model(TinyModel(hidden_size=16, layers=1, heads=2), None, directory)
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2", **{"tie_word_embeddings": True, **shape})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight *= loud
    model.save_pretrained(directory)
    return directory


def learner(model: Path, *, samples: int, longest: int, **changes: Any) -> Any:
    """LearnerSettings in which nothing is chosen that a benchmark is about."""
    from tests.support.train_settings import take_train_settings
    from trainer.config.options.optimizer import OptimizerSettings
    from trainer.models.settings import ModelSettings
    from trainer.workers.settings import LearnerSettings

    settings = {
        "train_batch_size": samples,
        "micro_train_batch_size": samples,
        "loss_aggregation": "token",
        "longest": longest,
        "max_epochs": 1,
        "seed": 0,
        "gradient_checkpointing": False,
        **changes,
    }
    return LearnerSettings(
        model=ModelSettings(
            model=str(model),
            mixed_precision=settings.pop("mixed_precision", False),
            micro_batch_size=samples,
            temperature=1.0,
            liger=settings.pop("liger", False),
        ),
        optimizer=OptimizerSettings(
            learning_rate=1e-5,
            lr_scheduler="constant",
            lr_warmup_ratio=0.0,
            l2=0.0,
            max_norm=1.0,
        ),
        train=take_train_settings(settings),
        updates=1,
        **settings,
    )
