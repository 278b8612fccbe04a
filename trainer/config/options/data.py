"""Flags: the models, rewards and data of a run."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.data_sets import TRAIN, DataSets, Shares
from trainer.config.schema import DATA, MODELS, PREFERENCES, flag


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    pretrain: str = flag(
        "",
        group=MODELS,
        dotted="actor.model_name_or_path",
        required=True,
        help="policy: a Hugging Face directory",
    )
    critic_pretrain: str = flag(
        "",
        group=MODELS,
        dotted="critic.model_name_or_path",
        help="first weights of the critic; default: --pretrain",
    )
    reward_pretrain: str = flag(
        "",
        group=MODELS,
        dotted="reward.model_name_or_path",
        help="reward models with one output each, separated by commas",
    )
    reward_combine: str = flag(
        "mean",
        group=MODELS,
        help="one reward of several models': mean, sum, min, or a .py file with combine(rewards)",
    )
    remote_rm_url: str = flag(
        "",
        group=MODELS,
        dotted="reward.remote_url",
        help="reward: URL (several with commas), a .py file with reward_func, FILE.py:NAME of a "
        "function (completions, **columns), or a registered name",
    )
    rewards: tuple[str, ...] = flag(
        (),
        group=MODELS,
        aliases=("reward",),
        repeats=True,
        help="rewards with weights, added up: --reward gsm8k:1 --reward format:0.2; each as "
        "--remote_rm_url takes it",
    )
    remote_rm_deadline: float = flag(
        600.0, group=MODELS, unit="seconds", above=0, help="longest wait for a reward server"
    )
    value_head_prefix: str = flag(
        "score",
        group=MODELS,
        dotted="ds.value_head_prefix",
        help="name of the head in --critic_pretrain and in OpenRLHF's reward models, unless their "
        "config.json names it; a critic without a head starts with a new one",
    )
    freeze_visual_encoder: bool = flag(
        False,
        group=MODELS,
        dotted="actor.freeze_visual_encoder",
        help="train the language model only, and not the part of the policy that sees images",
    )
    use_ms: bool = flag(
        False,
        group=MODELS,
        help="models from ModelScope",
        unsupported="Download the model first and give its directory to --pretrain",
    )


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    prompt_data: DataSets | None = flag(
        None,
        group=DATA,
        dotted="data.prompt_dataset",
        required=True,
        help="prompts: JSONL, Parquet, a dataset directory, or owner/name[:configuration] on the "
        "hub; several with commas",
    )
    prompt_data_probs: Shares | None = flag(
        None,
        group=DATA,
        dotted="data.prompt_probs",
        help="shares of several data sets in the prompts, such as 0.7,0.3; default: all rows of "
        "each",
    )
    prompt_split: str = flag(
        TRAIN,
        group=DATA,
        dotted="data.prompt_split",
        help="split of data sets that have several",
    )
    input_key: str = flag("input", group=DATA, dotted="data.input_key", help="column of the prompt")
    label_key: str | None = flag(
        None,
        group=DATA,
        dotted="data.label_key",
        help="column of the reference answer; dots for a nested one: reward_model.ground_truth",
    )
    input_template: str | None = flag(
        None, group=DATA, dotted="data.input_template", help="text with {} for the prompt"
    )
    apply_chat_template: bool = flag(
        False,
        group=DATA,
        dotted="data.apply_chat_template",
        help="use the tokeniser's chat template",
    )
    max_samples: int | None = flag(
        None,
        group=DATA,
        dotted="data.max_samples",
        at_least=1,
        help="prompts to use, from the beginning: of each data set, and of the mix",
    )
    max_len: int | None = flag(
        None,
        group=DATA,
        dotted="data.max_len",
        unit="tokens",
        at_least=2,
        help="longest prompt and completion together; bounds --prompt_max_len",
    )
    prompt_max_len: int = flag(
        1024, group=DATA, unit="tokens", at_least=1, help="longest prompt; see --prompt_overlong"
    )
    prompt_overlong: str = flag(
        "truncate",
        group=DATA,
        choices=("truncate", "drop"),
        help="a prompt over the limit loses its beginning, or is dropped and counted",
    )
    image_key: str = flag(
        "images",
        group=DATA,
        dotted="data.image_key",
        help="column of images, as paths or bytes; messages may have images of their own",
    )
    max_images_per_prompt: int = flag(
        0,
        group=DATA,
        dotted="data.max_images_per_prompt",
        at_least=0,
        help="most images of a prompt; 0: any number",
    )
    image_max_pixels: int = flag(
        640 * 28 * 28,
        group=DATA,
        unit="pixels",
        at_least=0,
        help="larger images are made smaller: Qwen2.5-VL has a token for 784 pixels; 0: the "
        "model's own limit",
    )
    disable_fast_tokenizer: bool = flag(
        False,
        group=DATA,
        dotted="data.disable_fast_tokenizer",
        help="the tokeniser in Python",
        no_effect="transformers has one tokeniser for a model and chooses it",
    )
    dataloader_num_workers: int = flag(
        0,
        group=DATA,
        dotted="data.dataloader_num_workers",
        at_least=0,
        help="processes that load data",
        no_effect="the driver reads the prompts itself",
    )


@dataclass(frozen=True, kw_only=True)
class PreferenceFlags:
    """Flags of the stages dpo and rm: errors here, each with a remedy."""

    dataset: str = flag(
        "",
        group=PREFERENCES,
        help="preference pairs",
        unsupported="It belongs to `rollcall dpo`; PPO takes --prompt_data",
    )
    beta: float | None = flag(
        None,
        group=PREFERENCES,
        help="DPO's temperature",
        unsupported="It belongs to `rollcall dpo`; PPO takes --init_kl_coef",
    )
    learning_rate: float | None = flag(
        None,
        group=PREFERENCES,
        help="peak of the one model",
        unsupported="PPO has two: give --actor_learning_rate and --critic_learning_rate",
    )
    chosen_key: str = flag(
        "",
        group=PREFERENCES,
        help="column of the better answer",
        unsupported="It belongs to `rollcall dpo`; PPO takes --input_key",
    )
    rejected_key: str = flag(
        "",
        group=PREFERENCES,
        help="column of the worse answer",
        unsupported="It belongs to `rollcall dpo`; PPO takes --input_key",
    )
