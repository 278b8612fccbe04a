"""Pure: the all-reduce over all nodes: when it is due, its required speed, its verdict.

Between GPUs, the weakest node's link limits the speed. Without GPUs there is no limit to compare
with, because gloo is as fast as the CPUs: a node fails only if it is silent or far slower than the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.durations import counted
from contract.resources import gpu_model
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.preflight.verdict import Verdict
from entrypoint.run.failure_classes import FailureClass

FAILS, WARNS = 0.25, 0.5
"""Shares of the speed that link and GPUs allow: below the first it fails, below the second it
warns."""
BITS = 8

AFTER_ON_GPUS = frozenset(
    {
        None,
        FailureClass.COLLECTIVE,
        FailureClass.NODE_LOST,
        FailureClass.GPU_FAULT,
        FailureClass.HANG,
        FailureClass.SCALED_UP,
        FailureClass.STRAGGLER,
    }
)
AFTER_ON_CPUS = frozenset({FailureClass.COLLECTIVE})
"""Failure classes after which the check runs before the next attempt; None: the first attempt."""


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """The result of an all-reduce over all nodes, and then over pairs of nodes."""

    verdict: Verdict
    sentence: str
    faulty: tuple[str, ...] = ()
    """Nodes that fail with every partner."""
    unstarted: tuple[str, ...] = ()
    """Nodes on which Ray starts no process, so that they were not tested."""


def members(node_infos: Sequence[NodeInfo]) -> list[NodeInfo]:
    """Return the nodes that take part: if any node has GPUs, only nodes with GPUs."""
    return [info for info in node_infos if _gpus(info)] or list(node_infos)


def due(after: FailureClass | None, among: Sequence[NodeInfo]) -> bool:
    """Return whether the check is due after an attempt that ended so. `among`: its members."""
    raises = AFTER_ON_GPUS if any(map(_gpus, among)) else AFTER_ON_CPUS
    return len(among) > 1 and after in raises


def expected(among: Sequence[NodeInfo]) -> float:
    """Return the GB/s that the weakest member's link and GPUs allow; 0 if unknown."""
    return min(map(_allowed, among), default=0.0)


def _allowed(info: NodeInfo) -> float:
    if not _gpus(info):
        return 0.0
    model = gpu_model(info.versions.get("gpu", ""))
    link = info.inventory.get("link_gbits", 0.0) / BITS
    return min(link, model.all_reduce_gbs) if model and model.all_reduce_gbs else link


def _gpus(info: NodeInfo) -> float:
    return info.inventory.get("gpus", 0)


def judge(row: Mapping[str, Any], allowed: float) -> CollectiveResult:
    """Judge the output `row` of the all-reduce program. `allowed`: GB/s, from `expected`."""
    gbs, faults = row["gbs"], row["faults"]
    single = [fault for fault in faults if len(fault["nodes"]) == 1]
    unstarted = tuple(fault["nodes"][0] for fault in single if fault["unstarted"])
    faulty = tuple(fault["nodes"][0] for fault in single if not fault["unstarted"])
    sentence = f"all-reduce over {counted(len(row['nodes']), 'node')}: "
    sentence += "no answer" if gbs is None else f"{gbs:.3g} GB/s"
    if gbs is not None and allowed:
        sentence += f", {gbs / allowed:.0%} of what their links and GPUs allow"
    sentence = "; ".join(
        [f"{sentence}, in {row['seconds']:.1f} s", *(fault["sentence"] for fault in faults)]
    )
    silent = gbs is None or any(fault["silent"] for fault in faults)
    if silent or faulty or gbs < FAILS * allowed:
        return CollectiveResult(Verdict.FAIL, sentence, faulty, unstarted)
    if faults or gbs < WARNS * allowed:
        return CollectiveResult(Verdict.WARN, sentence)
    return CollectiveResult(Verdict.PASS, sentence)
