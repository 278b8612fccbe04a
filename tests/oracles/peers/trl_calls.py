"""TRL's own GRPO and RLOO on numpy arrays; [B, T] arrays are aligned with the action mask.

The trainers' methods are called on a namespace with the options that they read. It has what a
model, an engine and a reward function would have said; what TRL makes of it is TRL's own.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import selective_log_softmax_and_entropy

Array = NDArray[np.generic]
Answer = dict[str, Any]

ACCELERATOR = Accelerator(cpu=True)


def trainer(**options: Any) -> SimpleNamespace:
    """What both methods of both trainers read, with one process and no optional extra."""
    common = {
        "accelerator": ACCELERATOR,
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "current_gradient_accumulation_steps": 1,
        "args": SimpleNamespace(
            per_device_train_batch_size=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
            steps_per_generation=1,
            use_bias_correction_kl=False,
            delta=None,
        ),
        "num_iterations": 2,  # so that it computes the old log-probabilities
        "beta": 0.0,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "use_adaptive_entropy": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "mask_truncated_completions": False,
        "pad_to_multiple_of": None,
        "multi_objective_aggregation": "sum_then_normalize",
        "reward_weights": torch.ones(1),
        "reward_clip_range": None,
        "normalize_advantages": False,
        "reward_func_names": ["reward"],
        "log_multimodal": False,
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_logs": defaultdict(list) | {"rewards": defaultdict(list)},
        "_pending_extra_logs": {},
        "_pending_metrics": {},
    }
    return SimpleNamespace(**common | options)


def scores(
    algorithm: str,
    rewards: Array,
    action_mask: Array,
    log_probs: Array,
    rollout_log_probs: Array,
    options: dict[str, Any],
) -> Answer:
    """[B] advantages and the factors [B, T] or [B, 1] that correct for the engine.

    From _generate_and_score_completions of "grpo" or "rloo"; `rewards` [B], or [B, K] of K
    functions, with NaN for unknown.
    """
    rows = list(map(list, np.ones(action_mask.shape, dtype=np.int64)))
    written: tuple[Any, ...] = (rows, rows)
    if "reward_weights" in options:
        options = options | {"reward_weights": torch.tensor(options["reward_weights"])}
    if algorithm == "grpo":
        written += (list(map(list, action_mask.astype(np.int64))),)
    written += ([""] * len(rows),)
    if algorithm == "grpo":
        written += (list(map(list, rollout_log_probs)), {}, None, None)
    known = trainer(
        _generate=lambda _: written,
        _calculate_rewards=lambda *_: torch.tensor(rewards).reshape(len(rows), -1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (torch.tensor(log_probs), None, None),
        **options,
    )
    method = {"grpo": GRPOTrainer, "rloo": RLOOTrainer}[algorithm]._generate_and_score_completions
    output = method(known, [{"prompt": ""}] * len(rows))
    factors = output.get("importance_sampling_ratio")
    return {
        "advantages": output["advantages"].numpy(),
        "factors": None if factors is None else factors.numpy(),
    }


def grpo_loss(
    log_probs: Array, entropy: Array, arrays: dict[str, Array], options: dict[str, Any]
) -> Answer:
    """GRPOTrainer._compute_loss of a step that is one batch, with its gradients."""
    now = torch.tensor(log_probs).requires_grad_()
    spread = torch.tensor(entropy).requires_grad_()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    mask = given.pop("action_mask").to(torch.int64)
    inputs = given | {
        "prompt_ids": torch.ones((len(mask), 1), dtype=torch.int64),
        "prompt_mask": torch.ones((len(mask), 1), dtype=torch.int64),
        "completion_ids": torch.ones_like(mask),
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "num_items_in_batch": mask.sum(),
    }
    known = trainer(_get_per_token_logps_and_entropies=lambda *_, **__: (now, spread, None))
    vars(known.args).update(options.pop("args", {}))
    vars(known).update(options)
    loss = GRPOTrainer._compute_loss(known, None, inputs)
    gradients = torch.autograd.grad(loss, [now, spread], allow_unused=True, materialize_grads=True)
    return {
        "value": loss.item(),
        "gradient": gradients[0].numpy(),
        "entropy_gradient": gradients[1].numpy(),
        "metrics": {name: values[-1] for name, values in known._metrics["train"].items()},
    }


def log_probs_and_entropy(
    logits: Array, labels: Array, temperature: float, shares: tuple[Array, Array]
) -> Answer:
    """[N] each, of logits [N, V]; the gradient is that of their sums weighted by `shares`."""
    plain = torch.tensor(logits).requires_grad_()
    log_probs, entropy = selective_log_softmax_and_entropy(
        plain, torch.tensor(labels), temperature=temperature
    )
    total = log_probs @ torch.tensor(shares[0]) + entropy @ torch.tensor(shares[1])
    return {
        "log_probs": log_probs.detach().numpy(),
        "entropy": entropy.detach().numpy(),
        "gradient": torch.autograd.grad(total, plain)[0].numpy(),
    }
