"""Pure: compares the nodes with one another, from what they said at check-in.

Some differences refuse a node at check-in (`nodes.storage`, `nodes.clock`, `nodes.versions`):
`refusal.py` finds them. The others are reported once the roll is complete, with the nodes that
differ from the majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from contract.durations import counted
from entrypoint.cluster.roll import RegisteredNode
from entrypoint.config.check_names import CheckName
from entrypoint.config.settings import PreflightMode, Settings

CLOCK_WARNS = 2.0
"""Limit for the difference between two clocks, in seconds, above which it is reported."""
MOST_NAMED = 5
"""Nodes that a sentence names before it only counts them."""
SOFTWARE = ("rollcall", "torch", "vllm", "transformers", "cuda", "rocm", "nccl", "rccl", "driver")


def skipped_checks(settings: Settings) -> frozenset[str]:
    """Return the names of the checks that the head skips: all, unless preflight is strict."""
    if settings.preflight is not PreflightMode.STRICT:
        return frozenset(CHECKS)
    of_storage = set() if settings.shares_run_dir else {CheckName.NODES_STORAGE}
    return settings.preflight_skip | of_storage


def differences(
    nodes: Sequence[RegisteredNode], skipped_checks: frozenset[str] = frozenset()
) -> list[str]:
    """One sentence for each difference; `skipped_checks`: names of checks that are not asked."""
    return [
        f"{name}: {sentence}"
        for name, check in CHECKS.items()
        if name not in skipped_checks
        for sentence in check(nodes)
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
    return _of_each(SOFTWARE, {node.info.node: node.info.versions for node in nodes})


def gpus(nodes: Sequence[RegisteredNode]) -> list[str]:
    models = {node.info.node: node.info.versions.get("gpu", "") for node in nodes}
    counts = {node.info.node: f"{node.info.inventory.get('gpus', 0):g}" for node in nodes}
    differ = [*minority("the GPU", models), *minority("the number of GPUs", counts)]
    return [*differ, *shared_gpus(nodes)]


def shared_gpus(nodes: Sequence[RegisteredNode]) -> list[str]:
    """Return a sentence for each set of nodes that use the same GPUs, as two on one machine do."""
    users: dict[str, list[str]] = {}
    for node in nodes:
        for gpu in node.info.gpu_ids:
            users.setdefault(gpu, []).append(node.info.node)
    shared: dict[tuple[str, ...], list[str]] = {}
    for gpu, names in users.items():
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(gpu)
    return [
        f"{_named(names)}: they share {counted(len(gpus), 'GPU')} ({_named(gpus)}); start each "
        "node with GPUs of its own (docker run --gpus device=…, CUDA_VISIBLE_DEVICES)"
        for names, gpus in shared.items()
    ]


def environment(nodes: Sequence[RegisteredNode]) -> list[str]:
    values = {node.info.node: node.info.environment for node in nodes}
    return _of_each(sorted({name for known in values.values() for name in known}), values)


def _of_each(names: Sequence[str], values: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the differences in each of the names. `values`: node → name → value."""
    return [
        sentence
        for name in names
        for sentence in minority(name, {node: has.get(name, "") for node, has in values.items()})
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


CHECKS: Mapping[CheckName, Callable[[Sequence[RegisteredNode]], list[str]]] = {
    CheckName.NODES_VERSIONS: nothing,
    CheckName.NODES_STORAGE: nothing,
    CheckName.NODES_CLOCK: clock,
    CheckName.NODES_ADDRESS: address,
    CheckName.NODES_SOFTWARE: software,
    CheckName.NODES_GPUS: gpus,
    CheckName.NODES_ENVIRONMENT: environment,
    CheckName.NODES_MTU: mtu,
}
"""The checks of all nodes together: each returns a sentence for each difference."""
