"""Conversions of the settings of policy losses, which depend on the loss, from verl and TRL."""

from __future__ import annotations

from trainer.config.translate.rows import Answer, Values, absent, needless, number, shown

VERL_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
TRL_LOSSES = {
    "dapo": ("ppo", "token"),
    "grpo": ("ppo", "sequence"),
    "dr_grpo": ("ppo", "constant"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
}
"""TRL's loss_type → our loss and its --loss_aggregation."""
TRL_OTHERS = [theirs for theirs, (ours, _) in TRL_LOSSES.items() if ours != "ppo"]


def verl_sapo(value: str, values: Values) -> Answer:
    if values.text(VERL_LOSS) == "sapo":
        return number(value, values)
    return needless("only sapo has it")


def verl_dual_clip(value: str, values: Values) -> Answer:
    if values.text(VERL_LOSS) in ("vanilla", ""):
        return number(value, values)
    return needless("only the vanilla loss has it")


def trl_policy_loss(value: str, values: Values) -> Answer:
    """Return the loss of --loss_type and --importance_sampling_level together."""
    kind = values.text("loss_type")
    of_sequences = values.text("importance_sampling_level") == "sequence"
    if kind in TRL_OTHERS:
        of_tokens = TRL_LOSSES[kind][0]
        return absent(f"{kind} with ratios of sequences is absent") if of_sequences else of_tokens
    return "gspo" if of_sequences else "ppo"


def trl_sapo(value: str, values: Values) -> Answer:
    sapo = values.text("loss_type") == "sapo"
    return number(value, values) if sapo else needless("only sapo has it")


def trl_clip(value: str, values: Values) -> Answer:
    if values.text("loss_type") == "cispo":  # TRL's is the bound itself, and there is none below
        above = float(value) - 1
        return f"1 {shown(above)}" if above > 0 else absent("a bound of at most 1 is absent")
    low = values.text("epsilon")
    return f"{low} {values.text('epsilon_high') or low}"


def trl_epsilon(value: str, values: Values) -> Answer:
    if values.text("loss_type") == "sapo":
        return needless("sapo has no bounds")
    if values.text("loss_type") == "cispo" and not values.has("epsilon_high"):
        return absent("a bound of at most 1 is absent")
    high = values.has("epsilon_high")
    return needless("with --epsilon_high") if high else number(value, values)
