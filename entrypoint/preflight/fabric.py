"""Are the InfiniBand and RoCE ports up, alike, and used as NCCL's variables say?"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

from contract.durations import counted
from entrypoint.config.check_names import CheckName
from entrypoint.machine import infiniband, nccl_names
from entrypoint.machine.infiniband import ROCE_V2, Port
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict

NO_FABRIC = "no InfiniBand or RoCE device on this machine"
WATCH_SECONDS = 0.5
"""Between two looks at the error counters."""
SMALL_MTU = 4200
"""Bytes below which RoCE cannot use its largest packets of 4096."""


def _of_fabric(
    probe: Callable[[Context, list[Port]], Finding],
) -> Callable[[Context], Finding]:
    def of_fabric(context: Context) -> Finding:
        found = infiniband.ports(context.machine.sys)
        return probe(context, found) if found else Finding(Verdict.SKIP, NO_FABRIC)

    return of_fabric


def _used(context: Context, found: list[Port]) -> list[Port]:
    """The active ports that NCCL would take."""
    chosen = infiniband.selected(context.environ.get("NCCL_IB_HCA", ""), found)
    return [port for port in chosen if port.active]


def _ports(some: list[Port]) -> str:
    return f"{counted(len(some), 'port')} {'is' if len(some) == 1 else 'are'}"


def ports(context: Context, found: list[Port]) -> Finding:
    down = [port for port in found if not port.active]
    if not down:
        return Finding(Verdict.PASS, f"{_ports(found)} active")
    evidence = ", ".join(f"{port} is {port.state} ({port.physical})" for port in down)
    remedy = "check cable, switch port and subnet manager, or use another node"
    active = [port for port in found if port.active]
    pattern = context.environ.get("NCCL_IB_HCA", "")
    wanted = infiniband.selected(pattern, found)
    by_name = bool(pattern) and not pattern.startswith("^")
    serving, layers = {port.device for port in active}, {port.layer for port in active}

    def meant(port: Port) -> bool:
        """Second ports without a cable, and ports that were switched off, are meant to be down."""
        return port.physical == "Disabled" or port.device in serving or port.layer not in layers

    dead = [port for port in down if port in wanted and (by_name or not meant(port))]
    if not active or dead:
        return Finding(Verdict.FAIL, evidence, remedy)
    return Finding(Verdict.WARN, evidence, f"{remedy}; nothing to do where it is meant to be down")


def rates(context: Context, found: list[Port]) -> Finding:
    used = _used(context, found)
    by_layer: dict[str, list[Port]] = {}
    for port in used:
        by_layer.setdefault(port.layer, []).append(port)
    slower, sure = [], infiniband.named(context.environ)
    for layer, several in by_layer.items():
        usual, _ = Counter(port.rate for port in several).most_common(1)[0]
        others = [port for port in several if port.rate != usual]
        slower += [
            f"{port} runs at {port.rate:g} Gbit/s, the others of {layer} at {usual:g}"
            for port in others
        ]
        # Other NICs of a machine, for storage, may be RoCE, too.
        sure |= bool(others) and layer == "InfiniBand"
    if slower:
        verdict = Verdict.FAIL if sure else Verdict.WARN
        remedy = "check cable and switch port, or leave it out of NCCL_IB_HCA"
        return Finding(verdict, "; ".join(slower), remedy)
    rate = ", ".join(f"{s[0].rate:g} Gbit/s {layer}" for layer, s in by_layer.items())
    return Finding(Verdict.PASS, rate or "no active port")


def gids(context: Context, found: list[Port]) -> Finding:
    given = context.environ.get("NCCL_IB_GID_INDEX", "").strip()
    used = _used(context, found)
    if given and not given.lstrip("-").isdigit():
        evidence = f"NCCL_IB_GID_INDEX={given} is not a number"
        return Finding(Verdict.FAIL, evidence, "unset it")
    index = int(given or -1)
    for port in used:
        roce = port.layer == "Ethernet"
        right = port.roce_v2() if roce else []
        remedy = f"set NCCL_IB_GID_INDEX={right[0]}" if right else "unset NCCL_IB_GID_INDEX"
        if index >= 0 and port.gid(index) is None:
            return Finding(Verdict.FAIL, f"{port} has no address at GID index {index}", remedy)
        if index >= 0 and roce and port.gid_type(index) != ROCE_V2:
            kind = port.gid_type(index)
            evidence = f"{port} has {kind} at NCCL_IB_GID_INDEX={index}, not {ROCE_V2}"
            return Finding(Verdict.FAIL, evidence, remedy)
        if roce and not right:
            remedy = "give its network interface an IPv4 address"
            return Finding(Verdict.FAIL, f"{port} has no {ROCE_V2} address", remedy)
    chosen = f"NCCL_IB_GID_INDEX={index}" if index >= 0 else "NCCL chooses the index"
    return Finding(Verdict.PASS, f"{chosen}; it fits {counted(len(used), 'port')}")


def hcas(context: Context) -> Finding:
    pattern = context.environ.get("NCCL_IB_HCA", "")
    found = infiniband.ports(context.machine.sys)
    devices = ", ".join(dict.fromkeys(port.device for port in found)) or "none"
    if not pattern:
        return Finding(Verdict.SKIP, "NCCL_IB_HCA is not set" if found else NO_FABRIC)
    chosen, names = infiniband.selected(pattern, found), nccl_names.parsed(pattern)
    unfit = names.without((port.device, port.number) for port in found)
    evidence = f"NCCL_IB_HCA={pattern}; this node has {devices}"
    if names.misplaced:
        evidence += f": no {', '.join(names.misplaced)}, because {nccl_names.ALONE}"
        return Finding(Verdict.WARN if chosen else Verdict.FAIL, evidence, names.meant)
    if not chosen:
        return Finding(Verdict.FAIL, f"{evidence}: nothing is left", "unset it, or name these")
    if unfit:
        return Finding(Verdict.WARN, f"{evidence}: no {', '.join(unfit)}", "name these")
    return Finding(Verdict.PASS, f"NCCL_IB_HCA={pattern} chooses {counted(len(chosen), 'port')}")


def mtus(context: Context, found: list[Port]) -> Finding:
    of_port = {str(port): port.mtus() for port in _used(context, found) if port.layer == "Ethernet"}
    known = {name: min(several) for name, several in of_port.items() if several}
    if not known:
        return Finding(Verdict.SKIP, "no RoCE port with a network interface")
    evidence = ", ".join(f"{name}: {mtu}" for name, mtu in known.items())
    if len(set(known.values())) > 1:
        verdict = Verdict.FAIL if infiniband.named(context.environ) else Verdict.WARN
        remedy = "give all RoCE interfaces the same MTU, or name those for training in NCCL_IB_HCA"
        return Finding(verdict, evidence, remedy)
    if min(known.values()) < SMALL_MTU:
        return Finding(Verdict.WARN, evidence, "set an MTU of 9000 on interfaces and switches")
    return Finding(Verdict.PASS, evidence)


def gpudirect(context: Context, found: list[Port]) -> Finding:
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    modules = ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem")
    loaded = [name for name in modules if (context.machine.sys / "module" / name).exists()]
    if loaded:
        return Finding(Verdict.PASS, f"{loaded[0]} is loaded")
    evidence = "no peer memory module is loaded"
    if context.environ.get("NCCL_DMABUF_ENABLE", "").strip() == "0":
        remedy = "unset NCCL_DMABUF_ENABLE, or load nvidia_peermem on the host"
        return Finding(Verdict.WARN, f"{evidence}, and NCCL_DMABUF_ENABLE=0", remedy)
    return Finding(Verdict.PASS, f"{evidence}, which proves nothing: dma-buf needs none")


def errors(context: Context, found: list[Port]) -> Finding:
    before = {str(port): port.errors() for port in found}
    time.sleep(WATCH_SECONDS)
    rises, link_lost = [], False
    for port in found:
        for name, count in port.errors().items():
            if (more := count - before[str(port)].get(name, count)) > 0:
                rises.append(f"{port}: {name} rose by {more} within {WATCH_SECONDS:g} s")
                link_lost |= name == "link_downed"
    if rises:
        verdict = Verdict.FAIL if link_lost else Verdict.WARN
        remedy = "check cable, transceiver and switch port, or use another node"
        return Finding(verdict, "; ".join(rises), remedy)
    return Finding(Verdict.PASS, "no error counter moves")


def verbs(context: Context, found: list[Port]) -> Finding:
    """May NCCL open the ports? In a container without their files it takes sockets, silently."""
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    if infiniband.disabled(context.environ):
        return Finding(Verdict.SKIP, "NCCL_IB_DISABLE leaves the ports unused")
    sys, dev = context.machine.sys, context.machine.dev
    files = {port: infiniband.verbs(port, sys, dev) for port in _used(context, found)}
    closed = [
        str(port)
        for port, own in files.items()
        if not any(os.access(path, os.R_OK | os.W_OK) for path in own)
    ]
    if closed:
        evidence = f"user {os.geteuid()} cannot open the files of {', '.join(closed)} in "
        evidence += f"{dev / 'infiniband'}: NCCL does without"
        verdict = Verdict.FAIL if infiniband.named(context.environ) else Verdict.WARN
        return Finding(verdict, evidence, "start the container with --device /dev/infiniband")
    return Finding(Verdict.PASS, f"user {os.geteuid()} may open {counted(len(files), 'port')}")


def disabled(context: Context, found: list[Port]) -> Finding:
    raw = context.environ.get("NCCL_IB_DISABLE", "").strip()
    active = [port for port in found if port.active]
    off = infiniband.disabled(context.environ)
    if off and active:
        evidence = f"NCCL_IB_DISABLE={raw}, and {_ports(active)} active"
        return Finding(Verdict.WARN, evidence, "unset NCCL_IB_DISABLE: sockets are far slower")
    return Finding(Verdict.PASS, "NCCL may use InfiniBand" if not off else "NCCL uses sockets")


CHECKS = (
    Check(CheckName.FABRIC_PORTS, "are the InfiniBand and RoCE ports up?", _of_fabric(ports)),
    Check(CheckName.FABRIC_RATE, "do the ports run at one rate?", _of_fabric(rates)),
    Check(CheckName.FABRIC_GID, "does the GID index fit the ports?", _of_fabric(gids)),
    Check(CheckName.FABRIC_HCA, "does NCCL_IB_HCA name devices that are there?", hcas),
    Check(
        CheckName.FABRIC_MTU, "do the RoCE interfaces have the same, large MTU?", _of_fabric(mtus)
    ),
    Check(
        CheckName.FABRIC_GPUDIRECT, "can the network read the GPUs' memory?", _of_fabric(gpudirect)
    ),
    Check(CheckName.FABRIC_ERRORS, "do the ports' error counters stand still?", _of_fabric(errors)),
    Check(CheckName.FABRIC_VERBS, "may NCCL open the ports?", _of_fabric(verbs)),
    Check(CheckName.FABRIC_DISABLED, "is healthy InfiniBand left unused?", _of_fabric(disabled)),
)
