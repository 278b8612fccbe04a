"""Reads accelerate's file (--config_file, --accelerate_config) and DeepSpeed's (--deepspeed)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contract.launch import ranks
from trainer.config.translate.command import TRL
from trainer.config.translate.config_file import read_flags, texts
from trainer.config.translate.rows import NOTHING, Command

ACCELERATE = ("config_file", "accelerate_config")
DEEPSPEED = "deepspeed"
DEEPSPEED_FILE = "deepspeed_config_file"
SUFFIXES = (".yaml", ".yml", ".json")
PLAIN = ("num_processes", "num_machines")
"""Keys that the launcher has as flags, and whose counterparts do not depend on other keys."""
SPLITS = ("parallelism_config_sp_size", "parallelism_config_cp_size")
OFFLOADS = ("offload_optimizer_device", "offload_param_device")
STAGES = {
    **{"full_shard": "3", "hybrid_shard": "3", "1": "3", "4": "3", "true": "3"},
    **{"shard_grad_op": "2", "hybrid_shard_zero2": "2", "2": "2", "5": "2", "false": "2"},
    **{"no_shard": "0", "3": "0"},
}
"""How FSDP shards, by the names and numbers of accelerate → the stage of ZeRO that does so."""
USUAL_STAGE = "2"
"""The stage that accelerate takes for DeepSpeed if the file has none."""
BY_TRAINER = (
    *("mixed_precision", "downcast_bf16", "use_cpu"),
    *("gradient_accumulation_steps", "gradient_clipping"),
)
"""Keys that TRL's own flags override."""
OTHERS = ("megatron_lm_config", "fp8_config", "tp_size", "ipex_config", "mpirun_config")


@dataclass(slots=True)
class _Found:
    """What a file has here."""

    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The launcher's flags that say the same."""
    absent: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


def with_launcher_files(command: Command) -> Command:
    """Return a TRL command with what accelerate's file says; typed flags count more.

    A file that is not here counts by its name. Raises TranslateError for one that cannot be read.
    """
    if command.trainer != TRL:
        return command
    launcher, given = dict(command.launcher), dict(command.given)
    found = _Found()
    for flags in (launcher, given):
        for typed in [*flags]:
            name = typed.replace("-", "_")
            file = Path(" ".join(flags[typed]))
            if name not in (*ACCELERATE, DEEPSPEED) or not is_file(file) or not file.is_file():
                continue
            del flags[typed]
            _read(found, file, f"--{typed}", of_accelerate=name != DEEPSPEED)
    return replace(
        command,
        launcher=found.flags | launcher,
        given=given,
        absent=(*command.absent, *found.absent),
        idle=(*command.idle, *found.idle),
    )


def is_file(name: Path) -> bool:
    """Whether a value is a file's name, and not that of a configuration of TRL's own."""
    return name.suffix in SUFFIXES


def not_here(command: Command) -> Iterator[str]:
    """Yield a sentence on each such file of which only the name is known."""
    for typed, words in {**command.launcher, **command.given}.items():
        name = " ".join(words)
        if typed.replace("-", "_") in (*ACCELERATE, DEEPSPEED) and is_file(Path(name)):
            yield f"{typed}={name}: the file is not here, so its name alone counts: copy it to here"


def _read(found: _Found, file: Path, flag: str, *, of_accelerate: bool) -> None:
    read = read_flags(file, flag, "accelerate or DeepSpeed reads it")
    if of_accelerate:
        _of_accelerate(found, read, file)
    else:
        _of_deepspeed_file(found, read, file)


def _of_accelerate(found: _Found, read: Mapping[str, Any], file: Path) -> None:
    for key in ("deepspeed_config", "fsdp_config", "parallelism_config"):
        part = read.get(key)
        read = {**read, **(part if isinstance(part, Mapping) else {})}
    known = {key: value for key, value in read.items() if _is_set(value)}
    for key in (*PLAIN, *SPLITS):
        if key in known:
            found.flags[key] = texts(known[key])
    _of_kind(found, known, file)
    said = [
        f"{key}={' '.join(texts(known[key]))}: TRL's own flags decide"
        for key in BY_TRAINER
        if key in known and known[key] not in (False, "no")
    ]
    found.idle += [f"{file}: {one}" for one in said]
    found.absent += [
        f"{file}: {key}={' '.join(texts(known[key]))} is not taken over: it is absent here"
        for key in OTHERS
        if key in known
    ]
    taken = {*PLAIN, *SPLITS, *OFFLOADS, *BY_TRAINER, *OTHERS, DEEPSPEED_FILE}
    taken |= {"zero_stage", "distributed_type", "fsdp_sharding_strategy", "fsdp_offload_params"}
    taken |= {"fsdp_reshard_after_forward", "deepspeed_config", "fsdp_config", "parallelism_config"}
    if rest := [key for key in known if key not in taken]:
        why = "it is so here, or Rollcall's own supervision and nodes replace it"
        found.idle.append(f"{file}: {', '.join(rest)}: {why}")


def _of_kind(found: _Found, known: Mapping[str, Any], file: Path) -> None:
    """Take how the model is spread over the processes."""
    kind = str(known.get("distributed_type", "")).upper()
    if not kind:
        return
    if kind == "DEEPSPEED":
        if DEEPSPEED_FILE in known:
            own = Path(str(known[DEEPSPEED_FILE]))
            if own.is_file():
                _read(found, own, f"--{DEEPSPEED_FILE}", of_accelerate=False)
            else:
                found.flags[DEEPSPEED] = (str(own),)
            return
        found.flags["zero_stage"] = texts(known.get("zero_stage", USUAL_STAGE))
        found.flags |= {key: texts(known[key]) for key in OFFLOADS if key in known}
    elif kind == "FSDP":
        is_second = str(known.get("fsdp_version", 1)) == "2"
        key = "fsdp_reshard_after_forward" if is_second else "fsdp_sharding_strategy"
        how = "".join(texts(known.get(key, "full_shard"))).lower()
        if stage := STAGES.get(how):
            found.flags["zero_stage"] = (stage,)
        else:
            found.absent.append(f"{file}: {key}={how} is not taken over: give --zero_stage")
        if known.get("fsdp_offload_params") in (True, "true"):
            found.flags |= dict.fromkeys(OFFLOADS, ("cpu",))
    elif ranks.has_whole_model(kind):
        found.flags["zero_stage"] = ("0",)
    else:
        found.absent.append(f"{file}: distributed_type={kind} is not taken over: give --zero_stage")


def _of_deepspeed_file(found: _Found, read: Mapping[str, Any], file: Path) -> None:
    part = read.get("zero_optimization")
    zero: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    found.flags["zero_stage"] = texts(zero.get("stage", 0))
    for key in OFFLOADS:
        device = zero.get(key.removesuffix("_device"))
        if isinstance(device, Mapping) and _is_set(device.get("device")):
            found.flags[key] = texts(device["device"])
    found.idle.append(f"{file}: of DeepSpeed's own keys, stage and offload of ZeRO are taken over")


def _is_set(value: Any) -> bool:
    return value is not None and value not in ({}, []) and str(value) not in NOTHING
