"""Settings of the optimizers of policy and critic.

The flat spelling of a flag that both have sets both. Its dotted spellings, which begin with
`actor.` or `critic.`, each set one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.config.schema import Group

SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr")
ONLY_ADAM = "AdamW is the only optimizer; leave it at adam"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """The optimizer of a model, and its learning rate over the run; defaults are the policy's."""

    learning_rate: float = Group.OPTIMIZER.flag(
        1e-6,
        "peak learning rate of the policy",
        name="actor_learning_rate",
        dotted="adam.lr",
        above=0,
    )
    lr_scheduler: str = Group.OPTIMIZER.flag(
        "cosine_with_min_lr",
        "learning rate over the run",
        dotted="lr_scheduler",
        choices=SCHEDULERS,
    )
    lr_warmup_ratio: float = Group.OPTIMIZER.flag(
        0.03,
        "fraction of the run with a rising rate",
        dotted="lr_warmup_ratio",
        at_least=0,
        at_most=1,
    )
    min_lr_ratio: float = Group.OPTIMIZER.flag(
        0.1,
        "last rate of cosine_with_min_lr, as a fraction of the peak",
        dotted="min_lr_ratio",
        at_least=0,
        at_most=1,
    )
    l2: float = Group.OPTIMIZER.flag(
        0.0, "weight decay, not on norms and biases", dotted="adam.weight_decay", at_least=0
    )
    adam_betas: tuple[float, float] = Group.OPTIMIZER.flag(
        (0.9, 0.95), "AdamW's betas", dotted="adam.betas", at_least=0
    )
    max_norm: float = Group.OPTIMIZER.flag(
        1.0, "gradients are clipped to this norm", dotted="max_norm", endless=True, above=0
    )
    adam_eps: float = Group.OPTIMIZER.flag(1e-8, "AdamW's epsilon", dotted="adam.eps", above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptimizerSettings(OptimizerSettings):
    """The critic's optimizer: its learning rate has its own flat spelling and default."""

    learning_rate: float = Group.OPTIMIZER.flag(
        9e-6,
        "peak learning rate of the critic",
        name="critic_learning_rate",
        dotted="adam.lr",
        above=0,
    )


def _muon(name: str, default: Any, meaning: str) -> Any:
    dotted = (f"actor.muon.{name}", f"critic.muon.{name}")
    why = "AdamW is the only optimizer"
    return Group.OPTIMIZER.flag(default, meaning, dotted=dotted, no_effect=why)


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """Flags of other optimizers, which are absent here."""

    optim: str = Group.OPTIMIZER.flag(
        "adam",
        "kind of optimizer",
        dotted=("actor.optim", "critic.optim"),
        choices=("adam", "muon"),
        unsupported=ONLY_ADAM,
    )
    muon_lr: float | None = _muon("lr", None, "peak learning rate of Muon")
    muon_momentum: float | None = _muon("momentum", None, "Muon's momentum")
    muon_ns_steps: int | None = _muon("ns_steps", None, "Muon's Newton-Schulz steps")
    muon_nesterov: bool = _muon("nesterov", False, "use Nesterov momentum in Muon")
    muon_no_nesterov: bool = _muon("no_nesterov", False, "do not use Nesterov momentum in Muon")
