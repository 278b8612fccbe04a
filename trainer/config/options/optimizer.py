"""Flags: the optimisers of policy and critic.

A flag whose critic has a field of its own sets both under its flat spelling; under the dotted one,
which begins with `actor.` or `critic.`, it sets that model's alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import OPTIMISER, flag

SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr")
NO_MUON = "AdamW is the only optimiser"
ONLY_ADAM = "AdamW is the only optimiser; leave it at adam"


@dataclass(frozen=True, kw_only=True)
class OptimiserFlags:
    actor_learning_rate: float = flag(
        1e-6, group=OPTIMISER, dotted="actor.adam.lr", above=0, help="peak, policy"
    )
    critic_learning_rate: float = flag(
        9e-6, group=OPTIMISER, dotted="critic.adam.lr", above=0, help="peak, critic"
    )
    lr_scheduler: str = flag(
        "cosine_with_min_lr",
        group=OPTIMISER,
        dotted="actor.lr_scheduler",
        choices=SCHEDULERS,
        help="learning rate over the run",
    )
    critic_lr_scheduler: str = flag(
        "cosine_with_min_lr",
        group=OPTIMISER,
        dotted="critic.lr_scheduler",
        follows="lr_scheduler",
        choices=SCHEDULERS,
        help="the critic's",
    )
    lr_warmup_ratio: float = flag(
        0.03,
        group=OPTIMISER,
        dotted="actor.lr_warmup_ratio",
        at_least=0,
        at_most=1,
        help="share of the run with a rising rate",
    )
    critic_lr_warmup_ratio: float = flag(
        0.03,
        group=OPTIMISER,
        dotted="critic.lr_warmup_ratio",
        follows="lr_warmup_ratio",
        at_least=0,
        at_most=1,
        help="the critic's",
    )
    min_lr_ratio: float = flag(
        0.1,
        group=OPTIMISER,
        dotted="actor.min_lr_ratio",
        at_least=0,
        at_most=1,
        help="where cosine_with_min_lr ends, as a share of the peak",
    )
    critic_min_lr_ratio: float = flag(
        0.1,
        group=OPTIMISER,
        dotted="critic.min_lr_ratio",
        follows="min_lr_ratio",
        at_least=0,
        at_most=1,
        help="the critic's",
    )
    l2: float = flag(
        0.0,
        group=OPTIMISER,
        dotted="actor.adam.weight_decay",
        at_least=0,
        help="weight decay, not on norms and biases",
    )
    critic_l2: float = flag(
        0.0,
        group=OPTIMISER,
        dotted="critic.adam.weight_decay",
        follows="l2",
        at_least=0,
        help="the critic's",
    )
    adam_betas: tuple[float, float] = flag(
        (0.9, 0.95), group=OPTIMISER, dotted="actor.adam.betas", at_least=0, help="AdamW's betas"
    )
    critic_adam_betas: tuple[float, float] = flag(
        (0.9, 0.95),
        group=OPTIMISER,
        dotted="critic.adam.betas",
        follows="adam_betas",
        at_least=0,
        help="the critic's",
    )
    max_norm: float = flag(
        1.0,
        group=OPTIMISER,
        dotted="actor.max_norm",
        endless=True,
        above=0,
        help="gradients are clipped to this norm",
    )
    critic_max_norm: float = flag(
        1.0,
        group=OPTIMISER,
        dotted="critic.max_norm",
        endless=True,
        follows="max_norm",
        above=0,
        help="the critic's",
    )
    adam_eps: float = flag(
        1e-8,
        group=OPTIMISER,
        dotted="actor.adam.eps",
        above=0,
        help="AdamW's epsilon",
    )
    critic_adam_eps: float = flag(
        1e-8,
        group=OPTIMISER,
        dotted="critic.adam.eps",
        follows="adam_eps",
        above=0,
        help="the critic's",
    )
    optim: str = flag(
        "adam",
        group=OPTIMISER,
        dotted=("actor.optim", "critic.optim"),
        choices=("adam", "muon"),
        help="kind of optimiser",
        unsupported=ONLY_ADAM,
    )
    muon_lr: float | None = flag(
        None,
        group=OPTIMISER,
        dotted=("actor.muon.lr", "critic.muon.lr"),
        help="Muon's peak",
        no_effect=NO_MUON,
    )
    muon_momentum: float | None = flag(
        None,
        group=OPTIMISER,
        dotted=("actor.muon.momentum", "critic.muon.momentum"),
        help="Muon's momentum",
        no_effect=NO_MUON,
    )
    muon_ns_steps: int | None = flag(
        None,
        group=OPTIMISER,
        dotted=("actor.muon.ns_steps", "critic.muon.ns_steps"),
        help="Muon's Newton-Schulz steps",
        no_effect=NO_MUON,
    )
    muon_nesterov: bool = flag(
        False,
        group=OPTIMISER,
        dotted=("actor.muon.nesterov", "critic.muon.nesterov"),
        help="Muon's look-ahead",
        no_effect=NO_MUON,
    )
    muon_no_nesterov: bool = flag(
        False,
        group=OPTIMISER,
        dotted=("actor.muon.no_nesterov", "critic.muon.no_nesterov"),
        help="Muon without it",
        no_effect=NO_MUON,
    )
