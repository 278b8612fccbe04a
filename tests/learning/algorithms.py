"""Every algorithm of the trainer, as the flags that choose it."""

from __future__ import annotations

from typing import Any

ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {"advantage_estimator": "gae"},
    "REINFORCE++": {"advantage_estimator": "reinforce"},
    "REINFORCE": {
        "advantage_estimator": "reinforce",
        "no_advantage_std_norm": True,
        "init_kl_coef": 0,
    },
    "FlashREINFORCE": {"advantage_estimator": "flash_reinforce", "init_kl_coef": 0},
    "REINFORCE++-baseline": {"advantage_estimator": "reinforce_baseline"},
    "RLOO": {"advantage_estimator": "rloo"},
    "GRPO": {
        "advantage_estimator": "group_norm",
        "loss_aggregation": "sequence",
        "use_kl_loss": True,
        "kl_estimator": "k3",
    },
    "Dr. GRPO": {
        "advantage_estimator": "dr_grpo",
        "loss_aggregation": "constant",
        "init_kl_coef": 0,
    },
    "GSPO": {"advantage_estimator": "group_norm", "policy_loss_type": "gspo", "init_kl_coef": 0},
    "DAPO": {
        "advantage_estimator": "group_norm",
        "loss_aggregation": "token",
        "eps_clip_low_high": (0.2, 0.28),
        "dynamic_filtering": True,
        "init_kl_coef": 0,
    },
}
"""Its name in the literature → what it sets; all else is the trainer's default."""
