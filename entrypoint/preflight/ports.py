"""Are this node's ports free, and is it the only node of its name on this machine?"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from entrypoint.config.check_names import CheckName
from entrypoint.config.parsers import DAEMON_PORTS, SMALLEST_PORT_RANGE
from entrypoint.config.role import Head
from entrypoint.config.settings import Settings
from entrypoint.machine import address, port_holders
from entrypoint.machine import limits as limits_of
from entrypoint.net import node_claims, wait
from entrypoint.net.port_block import PortBlock, why_not
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes import process, services
from entrypoint.processes.leftovers import DAEMON

FEWEST_WORKER_PORTS = 16
FIRST_OF_USERS = 1024
"""Ports below need a right."""
ENDING_SECONDS = 2.0
"""Seconds for a killed process to release its ports. Meanwhile its owner cannot be seen."""

WORKER_PORTS = "ROLLCALL_WORKER_PORTS"
MOST_NAMED = 5
"""Busy ports that the evidence has one by one."""
MOST_PROPOSED = 500
"""Ports of a range that a remedy proposes."""


def ports(context: Context) -> Finding:
    """A warning if an earlier life of this node holds the ports, which are freed before Ray starts.

    It is also a warning if the node itself holds them, as it runs and is only examined.
    """

    def found() -> Finding:
        finding = _look(context)
        if finding.verdict is Verdict.FAIL:
            raise wait.NotYetError(finding.evidence)
        return finding

    try:
        return wait.until("free ports", found, timeout=ENDING_SECONDS, stop=threading.Event())
    except wait.GaveUpError:
        return _look(context)


def _look(context: Context) -> Finding:
    settings = context.settings
    needed = _needed(settings, head=isinstance(context.role, Head))
    bound = {settings.control_port: address.bound(settings)}
    errors = {
        port: error for port in needed if (error := why_not(port, bound.get(port, ""))) is not None
    }
    if clash := _clash(settings, context.machine.proc, {needed[port] for port in errors}):
        return clash
    if refused := {port: one for port, one in errors.items() if isinstance(one, PermissionError)}:
        return _judge_refused(refused, needed)
    if errors:
        return _judge_busy(errors, needed, context)
    first, last = settings.worker_ports
    rest = range(first + DAEMON_PORTS, last + 1)
    free = sum(why_not(port) is None for port in rest)
    evidence = f"{len(needed)} ports and {free} of {len(rest)} worker ports are free"
    if free < FEWEST_WORKER_PORTS:
        remedy = f"set {WORKER_PORTS} to a free range of {SMALLEST_PORT_RANGE} ports or more"
        return Finding(Verdict.FAIL, evidence, remedy, passes=True)
    variables = {**dict.fromkeys(rest, WORKER_PORTS), **needed}
    return lent(variables, context.machine.proc) or Finding(Verdict.PASS, evidence)


def _clash(settings: Settings, proc: Path, busy: Collection[str]) -> Finding | None:
    """Return a failure if another node of this machine has some of the worker ports.

    `busy`: the variables of ports that are taken, which the remedy names too.
    """
    own = node_claims.of(settings.node_name, *settings.worker_ports)
    if not (others := node_claims.others(own, proc)):
        return None
    named = ", ".join(f"{one.node} ({one.first}-{one.last})" for one in others)
    evidence = (
        f"the worker ports {own.first}-{own.last} are also those of another Rollcall node on "
    )
    evidence += f"this machine: {named}"
    variables = sorted({WORKER_PORTS, *busy})
    remedy = f"give each of them its own {' and '.join(variables)}{_proposed(variables, settings)}"
    return Finding(Verdict.FAIL, evidence, remedy)


def lent(variables: Mapping[int, str], proc: Path) -> Finding | None:
    """Return a warning if the kernel may lend some of the ports to outgoing connections.

    `variables`: port → the variable that sets it.
    """
    ipv4 = proc / "sys" / "net" / "ipv4"
    limits = limits_of.read(ipv4 / "ip_local_port_range").split()
    if len(limits) != 2:
        return None
    first, last = map(int, limits)
    reserved = limits_of.read(ipv4 / "ip_local_reserved_ports")
    spared = {port for span in filter(None, reserved.split(",")) for port in _ports_of(span)}
    inside = sorted(port for port in variables if first <= port <= last and port not in spared)
    if not inside:
        return None
    named = " and ".join(sorted({variables[port] for port in inside}))
    spans = ",".join(filter(None, (reserved, *_spans(inside))))
    evidence = f"{', '.join(_spans(inside))} ({named}) lie inside net.ipv4.ip_local_port_range, "
    evidence += f"{first}-{last}: an outgoing connection may take one before Ray does"
    remedy = f"`sysctl -w net.ipv4.ip_local_reserved_ports={spans}` on the machine, or set {named} "
    return Finding(Verdict.WARN, evidence, f"{remedy}to ports below {first}")


def _ports_of(span: str) -> range:
    low, _, high = span.partition("-")
    return range(int(low), int(high or low) + 1)


def _spans(ports: Sequence[int]) -> list[str]:
    """Return successive ports as `FIRST-LAST`. `ports`: in ascending order."""
    spans: list[list[int]] = []
    for port in ports:
        if spans and port == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], port]
        else:
            spans.append([port])
    return ["-".join(map(str, span)) for span in spans]


def _needed(settings: Settings, *, head: bool) -> dict[int, str]:
    """Port to the variable that sets it."""
    first = settings.worker_ports.first
    needed = dict.fromkeys(range(first, first + DAEMON_PORTS), WORKER_PORTS)
    if head:
        needed |= {
            settings.ray_port: "ROLLCALL_RAY_PORT",
            settings.dashboard_port: "ROLLCALL_DASHBOARD_PORT",
            settings.control_port: "ROLLCALL_CONTROL_PORT",
        }
    return needed


def _judge_refused(refused: Mapping[int, OSError], needed: Mapping[int, str]) -> Finding:
    """Return the failure of ports that this user may not listen on."""
    evidence = _some(f"{port}: {error.strerror or error}" for port, error in refused.items())
    user = f"or give user {os.geteuid()} the right to listen there"
    if max(refused) >= FIRST_OF_USERS:
        return Finding(Verdict.FAIL, evidence, f"set {_named(refused, needed)}, {user}")
    above = f"to ports above {FIRST_OF_USERS - 1}"
    return Finding(Verdict.FAIL, evidence, f"set {_named(refused, needed)} {above}, {user}")


def _judge_busy(
    busy: Mapping[int, OSError], needed: Mapping[int, str], context: Context
) -> Finding:
    holders = port_holders.holders()
    own, whose = context.own_processes()
    evidence = _some(f"{port}: {_describe(port, one, holders)}" for port, one in busy.items())
    if all(port in holders and holders[port] in own for port in busy):
        ends = context.ends_leftovers
        return Finding(Verdict.WARN, f"{evidence}, all {whose}", ends_with_start=ends)
    variables = _named(busy, needed)
    free = _proposed(sorted({needed[port] for port in busy}), context.settings)
    living = process.of_living_nodes()
    of_nodes = [port for port in busy if holders.get(port) in living]
    if of_nodes:
        which = "" if len(of_nodes) == len(busy) else f"{', '.join(map(str, of_nodes))} "
        evidence += f": {which}of another Rollcall node on this machine"
    if len(of_nodes) == len(busy):
        return Finding(Verdict.FAIL, evidence, f"give each node its own {variables}{free}")
    remedy = f"end what listens there, or set {variables}{free}"
    return Finding(Verdict.FAIL, evidence, remedy, passes=not of_nodes)


def _some(ports: Iterable[str]) -> str:
    """Return what is said of the first ports, and how many more there are."""
    said = [*ports]
    more = [f"and {len(said) - MOST_NAMED} more"] if len(said) > MOST_NAMED else []
    return "; ".join([*said[:MOST_NAMED], *more])


def _proposed(variables: Iterable[str], settings: Settings) -> str:
    """Return free ports for these variables, such as `: ROLLCALL_RAY_PORT=20100 is free`."""
    free = []
    with ExitStack() as blocks, suppress(OSError):
        for name in variables:
            length = (
                min(MOST_PROPOSED, settings.worker_ports.port_count) if name == WORKER_PORTS else 1
            )
            first = blocks.enter_context(PortBlock(length))
            free.append(f"{name}={first}" + (f"-{first + length - 1}" if length > 1 else ""))
    verb = "is" if len(free) == 1 else "are"
    return f": {' '.join(free)} {verb} free" if free else ""


def _named(ports: Iterable[int], needed: Mapping[int, str]) -> str:
    return " and ".join(sorted({needed[port] for port in ports}))


def _describe(port: int, error: OSError, holders: Mapping[int, int]) -> str:
    reason = error.strerror or str(error)
    try:
        return f"{reason}, by {port_holders.name_of(holders[port])}"
    except (KeyError, psutil.Error):
        return reason


def living(settings: Settings) -> int | None:
    """The entrypoint of a living node of this name on this machine."""
    return process.other_owner(settings.node_mark, services.mark(settings))


def stale_ray(context: Context) -> Finding:
    """Fail if another node of this name lives here: its processes must not count as leftovers."""
    names = "its own ROLLCALL_NODE_NAME and ROLLCALL_RAY_TEMP_DIR"
    if context.running_pid is not None:
        remedy = f"give a second one on this machine {names}"
        return Finding(Verdict.WARN, f"this node runs here (pid {context.running_pid})", remedy)
    if pid := living(context.settings):
        evidence = f"another Rollcall node runs here (pid {pid})"
        return Finding(Verdict.FAIL, evidence, f"give this one {names}")
    left = process.find_ours_or_orphaned(context.settings.node_mark)
    if not left:
        none = "no earlier Ray of this node is left"
        return Finding(Verdict.PASS, f"{none}{_other_rays()}")
    are = "process of an earlier Ray of this node is"
    if len(left) > 1:
        are = "processes of an earlier Ray of this node are"
    evidence = f"{len(left)} {are} left"
    return Finding(Verdict.PASS, f"{evidence}; before Ray starts they are ended")


def _other_rays() -> str:
    """Return which Rays run on this machine that no living node of Rollcall has; "" for none.

    They are found by their daemons: no variable of this shell need name them.
    """
    daemons = process.named(DAEMON)
    living = process.of_living_nodes() if daemons else set()
    pids = [str(one.pid) for one in daemons if one.pid not in living]
    if not pids:
        return ""
    which = f"{'pid' if len(pids) == 1 else 'pids'} {', '.join(pids)}"
    return f"; another Ray runs on this machine ({DAEMON}, {which}), and shares its memory and GPUs"


CHECKS = (
    Check(
        CheckName.HOST_PORTS,
        "are the ports of this node free?",
        ports,
        timeout=10.0,
    ),
    Check(
        CheckName.HOST_STALE_RAY,
        "is there an earlier Ray of this node, or another node of its name, on this machine?",
        stale_ray,
        timeout=10.0,
    ),
)
