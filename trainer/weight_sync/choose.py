"""Pure: which way the policy's weights reach the engines, and who has which place on it.

    shared_memory   through the CPU's memory, and by a stream from node to node: for any engine
    nccl            a broadcast from the policy's first GPU to every GPU of every engine
    ipc             engines read the policy's memory on the GPUs that both share, without a network

Torch-free and Ray-free. `nccl` and `ipc` are vLLM's own names of its ends of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.cluster.bin_packing import Assignment
from trainer.config.config import Config

WORDS = {
    "shared_memory": "through shared memory",
    "nccl": "by NCCL",
    "ipc": "by CUDA IPC",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A way, and why it is not the one that was asked for, if so."""

    backend: str
    why: str = ""

    def __str__(self) -> str:
        return f"weights go over {WORDS[self.backend]}{self.why and f': {self.why}'}"


def choice(config: Config, found: Assignment) -> Choice:
    """For a layout that is placed, of a run whose engines are settled.

    `auto` is `ipc` where policy and engines share GPUs, `nccl` on GPUs elsewhere. What cannot be
    is replaced by what can: OpenRLHF's `nccl` means its CUDA IPC, too, where all share GPUs, and a
    command for GPUs is also run without.
    """
    wanted = config.vllm.sync_backend
    asked = wanted in ("nccl", "ipc")
    if wanted == "shared_memory":
        return Choice(wanted)
    if config.rollout_engine != "vllm":
        return Choice("shared_memory", "engines of transformers know no other way" * asked)
    if not found.on_gpus:
        return Choice("shared_memory", f"--vllm_sync_backend {wanted} needs GPUs" * asked)
    if _together(found):
        taken = "NCCL takes no two processes of one GPU, and policy and engines share theirs"
        return Choice("ipc", taken * (wanted == "nccl"))
    return Choice("nccl")


def _together(found: Assignment) -> bool:
    """Whether every GPU of an engine has a rank of the policy, too."""
    return found.layout.pool_of("engine") is found.layout.pool_of("policy")


@dataclass(frozen=True, slots=True)
class Member:
    """An engine in the group of those to whom the policy broadcasts."""

    process: str
    """Tells it from whatever else was the same engine before."""
    ranks: int
    """GPUs, each a rank of the group."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the ranks of a member are in the group."""

    host: str
    port: int
    """Where the group meets."""
    first: int
    """The first one's number; the others follow it."""
    world: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """A group that is being formed: the policy's first rank is number 0, and waits there."""

    host: str
    port: int
    members: tuple[Member, ...]

    @property
    def world(self) -> int:
        return 1 + sum(member.ranks for member in self.members)

    def seats(self) -> list[Seat]:
        """Of each member, in order."""
        seats, first = [], 1
        for member in self.members:
            seats.append(Seat(self.host, self.port, first, self.world))
            first += member.ranks
        return seats


def blamed(late: Mapping[int, bool]) -> dict[int, str]:
    """Engines that did not come out of something that all do together → what is wrong with each.

    `late` says of each whether its process still answers. One that does was waiting, too, and is
    not at fault while another is silent.
    """
    silent = [f"engine-{engine}" for engine, answers in late.items() if not answers]
    return {
        engine: f"was left waiting by {', '.join(silent)}" if answers and silent else ""
        for engine, answers in late.items()
    }
