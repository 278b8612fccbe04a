"""Pure: a launch and the nodes → the processes of each node, with torchrun's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.durations import counted
from contract.launch.launcher_flags import Launch
from contract.resources import NodeResources

ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch")
LAUNCHERS_PATIENCE = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(24 * 3600)}
"""How many seconds accelerate's launcher gives its ranks after SIGTERM; torch's default is 30.

ROLLCALL_GRACE_SECONDS counts, at whose end the launcher is killed with its ranks.
"""
MODES = ("--multi", "--use", "--config")
"""What the flags of `accelerate launch` begin with that choose how it starts processes."""

WHOLE_MODEL = ("NO", "FALSE", "MULTI_")
"""What modes of accelerate begin with in which each process has the whole model. YAML reads NO
without quotes as false."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of one attempt meet."""

    host: str
    port: int
    attempt: str


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process on a node."""

    name: str
    """Such as "rank 3"; "ranks 8 to 15" if accelerate's launcher starts them."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    only_waits: bool = False
    """It starts the rank, waits for it, and would end at SIGTERM without a word to it."""

    @property
    def by_launcher(self) -> bool:
        """Whether the process is accelerate's launcher."""
        return self.argv[1 : 1 + len(ACCELERATE)] == ACCELERATE

    @property
    def log(self) -> str:
        """The end of its log's name."""
        return self.name.replace(" ", "-")


def members(nodes: Sequence[NodeResources]) -> list[NodeResources]:
    """Return the nodes that run ranks: if any node has GPUs, only nodes with GPUs."""
    return [node for node in nodes if node.gpus] or list(nodes)


def lacking(launch: Launch, nodes: Sequence[NodeResources]) -> list[str]:
    """Return what the nodes lack for the launch, a sentence each."""
    chosen = members(nodes)
    wanted = launch.per_node or 0
    total = sum(node.gpus for node in chosen)
    of_all = launch.accelerate is not None and wanted == total and len(chosen) > 1
    remedy = f" (with --num_machines {len(chosen)}, it is {total} of all nodes)" if of_all else ""
    faults = [
        f"{node.name} has {counted(node.gpus, 'GPU')}, and the job starts "
        f"{counted(wanted, 'process')} on each node{remedy}"
        for node in chosen
        if node.gpus and wanted > node.gpus
    ]
    counts = _counts(launch, chosen)
    if not faults and _once_a_node(launch) and len(set(counts)) > 1:
        each = ", ".join(f"{node.name} {node.gpus}" for node in chosen)
        faults.append(
            f"accelerate starts the same number of processes on each node, and the nodes have "
            f"different numbers of GPUs ({each}): give --num_processes"
        )
    return faults


def layout(launch: Launch, nodes: Sequence[NodeResources]) -> dict[str, Any]:
    """Return the ranks of each node and the GPUs without one, as `plan` shows them."""
    chosen = members(nodes)
    counts = _counts(launch, chosen)
    groups = [
        {
            "role": "ranks",
            "nodes": counts.count(count),
            "per_node": count,
            "on": [node.name for node, own in zip(chosen, counts, strict=True) if own == count],
            "shares_with": [],
        }
        for count in sorted(set(counts), reverse=True)
    ]
    idle = [
        f"{node.name} has {counted(node.gpus - count, 'GPU')} without a rank"
        for node, count in zip(chosen, counts, strict=True)
        if node.gpus > count
    ]
    return {
        "groups": groups,
        "memory": [],
        "chosen": None,
        "note": f"{sum(counts)} {'rank' if sum(counts) == 1 else 'ranks'}",
        "idle": "; ".join(idle) or None,
    }


def processes(
    launch: Launch, nodes: Sequence[NodeResources], meeting: Meeting, threads: str | None = None
) -> list[list[RankProcess]]:
    """Return the processes of each of `nodes`, which are those of `members`.

    `threads`: the user's OMP_NUM_THREADS.
    """
    counts = _counts(launch, nodes)
    world, first = sum(counts), 0
    found: list[list[RankProcess]] = []
    for index, count in enumerate(counts):
        common = {
            **launch.variables,
            **_threads(threads, count),
            "MASTER_ADDR": meeting.host,
            "MASTER_PORT": str(meeting.port),
        }
        if _once_a_node(launch):
            found.append([_of_accelerate(launch, common, (index, len(counts)), (first, count))])
        else:
            group = {
                "WORLD_SIZE": str(world),
                "ROLE_WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(count),
                "GROUP_RANK": str(index),
                "NODE_RANK": str(index),
                "GROUP_WORLD_SIZE": str(len(counts)),
                "ROLE_NAME": "default",
                "TORCHELASTIC_RUN_ID": meeting.attempt,
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            }
            found.append([_rank(launch, common | group, first, local) for local in range(count)])
        first += count
    return found


def world_size(launch: Launch, nodes: Sequence[NodeResources]) -> int:
    """Return the number of ranks on the nodes."""
    return sum(_counts(launch, members(nodes)))


def _counts(launch: Launch, nodes: Sequence[NodeResources]) -> list[int]:
    return [launch.per_node or max(1, node.gpus) for node in nodes]


def _once_a_node(launch: Launch) -> bool:
    """Return whether accelerate's launcher starts the ranks.

    With --cpu it starts one process only, so that Rollcall runs it once for each rank.
    """
    return launch.accelerate is not None and "--cpu" not in launch.accelerate


def has_whole_model(mode: object) -> bool:
    """Return whether each process has the whole model by accelerate's `distributed_type`."""
    return str(mode).upper().startswith(WHOLE_MODEL)


def chooses_mode(accelerate: Sequence[str]) -> bool:
    """Return whether flags of `accelerate launch` say how it starts processes."""
    return any(word.replace("_", "-").startswith(MODES) for word in accelerate)


def _threads(given: str | None, processes: int) -> dict[str, str]:
    """As torchrun: one thread for each of several processes of a node, unless the user says."""
    if given is not None:
        return {"OMP_NUM_THREADS": given}
    return {"OMP_NUM_THREADS": "1"} if processes > 1 else {}


def _rank(launch: Launch, env: Mapping[str, str], first: int, local: int) -> RankProcess:
    rank = str(first + local)
    own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local)}
    flag = (f"--local_rank={local}",) if launch.local_rank else ()
    by = () if launch.accelerate is None else (launch.python, *ACCELERATE, *launch.accelerate)
    argv = (*by, *launch.program, *flag, *launch.arguments)
    return RankProcess(f"rank {rank}", argv, {**env, **own}, only_waits=bool(by))


def _of_accelerate(
    launch: Launch, env: Mapping[str, str], machine: tuple[int, int], ranks: tuple[int, int]
) -> RankProcess:
    """`machine`: its number, and how many there are; `ranks`: the first, and how many."""
    (index, machines), (first, count) = machine, ranks
    given = launch.accelerate or ()
    several = machines * count > 1
    ours = (
        *(() if chooses_mode(given) or not several else ("--multi_gpu",)),
        *("--num_machines", str(machines), "--machine_rank", str(index)),
        *("--num_processes", str(machines * count), "--same_network"),
        *("--main_process_ip", env["MASTER_ADDR"], "--main_process_port", env["MASTER_PORT"]),
        *("--rdzv_backend", "static", "--max_restarts", "0", "--tee", "3"),
        *("--deepspeed_multinode_launcher", "standard"),
    )
    last = first + count - 1
    name = f"rank {first}" if count == 1 else f"ranks {first} to {last}"
    argv = (launch.python, *ACCELERATE, *given, *ours, *launch.program, *launch.arguments)
    return RankProcess(name, argv, {**LAUNCHERS_PATIENCE, **env}, only_waits=not several)
