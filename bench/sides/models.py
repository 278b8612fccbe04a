"""Models with random weights, and the trainer's settings for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(directory: Path, **shape: Any) -> Path:
    """A Qwen2 of this shape with a tokeniser of bytes; transformers' names."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from env.prepare.model import write_model
    from env.prepare.tiny_model import TinyModel

    write_model(TinyModel(hidden_size=16, layers=1, heads=2), None, directory)
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2", **{"tie_word_embeddings": True, **shape})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
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
