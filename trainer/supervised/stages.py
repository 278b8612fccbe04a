"""The stages and their flags. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trainer.config.config import Config
from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.schema import Group, shared
from trainer.supervised.options import StageFlags

PADDED = "TRL pads the two answers of a pair; sequences are not packed"


@dataclass(frozen=True, kw_only=True)
class SFTFlags(StageFlags):
    """Supervised fine-tuning."""

    LARGEST_PASS: ClassVar[int] = 64

    input_key: str = Group.DATA.flag("prompt", "column of the prompt", dotted="data.input_key")
    output_key: str = Group.DATA.flag(
        "completion",
        "column of what to answer; none: the last message of --input_key is the answer, or "
        "with --pretrain_mode there is none",
        dotted="data.output_key",
    )
    multiturn: bool = Group.DATA.flag(
        False,
        "train every turn of the assistant; the template must mark them ({% generation %}), "
        "or be one that TRL knows",
        dotted="data.multiturn",
    )
    pretrain_mode: bool = Group.LOSS.flag(
        False, "train on every token, also on the prompt's", dotted="model.pretrain_mode_enable"
    )
    train_batch_size: int = shared(
        Config, "train_batch_size", 64, help="samples of one optimizer step, of all ranks"
    )
    lr_scheduler: str = shared(StageFlags, "lr_scheduler", "cosine")
    adam_betas: tuple[float, float] = shared(OptimizerSettings, "adam_betas", (0.9, 0.999))
    logging_steps: int = shared(StageFlags, "logging_steps", 50)

    @property
    def answers_apart(self) -> bool:
        """Whether prompt and answer are two columns."""
        return self.output_key not in ("", "none")


@dataclass(frozen=True, kw_only=True)
class PreferenceStageFlags(StageFlags):
    """What stages on pairs of answers have."""

    prompt_key: str | None = Group.DATA.flag(
        None, "column of the prompt; default: both answers begin with it", dotted="data.prompt_key"
    )
    chosen_key: str = Group.DATA.flag(
        "chosen", "column of the better answer", dotted="data.chosen_key"
    )
    rejected_key: str = Group.DATA.flag(
        "rejected", "column of the worse answer", dotted="data.rejected_key"
    )
    packing_samples: bool = shared(Config, "packing_samples", no_effect=PADDED)


@dataclass(frozen=True, kw_only=True)
class RewardFlags(PreferenceStageFlags):
    """A reward model."""

    learning_rate: float = shared(StageFlags, "learning_rate", 9e-6)
    loss: str = Group.LOSS.flag(
        "sigmoid",
        "loss of a pair; both are log(1 + exp(worse - better))",
        dotted="model.loss_type",
        choices=("sigmoid", "logexp"),
    )
    margin_loss: bool = Group.LOSS.flag(
        False,
        "the better answer leads by at least the number of the column margin",
        dotted="model.margin_loss_enable",
    )
    compute_fp32_loss: bool = Group.LOSS.flag(
        False,
        "compute the loss in fp32",
        dotted="model.compute_fp32_loss_enable",
        no_effect="the loss has the type of the model's output",
    )
    aux_loss_coef: float | None = shared(
        StageFlags,
        "aux_loss_coef",
        unsupported="TRL trains a reward model without the balance of a mixture of experts",
    )
    value_head_prefix: str = Group.MODELS.flag(
        "score",
        "name of the head",
        dotted="ds.value_head_prefix",
        no_effect="the head is written as transformers names it: score",
    )


@dataclass(frozen=True, kw_only=True)
class DPOFlags(PreferenceStageFlags):
    """Direct preference optimization."""

    learning_rate: float = shared(StageFlags, "learning_rate", 1e-5)
    ref_pretrain: str = Group.MODELS.flag(
        "", "the reference; default: --pretrain as it begins", dotted="ref.model_name_or_path"
    )
    ref_offload: bool = Group.MODELS.flag(
        False,
        "keep the reference in the CPU's memory between passes",
        dotted="ref.offload",
        no_effect="the reference stays beside the model; --zero_stage 3 shards both",
    )
    beta: float = Group.LOSS.flag(
        0.1, "strength of the tie to the reference", dotted="model.beta", above=0
    )
    ipo: bool = Group.LOSS.flag(
        False,
        "IPO's loss, with mean log-probabilities of an answer's tokens",
        dotted="model.ipo_enable",
    )
    label_smoothing: float = Group.LOSS.flag(
        0.0,
        "share of pairs whose label may be wrong (cDPO)",
        dotted="model.label_smoothing",
        unsupported="TRL has no cDPO; leave it at 0",
    )
    nll_loss_coef: float = Group.LOSS.flag(
        0.0,
        "weight of the better answer's negative log-likelihood, a mean over its tokens",
        dotted="model.nll_loss_coef",
        at_least=0,
    )


STAGES: Mapping[str, type[StageFlags]] = {"sft": SFTFlags, "rm": RewardFlags, "dpo": DPOFlags}
DESCRIPTIONS: Mapping[str, str] = {
    "sft": "Teach a model to continue prompts as the data do.",
    "rm": "Train a reward model on pairs of answers: a language model with one output.",
    "dpo": "Train a policy on pairs of answers by direct preference optimization.",
}
