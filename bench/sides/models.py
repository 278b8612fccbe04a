"""Models with random weights, and the trainer's settings for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHAPES = {
    "tiny": {
        **{"vocab_size": 1_024, "hidden_size": 128, "intermediate_size": 512},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    },
    "0.5B": {
        **{"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4_864},
        **{"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    },
    "1.5B": {
        **{"vocab_size": 151_936, "hidden_size": 1_536, "intermediate_size": 8_960},
        **{"num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
    },
    "7B": {
        **{"vocab_size": 152_064, "hidden_size": 3_584, "intermediate_size": 18_944},
        **{"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
        "tie_word_embeddings": False,
    },
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
