"""Settings of the optimizers of policy and critic.

The flat spelling of a flag that both have sets both. Its dotted spellings, which begin with
`actor.` or `critic.`, each set one.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import OPTIMIZER, flag

SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr")
NO_MUON = "AdamW is the only optimizer"
ONLY_ADAM = "AdamW is the only optimizer; leave it at adam"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """The optimizer of a model, and its learning rate over the run; defaults are the policy's."""

    learning_rate: float = flag(
        1e-6,
        name="actor_learning_rate",
        group=OPTIMIZER,
        dotted="adam.lr",
        above=0,
        help="peak learning rate of the policy",
    )
    lr_scheduler: str = flag(
        "cosine_with_min_lr",
        group=OPTIMIZER,
        dotted="lr_scheduler",
        choices=SCHEDULERS,
        help="learning rate over the run",
    )
    lr_warmup_ratio: float = flag(
        0.03,
        group=OPTIMIZER,
        dotted="lr_warmup_ratio",
        at_least=0,
        at_most=1,
        help="fraction of the run with a rising rate",
    )
    min_lr_ratio: float = flag(
        0.1,
        group=OPTIMIZER,
        dotted="min_lr_ratio",
        at_least=0,
        at_most=1,
        help="last rate of cosine_with_min_lr, as a fraction of the peak",
    )
    l2: float = flag(
        0.0,
        group=OPTIMIZER,
        dotted="adam.weight_decay",
        at_least=0,
        help="weight decay, not on norms and biases",
    )
    adam_betas: tuple[float, float] = flag(
        (0.9, 0.95), group=OPTIMIZER, dotted="adam.betas", at_least=0, help="AdamW's betas"
    )
    max_norm: float = flag(
        1.0,
        group=OPTIMIZER,
        dotted="max_norm",
        endless=True,
        above=0,
        help="gradients are clipped to this norm",
    )
    adam_eps: float = flag(
        1e-8, group=OPTIMIZER, dotted="adam.eps", above=0, help="AdamW's epsilon"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptimizerSettings(OptimizerSettings):
    """The critic's optimizer: its learning rate has its own flat spelling and default."""

    learning_rate: float = flag(
        9e-6,
        name="critic_learning_rate",
        group=OPTIMIZER,
        dotted="adam.lr",
        above=0,
        help="peak learning rate of the critic",
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """Flags of other optimizers, which are absent here."""

    optim: str = flag(
        "adam",
        group=OPTIMIZER,
        dotted=("actor.optim", "critic.optim"),
        choices=("adam", "muon"),
        help="kind of optimizer",
        unsupported=ONLY_ADAM,
    )
    muon_lr: float | None = flag(
        None,
        group=OPTIMIZER,
        dotted=("actor.muon.lr", "critic.muon.lr"),
        help="peak learning rate of Muon",
        no_effect=NO_MUON,
    )
    muon_momentum: float | None = flag(
        None,
        group=OPTIMIZER,
        dotted=("actor.muon.momentum", "critic.muon.momentum"),
        help="Muon's momentum",
        no_effect=NO_MUON,
    )
    muon_ns_steps: int | None = flag(
        None,
        group=OPTIMIZER,
        dotted=("actor.muon.ns_steps", "critic.muon.ns_steps"),
        help="Muon's Newton-Schulz steps",
        no_effect=NO_MUON,
    )
    muon_nesterov: bool = flag(
        False,
        group=OPTIMIZER,
        dotted=("actor.muon.nesterov", "critic.muon.nesterov"),
        help="use Nesterov momentum in Muon",
        no_effect=NO_MUON,
    )
    muon_no_nesterov: bool = flag(
        False,
        group=OPTIMIZER,
        dotted=("actor.muon.no_nesterov", "critic.muon.no_nesterov"),
        help="do not use Nesterov momentum in Muon",
        no_effect=NO_MUON,
    )
