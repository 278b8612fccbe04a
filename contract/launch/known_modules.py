"""Pure: the modules that other trainers are started by, for a Python that does not have them."""

from __future__ import annotations

from contract.options import nearest

MODULES: tuple[str, ...] = (
    *(f"openrlhf.cli.train_{name}" for name in ("ppo_ray", "ppo", "sft", "rm", "dpo", "kto", "kd")),
    *(f"openrlhf.cli.{name}" for name in ("train_prm", "serve_rm", "lora_combiner")),
    *("openrlhf.cli.batch_inference", "openrlhf.cli.interactive_chat"),
    *(f"verl.trainer.main_{name}" for name in ("ppo", "eval", "generation", "generation_server")),
    *("verl.trainer.sft_trainer", "verl.trainer.sft_trainer_ray", "verl.trainer.fsdp_sft_trainer"),
    "verl.trainer.main_ppo_sync",
    "verl.experimental.fully_async_policy.fully_async_main",
    "verl.experimental.one_step_off_policy.main_ppo",
    "recipe.dapo.main_dapo",
    *(f"trl.scripts.{name}" for name in ("dpo", "grpo", "kto", "reward", "rloo", "sft")),
)
"""Those of the newest releases, and of releases before them."""
SAME = 0.84
"""difflib's ratio from which a name counts as a mistyped one: `serve_llm` is not `serve_rm`."""


def mistyped(module: str) -> str:
    """Return the known module that a name is most like; "" if it is one itself, or is like none."""
    if module in MODULES:
        return ""
    near = nearest(module, MODULES, cutoff=SAME)
    last, own = near.rpartition(".")[2], module.rpartition(".")[2]
    swapped = sorted(last) == sorted(own)
    return near if swapped or nearest(own, [last], cutoff=SAME) else ""
