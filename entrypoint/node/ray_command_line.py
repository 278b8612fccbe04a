"""The command line of `ray start` on a node."""

from __future__ import annotations

import json

from contract.launch import standby_ranks, warm
from contract.launch.programs import Program
from entrypoint.config.parsers import DAEMON_PORTS
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.settings import DebugRay, Settings
from entrypoint.machine.address import is_loopback
from entrypoint.machine.inventory import offered_cpus
from entrypoint.net.sockets import host_port, is_ipv6
from entrypoint.processes import warm_process
from entrypoint.processes.programs import program


def ray_command() -> tuple[str, ...]:
    """Return the words of Ray's program."""
    return program(Program.RAY_START)


def workers_python(settings: Settings) -> list[str]:
    """Return the option that names the Python of Ray's workers, if the node forks them."""
    python = warm_process.python(settings)
    return [f"{warm.OF_WORKERS}{python}"] if python else []


def head_arguments(settings: Settings, address: str) -> list[str]:
    """Return the options of `ray start` for the head at `address`.

    The dashboard listens with one address family alone, or at a loopback address alone. Ray's
    other servers listen at `address`, or with both.
    """
    everywhere = "::" if is_ipv6(address) else "0.0.0.0"
    return [
        "--head",
        "--include-dashboard=true",  # without it, Ray would run on beside a dashboard that ended
        f"--port={settings.ray_port}",
        f"--dashboard-host={address if is_loopback(address) else everywhere}",
        f"--dashboard-port={settings.dashboard_port}",
        f"--ray-client-server-port={settings.worker_ports.first + 6}",
    ]


def worker_arguments(settings: Settings, head_address: str) -> list[str]:
    return [f"--address={host_port(head_address, settings.ray_port)}"]


def common_arguments(settings: Settings, address: str, gpus: int) -> list[str]:
    """Return the options of `ray start` that head and workers share.

    Every port is given, so that a message about a port in use can name its purpose. CPUs and GPUs
    are always given: Ray ignores an affinity mask, and its detection fails silently on AMD.
    """
    first, last = settings.worker_ports.first, settings.worker_ports.last
    arguments = [
        f"--node-ip-address={address}",
        f"--node-name={settings.node_name}",
        f"--node-manager-port={first}",
        f"--object-manager-port={first + 1}",
        f"--dashboard-agent-grpc-port={first + 2}",
        f"--dashboard-agent-listen-port={first + 3}",
        f"--metrics-export-port={first + 4}",
        f"--runtime-env-agent-port={first + 5}",
        f"--min-worker-port={first + DAEMON_PORTS}",
        f"--max-worker-port={last}",
        f"--num-cpus={offered_cpus(settings)}",
        f"--num-gpus={gpus}",
        f"--temp-dir={settings.ray_dir}",
        "--disable-usage-stats",
        "--block",
    ]
    if settings.resources:
        arguments.append(f"--resources={json.dumps(settings.resources)}")
    if settings.debug_ray is DebugRay.LEGACY:
        arguments.append("--ray-debugger-external")
    return arguments


def standby_arguments(settings: Settings, memory: int) -> list[str]:
    """Return the option of `ray start` that tells how many standby ranks the node may hold.

    `memory`: bytes of the node; 0 if unknown.
    """
    held = standby_ranks.most(memory) if has_standby_ranks(settings) else 0
    return [f"--labels={standby_ranks.LABEL}={held}"] if held else []


def has_standby_ranks(settings: Settings) -> bool:
    """Return whether the node may hold standby ranks."""
    return settings.standby_ranks and has_bare_workers(settings)


def has_bare_workers(settings: Settings) -> bool:
    """Return whether Ray's workers import nothing of their own before they register."""
    return RECIPES[settings.recipe].bare_workers and not settings.waits_for_jobs
