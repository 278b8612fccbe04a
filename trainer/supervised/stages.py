"""The stages and their flags. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.training import MemoryFlags, TrainSettings
from trainer.config.schema import DATA, LOSS, MODELS, flag, shared
from trainer.supervised.options import StageFlags

PADDED = "TRL pads the two answers of a pair; sequences are not packed"


@dataclass(frozen=True, kw_only=True)
class SFTFlags(StageFlags):
    """Supervised fine-tuning."""

    LARGEST_PASS: ClassVar[int] = 64

    input_key: str = flag(
        "prompt", group=DATA, dotted="data.input_key", help="column of the prompt"
    )
    output_key: str = flag(
        "completion",
        group=DATA,
        dotted="data.output_key",
        help="column of what to answer; none: the last message of --input_key is the answer, or "
        "with --pretrain_mode there is none",
    )
    multiturn: bool = flag(
        False,
        group=DATA,
        dotted="data.multiturn",
        help="train every turn of the assistant; the template must mark them ({% generation %}), "
        "or be one that TRL knows",
    )
    pretrain_mode: bool = flag(
        False,
        group=LOSS,
        dotted="model.pretrain_mode_enable",
        help="train on every token, also on the prompt's",
    )
    train_batch_size: int = shared(
        TrainSettings,
        "train_batch_size",
        64,
        help="samples of one optimizer step, of all ranks",
    )
    lr_scheduler: str = shared(
        StageFlags,
        "lr_scheduler",
        "cosine",
    )
    adam_betas: tuple[float, float] = shared(OptimizerSettings, "adam_betas", (0.9, 0.999))
    logging_steps: int = shared(StageFlags, "logging_steps", 50)

    @property
    def answers_apart(self) -> bool:
        """Whether prompt and answer are two columns."""
        return self.output_key not in ("", "none")


@dataclass(frozen=True, kw_only=True)
class PreferenceStageFlags(StageFlags):
    """What stages on pairs of answers have."""

    prompt_key: str | None = flag(
        None,
        group=DATA,
        dotted="data.prompt_key",
        help="column of the prompt; default: both answers begin with it",
    )
    chosen_key: str = flag(
        "chosen", group=DATA, dotted="data.chosen_key", help="column of the better answer"
    )
    rejected_key: str = flag(
        "rejected", group=DATA, dotted="data.rejected_key", help="column of the worse answer"
    )
    packing_samples: bool = shared(MemoryFlags, "packing_samples", no_effect=PADDED)


@dataclass(frozen=True, kw_only=True)
class RewardFlags(PreferenceStageFlags):
    """A reward model."""

    learning_rate: float = shared(StageFlags, "learning_rate", 9e-6)
    loss: str = flag(
        "sigmoid",
        group=LOSS,
        dotted="model.loss_type",
        choices=("sigmoid", "logexp"),
        help="loss of a pair; both are log(1 + exp(worse - better))",
    )
    margin_loss: bool = flag(
        False,
        group=LOSS,
        dotted="model.margin_loss_enable",
        help="the better answer leads by at least the number of the column margin",
    )
    compute_fp32_loss: bool = flag(
        False,
        group=LOSS,
        dotted="model.compute_fp32_loss_enable",
        help="compute the loss in fp32",
        no_effect="the loss has the type of the model's output",
    )
    aux_loss_coef: float | None = shared(
        StageFlags,
        "aux_loss_coef",
        unsupported="TRL trains a reward model without the balance of a mixture of experts",
    )
    value_head_prefix: str = flag(
        "score",
        group=MODELS,
        dotted="ds.value_head_prefix",
        help="name of the head",
        no_effect="the head is written as transformers names it: score",
    )


@dataclass(frozen=True, kw_only=True)
class DPOFlags(PreferenceStageFlags):
    """Direct preference optimization."""

    learning_rate: float = shared(StageFlags, "learning_rate", 1e-5)
    ref_pretrain: str = flag(
        "",
        group=MODELS,
        dotted="ref.model_name_or_path",
        help="the reference; default: --pretrain as it begins",
    )
    ref_offload: bool = flag(
        False,
        group=MODELS,
        dotted="ref.offload",
        help="keep the reference in the CPU's memory between passes",
        no_effect="the reference stays beside the model; --zero_stage 3 shards both",
    )
    beta: float = flag(
        0.1, group=LOSS, dotted="model.beta", above=0, help="strength of the tie to the reference"
    )
    ipo: bool = flag(
        False,
        group=LOSS,
        dotted="model.ipo_enable",
        help="IPO's loss, with mean log-probabilities of an answer's tokens",
    )
    label_smoothing: float = flag(
        0.0,
        group=LOSS,
        dotted="model.label_smoothing",
        help="share of pairs whose label may be wrong (cDPO)",
        unsupported="TRL has no cDPO; leave it at 0",
    )
    nll_loss_coef: float = flag(
        0.0,
        group=LOSS,
        dotted="model.nll_loss_coef",
        at_least=0,
        help="weight of the better answer's negative log-likelihood, a mean over its tokens",
    )


STAGES: Mapping[str, type[StageFlags]] = {"sft": SFTFlags, "rm": RewardFlags, "dpo": DPOFlags}
DESCRIPTIONS: Mapping[str, str] = {
    "sft": "Teach a model to continue prompts as the data do.",
    "rm": "Train a reward model on pairs of answers: a language model with one output.",
    "dpo": "Train a policy on pairs of answers by direct preference optimization.",
}
