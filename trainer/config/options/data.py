"""Flags: the models, rewards and data of a run."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.data_sets import TRAIN, DataSets, Shares
from trainer.config.schema import Group


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    pretrain: str = Group.MODELS.flag(
        "", "policy: a Hugging Face directory", dotted="actor.model_name_or_path", required=True
    )
    critic_pretrain: str = Group.MODELS.flag(
        "", "first weights of the critic; default: --pretrain", dotted="critic.model_name_or_path"
    )
    reward_pretrain: str = Group.MODELS.flag(
        "",
        "reward models with one output each, separated by commas",
        dotted="reward.model_name_or_path",
    )
    reward_combine: str = Group.MODELS.flag(
        "mean", "one reward of several models': mean, sum, min, or a .py file with combine(rewards)"
    )
    remote_rm_url: str = Group.MODELS.flag(
        "",
        "reward: URL (several with commas), a .py file with reward_func, FILE.py:NAME of a "
        "function, or a registered name",
        dotted="reward.remote_url",
    )
    rewards: tuple[str, ...] = Group.MODELS.flag(
        (),
        "rewards with weights, added up: --reward gsm8k:1 --reward format:0.2; each as "
        "--remote_rm_url takes it",
        aliases=("reward",),
        repeats=True,
    )
    remote_rm_deadline: float = Group.MODELS.flag(
        600.0, "longest wait for a reward server", unit="seconds", above=0
    )
    value_head_prefix: str = Group.MODELS.flag(
        "score",
        "name of the head in --critic_pretrain and OpenRLHF's reward models, unless config.json "
        "names it; a critic without it gets one",
        dotted="ds.value_head_prefix",
    )
    freeze_visual_encoder: bool = Group.MODELS.flag(
        False,
        "train the language model only, and not the part of the policy that sees images",
        dotted="actor.freeze_visual_encoder",
    )
    trust_remote_code: bool = Group.MODELS.flag(
        False, "run Python files that a model brings along (its auto_map); the journal names them"
    )
    use_ms: bool = Group.MODELS.flag(
        False,
        "models from ModelScope",
        unsupported="Download the model first and give its directory to --pretrain",
    )


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    prompt_data: DataSets | None = Group.DATA.flag(
        None,
        "prompts: JSONL, Parquet, a dataset directory, or owner/name[:configuration] on the "
        "hub; several with commas",
        dotted="data.prompt_dataset",
        required=True,
    )
    prompt_data_probs: Shares | None = Group.DATA.flag(
        None,
        "shares of several data sets in the prompts, such as 0.7,0.3; default: all rows of each",
        dotted="data.prompt_probs",
    )
    prompt_split: str = Group.DATA.flag(
        TRAIN, "split of data sets that have several", dotted="data.prompt_split"
    )
    input_key: str = Group.DATA.flag(
        "input",
        "column of the prompt; not given, and not there: the only column with a usual name",
        dotted="data.input_key",
    )
    label_key: str | None = Group.DATA.flag(
        None,
        "column of the reference answer; dots for a nested one: reward_model.ground_truth; chosen "
        "with --input_key, if neither is given",
        dotted="data.label_key",
    )
    input_template: str | None = Group.DATA.flag(
        None, "text with {} for the prompt", dotted="data.input_template"
    )
    apply_chat_template: bool = Group.DATA.flag(
        False, "use the tokeniser's chat template", dotted="data.apply_chat_template"
    )
    max_samples: int | None = Group.DATA.flag(
        None,
        "prompts to use, from the beginning: of each data set, and of the mix",
        dotted="data.max_samples",
        at_least=1,
    )
    max_len: int | None = Group.DATA.flag(
        None,
        "longest prompt and completion together; bounds --prompt_max_len",
        dotted="data.max_len",
        unit="tokens",
        at_least=2,
    )
    prompt_max_len: int = Group.DATA.flag(
        1024, "longest prompt; see --prompt_overlong", unit="tokens", at_least=1
    )
    prompt_overlong: str = Group.DATA.flag(
        "truncate",
        "a prompt over the limit loses its beginning, or is dropped and counted",
        choices=("truncate", "drop"),
    )
    image_key: str = Group.DATA.flag(
        "images",
        "column of images, as paths or bytes; messages may have images of their own",
        dotted="data.image_key",
    )
    max_images_per_prompt: int = Group.DATA.flag(
        0, "most images of a prompt; 0: any number", dotted="data.max_images_per_prompt", at_least=0
    )
    image_max_pixels: int = Group.DATA.flag(
        640 * 28 * 28,
        "larger images are made smaller: Qwen2.5-VL has a token for 784 pixels; 0: the "
        "model's own limit",
        unit="pixels",
        at_least=0,
    )
    disable_fast_tokenizer: bool = Group.DATA.flag(
        False,
        "the tokeniser in Python",
        dotted="data.disable_fast_tokenizer",
        no_effect="transformers has one tokeniser for a model and chooses it",
    )
    dataloader_num_workers: int = Group.DATA.flag(
        0,
        "processes that load data",
        dotted="data.dataloader_num_workers",
        at_least=0,
        no_effect="the driver reads the prompts itself",
    )


@dataclass(frozen=True, kw_only=True)
class PreferenceFlags:
    """Flags of the stages dpo and rm: errors here, each with a remedy."""

    dataset: str = Group.PREFERENCES.flag(
        "", "preference pairs", unsupported="It belongs to `rollcall dpo`; PPO takes --prompt_data"
    )
    beta: float | None = Group.PREFERENCES.flag(
        None,
        "DPO's temperature",
        unsupported="It belongs to `rollcall dpo`; PPO takes --init_kl_coef",
    )
    learning_rate: float | None = Group.PREFERENCES.flag(
        None,
        "peak of the one model",
        unsupported="Give --actor_learning_rate; with a critic, also --critic_learning_rate",
    )
    chosen_key: str = Group.PREFERENCES.flag(
        "",
        "column of the better answer",
        unsupported="It belongs to `rollcall dpo`; PPO takes --input_key",
    )
    rejected_key: str = Group.PREFERENCES.flag(
        "",
        "column of the worse answer",
        unsupported="It belongs to `rollcall dpo`; PPO takes --input_key",
    )
