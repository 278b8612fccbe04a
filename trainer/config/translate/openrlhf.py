"""OpenRLHF's flags, flat and of 0.11: ours are spelt like them, so the parser's table is theirs.

Here are the flags that only older releases have, and the defaults that differ from ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainer.config.config import Config
from trainer.config.read_flags import aliases
from trainer.config.schema import flags_of
from trainer.config.translate.rows import (
    TRUE,
    Answer,
    Row,
    Table,
    Unsaid,
    Values,
    absent,
    needless,
    same,
    switch,
)

WITHOUT_BOS = (
    "prompts that are not chats: they begin with BOS here, if the tokeniser has one, and not in "
    "OpenRLHF (docs/from-openrlhf.md)"
)


def _checked(value: str, values: Values) -> Answer:
    if switch(value, values) != "true":
        return needless("it is off here too")
    kind = values.text("vllm_is_correction_type") or values.text(
        "algo.advantage.is_correction_type"
    )
    return "seq" if kind.startswith("seq") else "token"


def _first(value: str, values: Values) -> Answer:
    """Return the mode of releases whose default is tis."""
    types = ("vllm_is_correction_type", "algo.advantage.is_correction_type")
    if any(values.has(name) for name in types) or values.on("use_icepop"):
        return needless("its type is given")
    return "clip" if switch(value, values) == "true" else needless("it is off here too")


def _correction(value: str, values: Values) -> Answer:
    named = {"tis": "clip", "icepop": "mask", "seq-mask-tis": "mask"}
    return named.get(value) or absent(f"{value} is absent here")


def _icepop(value: str, values: Values) -> Answer:
    if switch(value, values) != "true":
        return needless("it is off here too")
    enabled = ("enable_vllm_is_correction", "algo.advantage.is_correction_enable")
    if not any(values.on(name) for name in enabled):
        return needless("it has no effect without --enable_vllm_is_correction")
    return "mask"


def _k3(value: str, values: Values) -> Answer:
    return "k3" if switch(value, values) == "true" else needless("k1 is the default here too")


OLD = Table(
    "OpenRLHF",
    [
        Row("enable_vllm_is_correction", "is_correction_level", by=_checked, old=True),
        Row("algo.advantage.is_correction_enable", "is_correction_level", by=_checked, old=True),
        Row("enable_vllm_is_correction", "is_correction_mode", by=_first, old=True),
        Row("algo.advantage.is_correction_enable", "is_correction_mode", by=_first, old=True),
        Row("use_tis", "is_correction_level", by=_checked, old=True),
        Row("use_tis", "is_correction_mode", by=_first, old=True, note="clip"),
        Row("vllm_is_correction_type", "is_correction_mode", by=_correction, old=True,
            note="tis: clip; icepop: mask"),
        Row("algo.advantage.is_correction_type", "is_correction_mode", by=_correction, old=True,
            note="the same"),
        Row("use_icepop", "is_correction_mode", by=_icepop, old=True, note="mask"),
        Row("vllm_is_truncated_threshold", "is_correction_threshold", by=same, old=True),
        Row("use_kl_estimator_k3", "kl_estimator", by=_k3, old=True),
        Row("ptx_coef", note="there is no loss on pretraining data, so its weight is unused",
            lost=False, old=True),
        Row("pretrain_data", note="there is no loss on pretraining data", old=True),
        Row("pretrain_split", note="there is no loss on pretraining data", lost=False, old=True),
        Row("pretrain_data_probs", note="there is no loss on pretraining data", lost=False,
            old=True),
        Row("actor_init_on_gpu", note="models are loaded as memory allows", lost=False, old=True),
        Row("disable_trace_cache", note="DeepSpeed is set up by the trainer", lost=False, old=True),
        Row("torch_compile", note="models are not compiled", lost=False, old=True),
        Row("perf", note="timings are always in metrics.jsonl", lost=False, old=True),
    ],
)  # fmt: skip
"""Flags that our parser does not know, as OpenRLHF 0.11 does not."""


def counterparts(
    name: str, given: Mapping[str, str], options: Collection[str]
) -> tuple[list[str], str]:
    """Return what says an older flag in a newer release, and why nothing does.

    `given`: all flags of the command; `options`: those of the release, with their hyphens.
    """
    values = Values({flag: text or TRUE for flag, text in given.items()})
    found: list[str] = []
    why = ""
    for row in OLD.of(name):
        answer = row.answer(values[name], values)
        if isinstance(answer, Unsaid):
            why = answer.why
            continue
        ours = flags_of(Config)[aliases(Config)[row.ours][0]]
        spellings = (f"--{one}" for one in (*ours.about.dotted_spellings, row.ours))
        found += [f"{one} {answer}" for one in spellings if one in options][:1]
    return found, why


@dataclass(frozen=True, slots=True)
class Default:
    """A default of theirs that a command relies on by leaving the flag out."""

    ours: str
    dotted: str
    """In 0.11."""
    flat: str
    """In 0.10, the last release with flat flags."""
    unless: tuple[str, ...] = ()
    """Flags whose presence says that it does not hold."""


DEFAULTS = (
    Default("zero_stage", "2", "2"),
    Default("param_dtype", "bf16", "bf16", ("bf16", "prompt_max_len", "generate_max_len")),
    Default("attn_implementation", "flash_attention_2", "flash_attention_2",
            ("flash_attn", "bf16", "prompt_max_len", "generate_max_len")),
    Default("micro_train_batch_size", "1", "4", ("use_dynamic_batch",)),
    Default("micro_rollout_batch_size", "1", "8"),
    Default("max_len", "2048", "2048", ("prompt_max_len", "generate_max_len")),
    Default("vllm_gpu_memory_utilization", "0.95", "0.95"),
    Default("eval_n_samples_per_prompt", "4", "4"),
    Default("eval_temperature", "0.6", "0.6"),
    Default("actor_num_gpus_per_node", "8", "8"),
    Default("critic_num_gpus_per_node", "8", "8", ("colocate_all_models",)),
    Default("ref_num_gpus_per_node", "8", "8", ("colocate_all_models", "colocate_actor_ref")),
    Default("reward_num_gpus_per_node", "8", "8",
            ("colocate_all_models", "colocate_critic_reward", "remote_rm_url")),
)  # fmt: skip
"""Those that change numbers, memory or places; `KEPT` has the others."""
KEPT: Mapping[str, str] = {
    "load_checkpoint": "a run resumes after a crash; false begins anew",
    "max_samples": "no limit, in both",
    "num_episodes": "one pass, in both; with --max_steps, as many as those take",
    "generate_max_len": "1024 tokens unless --max_new_tokens says more; there, what max_len leaves",
    "vllm_num_engines": "one engine; there, none is an error",
    "freezing_actor_steps": "none, in both",
    "vllm_sync_backend": "chosen by the GPUs",
    "loss_aggregation": "the same under another name",
    "ckpt_path": "in the run directory",
    "save_path": "in the run directory",
    "wandb_project": "rollcall",
    "enable_prefix_caching": "the samples of a prompt share its keys and values",
}
"""Our flags whose default differs from OpenRLHF 0.11's, and stays ours: why."""
