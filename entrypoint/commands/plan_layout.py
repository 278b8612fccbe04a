"""The lines of a plan on its layout: places, memory, reasons, and what a step costs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from contract.resources import gib

PHASES = {
    "load": "most at the start",
    "publish": "most while engines get weights",
    "rollout": "most while engines write",
    "forward": "most in passes without gradients",
    "update": "most in the update",
}
"""Phase of the estimate → how the line of the memory says it."""
MANY = 5
"""Workers from which a line does not name each."""
OF_NODE = {
    "while it trains": (
        ("moved", "moved off the GPUs"),
        ("copies", "copies of its own state"),
        ("replicas", "copies of another node's"),
        ("published", "weights for engines"),
        ("exported", "for --save_hf_ckpt"),
        ("samples", "samples of a step"),
        ("standby", "standby ranks"),
    ),
    "while it starts": (
        ("files", "files of models, for all processes"),
        ("read", "weights, each process its own"),
    ),
}
"""When a node's memory is needed → the terms of the sum: their keys, and how they are shown."""


def lines(layout: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return a line for each group: its processes, their nodes, and their peak memory."""
    if layout is None:
        return []
    found = [
        (
            f"layout: {group['role']}",
            f"{group['nodes']} x {group['per_node']} on {_places(group['on'])}",
            f"shares with {', '.join(group['shares_with'])}" if group["shares_with"] else "",
        )
        for group in layout["groups"]
    ]
    found += [_of_gpus(pool) for pool in layout["memory"] if _sum(pool["parts"] or {})[1]]
    found += _of_node(layout["host"]) if layout.get("host") else []
    found += _of_cpus(layout["on_cpus"]) if layout.get("on_cpus") else []
    kernels = layout.get("kernels")
    if chosen := layout["chosen"]:
        reasons = [one for one in chosen["reasons"] if one not in _needs(layout)]
        found += [("chosen", reason, "") for reason in reasons]
        found.append(("the same by flags", shlex.join(chosen["flags"]), ""))
        kernels = None if any(one.startswith(kernels or "-") for one in reasons) else kernels
    said = {"kernels": kernels, "note": layout["note"], "idle": layout["idle"]}
    return found + [(key, value, "") for key, value in said.items() if value]


def _needs(layout: Mapping[str, Any]) -> Sequence[str]:
    """Return the reasons that the lines of memory tell already."""
    return [
        f"by the estimate a GPU needs {gib(pool['peak_bytes'])} of its {gib(pool['memory_bytes'])}"
        for pool in layout["memory"]
        if pool["peak_bytes"] and pool["memory_bytes"]
    ]


def _of_gpus(pool: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the line of a pool's GPUs: the sum, and its terms in the phase that needs most."""
    phase, parts, roles = PHASES[pool["phase"]], pool["parts"], ", ".join(pool["roles"])
    total, terms = _sum(parts)
    said = f"{roles}; {phase}: {terms}" if len(pool["roles"]) > 1 else f"{roles}; {phase}"
    if pool["each"] == "CPU":
        return "memory", f"{total} or more for each process", said
    if "engine" in pool["roles"]:
        said += "; engines fill their share of a larger one with cache"
    has, free = pool["memory_bytes"], (pool["memory_bytes"] or 0) - pool["peak_bytes"]
    rest = f", at most {gib(free)} free" if free > 0 else ""
    where = f"{total} or more on each GPU, {_has(has, '--gpu-memory 80GB')}{rest}"
    return "memory", where, said


def _of_cpus(sums: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the line of the fullest node without GPUs; none for nothing."""
    if not sums["need_bytes"]:
        return []
    need, has = gib(sums["need_bytes"]), _has(sums["memory_bytes"], "--memory 64GB")
    return [("node memory", f"{need} or more on {sums['node']}, {has}", "all processes together")]


def _has(memory: int | None, flag: str) -> str:
    return f"which has {gib(memory)}" if memory else f"whose memory is not known: give {flag}"


def most_memory(layout: Mapping[str, Any] | None) -> str:
    """Return the largest estimate of a GPU's memory, or of a node without GPUs; "" for none."""
    if layout is None:
        return ""
    if most := _fullest_pool(layout):
        has = f" of its {gib(most['memory_bytes'])}" if most["memory_bytes"] else ""
        return f"{gib(most['peak_bytes'])} or more{has} on each GPU"
    node = layout.get("on_cpus")
    if not node or not node["need_bytes"]:
        return ""
    has = f" of its {gib(node['memory_bytes'])}" if node["memory_bytes"] else ""
    return f"{gib(node['need_bytes'])} or more{has} on {node['node']}"


def _fullest_pool(layout: Mapping[str, Any]) -> Mapping[str, Any] | None:
    pools = [pool for pool in layout["memory"] if pool["each"] != "CPU" and pool["peak_bytes"]]
    return max(pools, key=lambda pool: int(pool["peak_bytes"]), default=None)


def above_memory(layout: Mapping[str, Any] | None) -> str:
    """Return what the estimate needs and the machines do not have; "" if it fits."""
    if layout is None:
        return ""
    most, node = _fullest_pool(layout), layout.get("on_cpus")
    if most and most.get("memory_bytes") and most["peak_bytes"] > most["memory_bytes"]:
        need, has = gib(most["peak_bytes"]), gib(most["memory_bytes"])
        return f"needs {need} or more on each GPU, which has {has}"
    if not (node and _is_above(node, "need_bytes")):
        return ""
    need, has = gib(node["need_bytes"]), gib(node["memory_bytes"])
    fits = f" ({remedy(layout)})" if node["fits_with"] else ""
    return f"needs {need} or more, {node['node']} has {has}{fits}"


def remedy(layout: Mapping[str, Any]) -> str:
    """Return what would fit nodes without GPUs."""
    fits = layout["on_cpus"]["fits_with"]
    if fits is None:
        return "Take a smaller model or a machine with more memory"
    return f"{shlex.join(fits['flags'])} would need {gib(fits['need_bytes'])}"


def certainly_above(layout: Mapping[str, Any] | None) -> str:
    """Return why nodes without GPUs cannot hold the models, however short samples are; or ""."""
    node = (layout or {}).get("on_cpus")
    if not node or not _is_above(node, "states_bytes"):
        return ""
    states, has = gib(node["states_bytes"]), gib(node["memory_bytes"])
    return (
        f"weights, gradients and optimizers alone need {states} on {node['node']}, which has {has}"
    )


def _is_above(node: Mapping[str, Any], key: str) -> bool:
    return bool(node["memory_bytes"] and node[key] > node["memory_bytes"])


def short_of_memory(layout: Mapping[str, Any] | None) -> list[str]:
    """Return a sentence for each estimate that is above what the machines have."""
    if layout is None:
        return []
    found = [
        f"by the estimate, {', '.join(pool['roles'])} need {gib(pool['peak_bytes'])} or more on "
        f"each GPU, which has {gib(pool['memory_bytes'])}"
        for pool in layout["memory"]
        if pool.get("memory_bytes") and (pool["peak_bytes"] or 0) > pool["memory_bytes"]
    ]
    node = layout.get("on_cpus")
    if node and _is_above(node, "need_bytes"):
        need, has = gib(node["need_bytes"]), gib(node["memory_bytes"])
        short = f"by the estimate, {node['node']} needs {need} or more, and has {has}"
        found.append(f"{short}, if samples are as long as flags allow. {remedy(layout)}")
    return found


def _of_node(host: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the line of the fullest node: the larger of two sums, with both; none for nothing."""
    sums = {when: _sum({words: host[key] for key, words in of}) for when, of in OF_NODE.items()}
    larger = max(OF_NODE, key=lambda when: sum(host[key] for key, _ in OF_NODE[when]))
    total, terms = sums.pop(larger)
    if not terms:
        return []
    others = [f"; {when} {less}: {its}" for when, (less, its) in sums.items() if its]
    where = (
        f"{total} of CPU memory on {host['node']}, {_has(host['memory_bytes'], '--memory 1000GB')}"
    )
    return [("node memory", where, f"{larger}: {terms}{''.join(others)}")]


def _sum(parts: Mapping[str, int]) -> tuple[str, str]:
    """Return a sum and its terms, in tenths of a GiB that add up; terms of 0.0 are left out."""
    tenths = {name: round(size * 10 / 2**30) for name, size in parts.items()}
    total = round(sum(parts.values()) * 10 / 2**30)
    if tenths:
        tenths[max(tenths, key=lambda name: tenths[name])] += total - sum(tenths.values())
    shown = [f"{name} {size / 10:.1f} GiB" for name, size in tenths.items() if size]
    return f"{total / 10:.1f} GiB", " + ".join(shown)


def cost_lines(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the estimated seconds of a step, and its terms; none for other recipes' jobs."""
    layout = row["layout"]
    if layout is None or "cost" not in layout:
        why = "only the builtin trainer's steps are estimated"
        return [("cost", "unknown", "see the faults above" if row["faults"] else why)]
    if (known := layout["cost"]) is None:
        return [("cost", "unknown", "the layout is not on GPUs, or a model's size is unknown")]
    terms = ", ".join(f"{name} {seconds:.1f}" for name, seconds in known["terms"].items())
    passes = f"{known['passes']} of up to {known['tokens_a_pass']} tokens for an update of a rank"
    unknown = known["unknown_gpu"]
    rates = (
        "rates",
        f"of the slowest GPU, {known['rates_of']}",
        f"assumed: nobody knows the peaks of the GPU ({unknown})" if unknown else "",
    )
    return [("cost", f"{known['seconds']:.1f} s a step", terms), ("passes", passes, ""), rates]


def _places(nodes: Sequence[str]) -> str:
    """The nodes, each once; several engines on one node are a number behind it.

    Of many workers that have as many, the first and the last are named.
    """
    each = Counter(nodes)
    workers = [name for name in each if name.startswith("worker-")]
    row = [f"worker-{n}" for n in range(1, len(workers) + 1)]
    if len(row) >= MANY and workers == row and len({each[name] for name in row}) == 1:
        shown = f"{row[0]} to {row[-1]}" + (f" ({each[row[0]]} each)" if each[row[0]] > 1 else "")
        others = [name for name in nodes if name not in row]
        return f"{_places(others)}, {shown}" if others else shown
    return ", ".join(name if n == 1 else f"{name} ({n})" for name, n in each.items()) or "no node"
