"""Pure: compares the nodes with one another, from what they said at check-in.

Some differences refuse a node at check-in (`nodes.storage`, `nodes.clock`, `nodes.versions`). The
others are reported once the roll is complete, with the nodes that differ from the majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.cluster.roll import (
    CLOCK_FAILS,
    CLOCK_WARNS,
    MUST_AGREE,
    RegisteredNode,
)
from entrypoint.config.check_names import CheckName
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.preflight.verdict import About
from entrypoint.run.reads import STORAGE_GRACE_SECONDS

MOST_NAMED = 5
"""Nodes that a sentence names before it only counts them."""
SOFTWARE = ("rollcall", "torch", "vllm", "transformers", "cuda", "rocm", "nccl", "rccl", "driver")


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check of all nodes together."""

    name: str
    question: str
    differences: Callable[[Sequence[RegisteredNode]], list[str]]
    about: About


def skipped_checks(settings: Settings) -> frozenset[str]:
    """Return the names of the checks that the head skips: all, unless preflight is strict."""
    if settings.preflight is PreflightMode.STRICT:
        return settings.preflight_skip
    return frozenset(check.name for check in CHECKS)


def differences(
    nodes: Sequence[RegisteredNode], skipped_checks: frozenset[str] = frozenset()
) -> list[str]:
    """One sentence for each difference; `skipped_checks`: names of checks that are not asked."""
    return [
        f"{check.name}: {sentence}"
        for check in CHECKS
        if check.name not in skipped_checks
        for sentence in check.differences(nodes)
    ]


def minority(what: str, values: Mapping[str, str]) -> list[str]:
    """Return a sentence for each value but the most frequent one. `values`: node to its value.

    If two values are equally frequent, the first counts, which is the head's.
    """
    (usual, times), *_ = Counter(values.values()).most_common(1) or [("", 0)]
    sentences = []
    for value in dict.fromkeys(values.values()):
        if value != usual:
            who = [node for node, found in values.items() if found == value]
            sentences.append(
                f"{_named(who)}: {what} is {value or 'not there'}, "
                f"on {times} of {len(values)} nodes {usual or 'not there'}"
            )
    return sentences


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) <= MOST_NAMED:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:MOST_NAMED])} and {len(nodes) - MOST_NAMED} more"


def software(nodes: Sequence[RegisteredNode]) -> list[str]:
    return [
        sentence
        for name in SOFTWARE
        for sentence in minority(
            name, {node.info.node: node.info.versions.get(name, "") for node in nodes}
        )
    ]


def gpus(nodes: Sequence[RegisteredNode]) -> list[str]:
    models = {node.info.node: node.info.versions.get("gpu", "") for node in nodes}
    counts = {node.info.node: f"{node.info.inventory.get('gpus', 0):g}" for node in nodes}
    return [*minority("the GPU", models), *minority("the number of GPUs", counts)]


def environment(nodes: Sequence[RegisteredNode]) -> list[str]:
    names = sorted({name for node in nodes for name in node.info.environment})
    return [
        sentence
        for name in names
        for sentence in minority(
            name, {node.info.node: node.info.environment.get(name, "") for node in nodes}
        )
    ]


def mtu(nodes: Sequence[RegisteredNode]) -> list[str]:
    known = {node.info.node: node.info.inventory.get("mtu", 0) for node in nodes}
    return minority("the MTU", {name: f"{value:g}" for name, value in known.items() if value})


def clock(nodes: Sequence[RegisteredNode]) -> list[str]:
    return [
        f"{node.info.node}: its clock is {abs(node.skew):.1f} s "
        f"{'ahead of' if node.skew > 0 else 'behind'} the head's; set both (NTP)"
        for node in nodes
        if abs(node.skew) > CLOCK_WARNS
    ]


def address(nodes: Sequence[RegisteredNode]) -> list[str]:
    return [
        f"{node.info.node} says {node.info.address}, and the head sees {node.source}: others may "
        "not reach it by that address; set its ROLLCALL_NODE_ADDRESS"
        for node in nodes
        if node.source and node.source != node.info.address
    ]


def nothing(nodes: Sequence[RegisteredNode]) -> list[str]:
    """Find no difference: these checks refuse a node before it is on the roll."""
    return []


CHECKS = (
    NodeCheck(
        CheckName.NODES_VERSIONS,
        "have all nodes the same Python, Ray and image?",
        nothing,
        About(
            evidence=f"{', '.join(MUST_AGREE)} of each node against those of the head",
            threshold="the head refuses a node that differs",
            source="Ray compares Python to the patch and its own version exactly (ray#44063)",
            remedy="use one image everywhere",
        ),
    ),
    NodeCheck(
        CheckName.NODES_STORAGE,
        "is the run directory the same storage on all nodes?",
        nothing,
        About(
            evidence="a file with a random name that each worker writes there at check-in",
            threshold="the head refuses a worker if it does not see the worker's file within "
            f"{STORAGE_GRACE_SECONDS:g} s",
            source="checkpoints, the journal and the token lie there",
            remedy="mount one shared storage at ROLLCALL_RUN_DIR on all nodes",
        ),
    ),
    NodeCheck(
        CheckName.NODES_CLOCK,
        "have all nodes the head's time?",
        clock,
        About(
            evidence="the worker's time at check-in",
            threshold=f"the head refuses the worker from {CLOCK_FAILS:g} s on, "
            f"and warns from {CLOCK_WARNS:g} s on",
            source="our choice: with larger differences logs cannot be compared, and tokens "
            "and leases expire too early",
            remedy="set both clocks (NTP)",
        ),
    ),
    NodeCheck(
        CheckName.NODES_ADDRESS,
        "does the head see each node at the address that it gives?",
        address,
        About(
            evidence="the source address of the check-in's connection against the address "
            "that the node reports",
            threshold="warns if they differ",
            source="a bridge's or another interface's address (OpenRLHF#265, verl#726)",
            remedy="set ROLLCALL_NODE_ADDRESS on that node",
        ),
    ),
    NodeCheck(
        CheckName.NODES_SOFTWARE,
        "have all nodes the same software and drivers?",
        software,
        About(
            evidence=f"versions of {', '.join(SOFTWARE)}",
            threshold="warns, and names each difference and the nodes that differ from the "
            "majority",
            source="NCCL's versions must agree; other differences explain differing numbers",
            remedy="use one image, and one driver, on all machines",
        ),
    ),
    NodeCheck(
        CheckName.NODES_GPUS,
        "have all nodes the same GPUs?",
        gpus,
        About(
            evidence="model and number",
            threshold="warns, and names each node that differs",
            source="a step is as fast as the slowest GPU",
            remedy="remove the node, or place the models by custom resources",
        ),
    ),
    NodeCheck(
        CheckName.NODES_ENVIRONMENT,
        "have all nodes the same variables for NCCL, RCCL and gloo?",
        environment,
        About(
            evidence="variables that begin with NCCL_, RCCL_, GLOO_, TORCH_NCCL_, UCX_, HSA_",
            threshold="warns, and names each node that differs",
            source="NCCL user guide: most must be the same on all ranks (nccl#286 for names of "
            "interfaces, which may have to differ)",
            remedy="set the same values on all nodes, except names of interfaces",
        ),
    ),
    NodeCheck(
        CheckName.NODES_MTU,
        "have all nodes the same MTU?",
        mtu,
        About(
            evidence="the MTU of the interface that leads to the head",
            threshold="warns, and names each node that differs",
            source="a smaller MTU on the way drops large packets",
            remedy="set one MTU on all nodes",
        ),
    ),
)
