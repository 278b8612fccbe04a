"""What a node says of itself: a worker when it checks in, the head to those that ask."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.settings import Settings
from entrypoint.machine import oom_kills
from entrypoint.machine.inventory import collective_variables, gpu_ids, inventory, versions
from entrypoint.preflight.run import examined_whole
from entrypoint.run.tls import files as tls_files

LIFE = uuid.uuid4().hex
"""Identifies this process."""


def of_node(settings: Settings, address: str, findings: Mapping[str, str]) -> NodeInfo:
    """Return what a head and a worker both say. `findings`: as in NodeInfo."""
    return NodeInfo(
        node=settings.node_name,
        address=address,
        versions=versions(settings),
        inventory=inventory(settings, address),
        gpu_ids=gpu_ids(settings),
        resources=settings.resources,
        warnings=tuple(findings),
        findings=findings,
        environment=collective_variables(settings.environ),
        tls=tls_files.kind(settings),
    )


def of_worker(
    settings: Settings, address: str, findings: Mapping[str, str], why_ended: str
) -> NodeInfo:
    """Return what a worker says. `why_ended`: why this node itself ended its Ray, in words."""
    return replace(
        of_node(settings, address, findings),
        rejoins=why_ended,
        rank=settings.platform.rank,
        examined=LIFE if examined_whole(settings) else "",
    )


def now(info: NodeInfo) -> NodeInfo:
    """Return `info` with the present clock and count of OOM kills."""
    return replace(info, clock=time.time(), oom_kills=oom_kills.count())
