"""Are this node's ports free, and is it the only node of its name on this machine?"""

from __future__ import annotations

import threading

import psutil

from entrypoint.config.check_names import CheckName
from entrypoint.config.parsers import DAEMON_PORTS
from entrypoint.config.role import Head
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.net.port_block import why_not
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes import process, services
from entrypoint.processes.fork_server import client as fork_server

FEWEST_WORKER_PORTS = 16
ENDING_SECONDS = 2.0
"""Seconds for a killed process to release its ports. Meanwhile its owner cannot be seen."""


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
    busy = {port: reason for port in needed if (reason := why_not(port)) is not None}
    if busy:
        return _judge_busy(busy, needed, context)
    first, last = settings.worker_ports
    rest = range(first + DAEMON_PORTS, last + 1)
    free = sum(why_not(port) is None for port in rest)
    evidence = f"{len(needed)} ports and {free} of {len(rest)} worker ports are free"
    if free < FEWEST_WORKER_PORTS:
        return Finding(Verdict.FAIL, evidence, "set ROLLCALL_WORKER_PORTS to a free range")
    return Finding(Verdict.PASS, evidence)


def _needed(settings: Settings, *, head: bool) -> dict[int, str]:
    """Port to the variable that sets it."""
    first = settings.worker_ports.first
    needed = dict.fromkeys(range(first, first + DAEMON_PORTS), "ROLLCALL_WORKER_PORTS")
    if head:
        needed |= {
            settings.ray_port: "ROLLCALL_RAY_PORT",
            settings.dashboard_port: "ROLLCALL_DASHBOARD_PORT",
            settings.control_port: "ROLLCALL_CONTROL_PORT",
        }
    return needed


def _judge_busy(busy: dict[int, str], needed: dict[int, str], context: Context) -> Finding:
    holders = _holders()
    own, whose = context.own_processes()
    described = [f"{port}: {_describe(port, reason, holders)}" for port, reason in busy.items()]
    evidence = "; ".join(described)
    if all(port in holders and holders[port] in own for port in busy):
        return Finding(Verdict.WARN, f"{evidence}, all {whose}")
    variables = " and ".join(sorted({needed[port] for port in busy}))
    return Finding(Verdict.FAIL, evidence, f"end what listens there, or set {variables}")


def _describe(port: int, reason: str, holders: dict[int, int]) -> str:
    try:
        holder = psutil.Process(holders[port])
        return f"{reason}, by {holder.name()} (process {holder.pid})"
    except (KeyError, psutil.Error):
        return reason


def _holders() -> dict[int, int]:
    """Listening TCP port to process, as far as this user may see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return {}
    return {
        connection.laddr.port: connection.pid
        for connection in connections
        if connection.laddr and connection.pid and connection.status == psutil.CONN_LISTEN
    }


def living(settings: Settings) -> int | None:
    """The entrypoint of a living node of this name on this machine."""
    marks = (settings.node_mark, services.mark(settings), fork_server.mark(settings))
    return process.other_owner(*marks)


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
        return Finding(Verdict.PASS, "no earlier Ray of this node is left")
    are = "process of an earlier Ray of this node is"
    if len(left) > 1:
        are = "processes of an earlier Ray of this node are"
    evidence = f"{len(left)} {are} left"
    return Finding(Verdict.WARN, evidence, "nothing to do: they are ended before Ray starts")


CHECKS = (
    Check(CheckName.HOST_PORTS, "are the ports of this node free?", ports, timeout=10.0),
    Check(
        CheckName.HOST_STALE_RAY,
        "is there an earlier Ray of this node, or another node of its name, on this machine?",
        stale_ray,
        timeout=10.0,
    ),
)
