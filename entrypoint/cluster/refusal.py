"""Pure: why the head refuses a node that checks in, or has it ask again."""

from __future__ import annotations

from collections.abc import Mapping

from contract.durations import duration
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.roll import RegisteredNode

MUST_AGREE = ("python", "ray", "image")
"""Versions that must be equal on all nodes: otherwise Ray refuses the node, or breaks."""

CLOCK_FAILS = 60.0
"""Limit for the difference between a node's clock and the head's, in seconds."""


def refusal(
    info: NodeInfo, head: NodeInfo, skew: float = 0.0, skipped_checks: frozenset[str] = frozenset()
) -> str | None:
    """Return why the head refuses this node; None if it accepts it.

    `skew`: seconds by which the node's clock is ahead of the head's.
    """
    if info.unfit:
        return f"{info.node} is not fit: {'; '.join(info.unfit)}"
    if info.node == head.node:  # messages about one would be read as about the other
        return f"{info.node} is the head's own name: give this worker another ROLLCALL_NODE_NAME"
    if info.tls != head.tls:
        return (
            f"{info.node} has {_tls(info.tls)}, and the head has {_tls(head.tls)}: set the same "
            "ROLLCALL_TLS or ROLLCALL_TLS_CA on all nodes"
        )
    differing = [
        f"{name} {info.versions.get(name, 'unknown')} here, {head.versions[name]} on the head"
        for name in MUST_AGREE
        if head.versions.get(name) and info.versions.get(name) != head.versions[name]
    ]
    if differing and "nodes.versions" not in skipped_checks:
        return (
            f"{info.node} differs from the head: {'; '.join(differing)}; use one image everywhere"
        )
    if abs(skew) > CLOCK_FAILS and "nodes.clock" not in skipped_checks:
        side = "ahead of" if skew > 0 else "behind"
        off = f"{duration(abs(skew))} {side} the head's"
        return f"the clock of {info.node} is {off}: set both (NTP)"
    return None


def _tls(kind: str) -> str:
    names = {"": "no TLS", "auto": "ROLLCALL_TLS=auto"}
    return names.get(kind, f"the ROLLCALL_TLS_CA with {kind}")


def other_storage(
    info: NodeInfo, head: NodeInfo, skipped_checks: frozenset[str] = frozenset()
) -> str | None:
    """Return why this node's run directory is not the head's; None if it is.

    A node that has joined Ray has proved it before.
    """
    if not head.storage or info.joined or info.unfit or "nodes.storage" in skipped_checks:
        return None
    if info.storage == head.storage:
        return None
    return (
        f"the head does not see in its run directory what {info.node} has written to its own: "
        "mount one shared storage at ROLLCALL_RUN_DIR on all nodes, or set ROLLCALL_STORAGE=head "
        "on all nodes"
    )


def name_taken(info: NodeInfo, entries: Mapping[str, RegisteredNode], now: float) -> str | None:
    """Return why this node's name cannot be used now; None if it can.

    A node at another address has the name. It may be the same node, moved to a new machine before
    the head has noticed, so this is a reason to wait, not to refuse.
    """
    entry = entries.get(info.node)
    if entry and entry.present(now) and entry.info.address != info.address:
        return (
            f"another node, at {entry.info.address}, already answers to {info.node}: "
            "give one of them another ROLLCALL_NODE_NAME"
        )
    return None
