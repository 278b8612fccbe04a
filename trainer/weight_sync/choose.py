"""Chooses the backend of weight updates. Pure.

    shared_memory   through the CPU's memory, and by a stream from node to node: for any engine
    nccl            a broadcast from the policy's first GPU to every GPU of every engine
    ipc             engines read the policy's memory on the GPUs that both share, without a network

Torch-free and Ray-free. `nccl` and `ipc` are vLLM's own names of its ends of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.cluster.bin_packing import Assignment
from trainer.config.config import Config
from trainer.config.layout import Role

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
        why = f": {self.why}" if self.why else ""
        return f"weights go over {WORDS[self.backend]}{why}"


def choose_backend(config: Config, found: Assignment) -> Choice:
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
        why = "engines of transformers know no other way"
        return Choice("shared_memory", why if asked else "")
    if not found.on_gpus:
        why = f"--vllm_sync_backend {wanted} needs GPUs"
        return Choice("shared_memory", why if asked else "")
    if _together(found):
        taken = "NCCL takes no two processes of one GPU, and policy and engines share theirs"
        return Choice("ipc", taken if wanted == "nccl" else "")
    return Choice("nccl")


def _together(found: Assignment) -> bool:
    """Whether every GPU of an engine has a rank of the policy, too."""
    return found.layout.pool_of(Role.ENGINE) is found.layout.pool_of(Role.POLICY)
