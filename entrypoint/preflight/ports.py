"""Are the ports free that this node will listen on, and is no earlier Ray of it left?"""

from __future__ import annotations

import socket

import psutil

from entrypoint import process
from entrypoint.preflight.check import About, Check, Context, Finding, Verdict
from entrypoint.role import Head
from entrypoint.settings import Settings

DAEMON_PORTS = 8
"""The first of the worker ports belong to Ray's daemons, one each."""
FEWEST_WORKER_PORTS = 16


def ports(context: Context) -> Finding:
    """Ports that an earlier life of this node holds are freed before Ray starts: a warning."""
    settings = context.settings
    needed = _needed(settings, head=isinstance(context.role, Head))
    busy = {port: reason for port in needed if (reason := why_not(port)) is not None}
    if busy:
        return _judge_busy(busy, needed, settings)
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


def why_not(port: int) -> str | None:
    """Why this process cannot listen on `port`; None where it can."""
    with socket.socket() as listener:
        # As servers do: a connection that is still closing does not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _judge_busy(busy: dict[int, str], needed: dict[int, str], settings: Settings) -> Finding:
    holders = _holders()
    stale = {one.pid for one in process.marked(settings.node_mark)}
    described = [f"{port}: {_describe(port, reason, holders)}" for port, reason in busy.items()]
    evidence = "; ".join(described)
    if all(port in holders and holders[port] in stale for port in busy):
        return Finding(Verdict.WARN, f"{evidence}, all left by an earlier Ray of this node")
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
        one.laddr.port: one.pid
        for one in connections
        if one.laddr and one.pid and one.status == psutil.CONN_LISTEN
    }


def stale_ray(context: Context) -> Finding:
    left = process.marked(context.settings.node_mark)
    if not left:
        return Finding(Verdict.PASS, "no earlier Ray of this node is left")
    evidence = f"{len(left)} processes of an earlier Ray of this node are left"
    return Finding(Verdict.WARN, evidence, "nothing to do: they are ended before Ray starts")


CHECKS = (
    Check(
        "host.ports",
        "are the ports of this node free?",
        ports,
        About(
            evidence="a bind to each port that Ray's daemons and, on the head, GCS, dashboard and "
            "roll call listen on (the Ray client's in the place of 10001), and to all worker ports",
            threshold=f"fails where a named one is taken, or fewer than {FEWEST_WORKER_PORTS} "
            "worker ports are free; warns where an earlier life of this node holds it",
            source="a taken agent port makes the job's submission fail oddly (Ray PR 51869)",
            remedy="end what listens there, or set the variable that the finding names",
        ),
        timeout=10.0,
    ),
    Check(
        "host.stale_ray",
        "is an earlier Ray of this node left?",
        stale_ray,
        About(
            evidence="processes that carry this node's mark in their environment",
            threshold="warns where there are some",
            source="they are ended before Ray starts",
            remedy="nothing to do",
        ),
        timeout=10.0,
    ),
)
