"""Pure: which GPUs the processes of OpenRLHF's train_ppo_ray want, and what the roll adds.

Its models reserve single GPUs anywhere in the cluster. If too few are free, it waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contract.durations import counted
from entrypoint.job.recipes.openrlhf.command_line import OpenRLHFCommand
from entrypoint.job.recipes.openrlhf.flags import Flag

NODES, EACH = "num_nodes", "num_gpus_per_node"
MODELS = ("actor", "ref", "critic", "reward")
WITH_ACTOR, WITH_REWARD = "train.colocate_actor_ref", "train.colocate_critic_reward"
ALL, ASYNC = "train.colocate_all", "train.async_enable"
ENGINES, TENSOR_PARALLEL = "vllm.num_engines", "vllm.tensor_parallel_size"
MEMORY = "vllm.gpu_memory_utilization"
LAYOUT = (
    *(f"{model}.{part}" for model in MODELS for part in (NODES, EACH)),
    *(WITH_ACTOR, WITH_REWARD, ALL, ENGINES, TENSOR_PARALLEL),
)
DEFAULTS = {NODES: 1, EACH: 8}
SHARED = (Flag(ALL), Flag("vllm.enable_sleep"), Flag("ds.enable_sleep"))
SHARED_MEMORY = Flag(MEMORY, ("0.5",))
"""OpenRLHF's advice for engines that share their GPUs; its default is 0.95."""


@dataclass(frozen=True, slots=True)
class Chosen:
    command: OpenRLHFCommand
    warnings: tuple[str, ...] = ()


def faults(command: OpenRLHFCommand) -> list[str]:
    """Return a sentence for each number of the layout that is none."""
    keys = (*LAYOUT[:8], ENGINES, TENSOR_PARALLEL)
    least = 0 if command.has(ALL) else 1
    return [
        f"--{command.given(key)[-1].name} {value} is not a number of {least} or more"
        for key in keys
        if (value := command.value(key)) and (command.number(key) or 0) < least
    ]


def placed(command: OpenRLHFCommand, gpus: Sequence[int]) -> Chosen:
    """Return the command with the layout that it leaves open. `gpus`: of each node that has any."""
    if not gpus:
        return Chosen(command)
    nothing_said = not any(command.has(key) for key in LAYOUT)
    if command.has(ASYNC) or not (command.has(ALL) or nothing_said):
        return _with_engines(command, sum(gpus))
    actor = _actor(command, gpus)
    chosen = _numbers(command, "actor", actor)
    warnings: tuple[str, ...] = ()
    for model in users(command):
        typed = [command.value(f"{model}.{part}") for part in (NODES, EACH)]
        if None in typed or "0" in typed:
            chosen = _numbers(chosen, model, actor)
        if "0" in typed:
            warnings += (f"{model}: 0 nodes or GPUs, so it shares those of the actor",)
    parallel = command.number(TENSOR_PARALLEL) or 1
    if not command.has(ENGINES):
        chosen = chosen.adding(Flag(ENGINES, (str(actor[0] * actor[1] // parallel),)))
    if nothing_said:
        memory = () if command.has(MEMORY) else (SHARED_MEMORY,)
        missing = [flag for flag in SHARED if not command.has(flag.name)]
        chosen = chosen.adding(*missing, *memory)
        warnings += ("no layout is given, so all models and engines share all GPUs",)
    return Chosen(chosen, warnings)


def lacking(command: OpenRLHFCommand, gpus: Sequence[int]) -> list[str]:
    """Return what the nodes lack for the command, or why its numbers cannot be placed."""
    found = [*_contradictions(command)]
    wanted = demand(command)
    offered = ", ".join(map(str, gpus)) or "0"
    if (total := sum(wanted.values())) > sum(gpus):
        parts = ", ".join(f"{name} {count}" for name, count in wanted.items() if count)
        found.append(
            f"OpenRLHF wants {counted(total, 'GPU')} ({parts}); the nodes offer {offered}. "
            "It would wait for ever: give smaller numbers, or let all share GPUs "
            "(--train.colocate_all, in older releases --colocate_all_models)"
        )
    return found


def demand(command: OpenRLHFCommand) -> dict[str, int]:
    """Return how many GPUs each model and the engines reserve for themselves."""
    size = {model: _size(command, model) for model in MODELS}
    used = users(command)
    everything = command.has(ALL)
    pair = command.has(WITH_REWARD) and "critic" in used
    wanted = {"actor": size["actor"]}
    if "ref" in used and not (everything or command.has(WITH_ACTOR)):
        wanted["ref"] = size["ref"]
    if "critic" in used and (pair or not everything):
        wanted["critic"] = size["critic"]
    if "reward" in used and not (pair or everything):
        wanted["reward"] = size["reward"]
    if not everything or command.has(ASYNC):
        wanted["engines"] = _engines(command)
    return wanted


def users(command: OpenRLHFCommand) -> list[str]:
    """Return the models beside the actor that the command has."""
    found = []
    if _kl_coefficient(command) > 0:
        found.append("ref")
    if has_critic(command):
        found.append("critic")
    if not (command.has("reward.remote_url") or command.has("train.agent_func_path")):
        found.append("reward")
    return found


def has_critic(command: OpenRLHFCommand) -> bool:
    return (command.value("algo.advantage.estimator") or "gae") == "gae"


def ranks_of_actor(command: OpenRLHFCommand) -> int:
    """Return how many ranks share the actor's optimizer state."""
    return _size(command, "actor") // (command.number("ds.tensor_parallel_size") or 1)


def _actor(command: OpenRLHFCommand, gpus: Sequence[int]) -> tuple[int, int]:
    """Return the actor's nodes and GPUs of each: what is given, and the rest from the roll."""
    nodes, each = (command.number(f"actor.{part}") or None for part in (NODES, EACH))
    if nodes is None and each is not None:
        nodes = max(1, sum(count >= each for count in gpus))
    nodes = nodes or len(gpus)
    each = each or sorted(gpus, reverse=True)[min(nodes, len(gpus)) - 1]
    return nodes, each


def _numbers(command: OpenRLHFCommand, model: str, numbers: tuple[int, int]) -> OpenRLHFCommand:
    keys = (f"{model}.{NODES}", f"{model}.{EACH}")
    missing = [
        Flag(key, (str(number),))
        for key, number in zip(keys, numbers, strict=True)
        if command.number(key) != number
    ]
    return command.having(*missing)


def _with_engines(command: OpenRLHFCommand, total: int) -> Chosen:
    """Return the command with engines on the GPUs that are left, or with a shared reference."""
    warnings: tuple[str, ...] = ()
    wanted = demand(command)
    if not command.has(ENGINES):
        left = (total - sum(wanted.values())) // (command.number(TENSOR_PARALLEL) or 1)
        if left > 0:
            return Chosen(command.adding(Flag(ENGINES, (str(left),))))
    shares = any(command.has(key) for key in (WITH_ACTOR, WITH_REWARD, ALL))
    if shares or sum(wanted.values()) <= total or wanted["actor"] != wanted.get("ref"):
        return Chosen(command)
    shared = command.adding(Flag(WITH_ACTOR))
    if sum(demand(shared).values()) > total or _contradictions(shared):
        return Chosen(command)
    warnings = (
        f"OpenRLHF wants {counted(sum(wanted.values()), 'GPU')} and the nodes have {total}, so "
        f"actor and reference share {counted(wanted['actor'], 'GPU')} (--{WITH_ACTOR})",
    )
    return Chosen(shared, warnings)


def _contradictions(command: OpenRLHFCommand) -> list[str]:
    """Return a sentence for each pair of numbers that OpenRLHF would refuse."""
    used, found = users(command), []
    everything = command.has(ALL)
    pairs = [("actor", "ref")] if everything or command.has(WITH_ACTOR) else []
    pairs += [("critic", "reward")] if command.has(WITH_REWARD) and "critic" in used else []
    for first, second in pairs:
        if second in used and _pair(command, first) != _pair(command, second):
            sizes = [f"{one} {'×'.join(map(str, _pair(command, one)))}" for one in (first, second)]
            found.append(
                f"{' and '.join(sizes)} (nodes × GPUs) share GPUs, so they must be the same"
            )
    actor = _size(command, "actor")
    if everything and not command.has(ASYNC) and _engines(command) != actor:
        engines, parallel = command.number(ENGINES) or 0, command.number(TENSOR_PARALLEL) or 1
        found.append(
            f"{counted(engines, 'engine')} of {counted(parallel, 'GPU')} share the actor's "
            f"{counted(actor, 'GPU')}, so they must be as many: give "
            f"--{ENGINES} and --{TENSOR_PARALLEL} whose product is {actor}"
        )
    return found


def _pair(command: OpenRLHFCommand, model: str) -> tuple[int, int]:
    nodes, each = (
        DEFAULTS[part] if (number := command.number(f"{model}.{part}")) is None else number
        for part in (NODES, EACH)
    )
    return nodes, each


def _size(command: OpenRLHFCommand, model: str) -> int:
    nodes, each = _pair(command, model)
    return nodes * each


def _engines(command: OpenRLHFCommand) -> int:
    return (command.number(ENGINES) or 0) * (command.number(TENSOR_PARALLEL) or 1)


def _kl_coefficient(command: OpenRLHFCommand) -> float:
    """Return the coefficient; OpenRLHF's default if none is given, or one that is no number."""
    try:
        return float(command.value("algo.kl.init_coef") or "")
    except ValueError:
        return 0.01
