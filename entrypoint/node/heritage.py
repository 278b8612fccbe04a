"""What a worker needs to become the head: the settings that only a head has, and the job.

The head tells it to each worker that it accepts, which keeps it in memory. Nothing is written to
storage, since there may be secrets among the variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from contract.files.fd_store import FdStore
from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.cluster import earlier_nodes, reported_differences
from entrypoint.config.check_names import CheckName
from entrypoint.config.durations import NEVER
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, head_address
from entrypoint.config.settings import Secret, Settings, declared
from entrypoint.net.sockets import host_port
from entrypoint.run import lease, succession
from entrypoint.run.lease import HeldError, Lease
from entrypoint.run.lost_head import Failover

OF_NODE = frozenset(
    {
        *("ray_worker", "head_pod_id", "head_address", "ray_address", "node_name", "node_address"),
        *("num_cpus", "num_gpus", "gpu_memory", "resources", "worker_ports", "ray_temp_dir"),
        *("preempt_file", "run_dir", "urls", "token", "image", "log", "tls_cert", "tls_key"),
        "start_id",
    }
)
"""Settings that each node has for itself."""
OF_JOB = ("job", "recipe", "expected_workers")
"""Settings that a Heritage has as fields of its own."""
NAMING_A_HEAD = ("HEAD_POD_ID", "ROLLCALL_HEAD_ADDRESS", "ROLLCALL_RAY_ADDRESS")


@dataclass(frozen=True, slots=True)
class Heritage:
    variables: Mapping[str, str]
    job: Sequence[str]
    recipe: str
    expected_workers: int
    takeovers: int
    """How many heads of this run were lost for ever."""
    hosts: Sequence[str]
    """Names and addresses of the head, which addresses of its services may have."""
    patience: float
    """Seconds that the head has to come back."""

    @classmethod
    def read(cls, row: Mapping[str, Any] | None) -> Heritage | None:
        """Return what a head has told; None if it tells nothing, or another version tells it."""
        return cls(**row) if row is not None and set(row) == set(cls.__slots__) else None


@dataclass(frozen=True, slots=True)
class Succession:
    """A worker that has taken the lease of a head that was lost."""

    settings: Settings
    role: Head
    lease: Lease
    memory: FdStore
    """The node's memory, which outlives the change of its role."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The head of this run is another node now, which was a worker."""

    address: str


def why_off(settings: Settings, expected_workers: int) -> str:
    """Return why no worker may take this head's place; "" if one may."""
    if settings.head_failover == NEVER:
        return "ROLLCALL_HEAD_FAILOVER is off"
    if settings.ray_address is not None:
        return "Ray is another program's (ROLLCALL_RAY_ADDRESS)"
    if expected_workers == 0:
        return "there are no workers (EXPECTED_WORKERS=0)"
    if not settings.shares_run_dir:
        return (
            "the workers do not share the run directory "
            f"(ROLLCALL_STORAGE={settings.storage}); mount one on all nodes, and set "
            "ROLLCALL_STORAGE=shared"
        )
    if CheckName.NODES_STORAGE in reported_differences.skipped_checks(settings):
        return (
            "preflight does not check that all nodes share storage; set ROLLCALL_PREFLIGHT=strict, "
            f"and leave {CheckName.NODES_STORAGE} out of ROLLCALL_PREFLIGHT_SKIP"
        )
    return ""


def failover(settings: Settings, expected_workers: int) -> Failover:
    """Return what this head says of its own loss."""
    return Failover.of_head(settings.head_failover, why_off(settings, expected_workers))


def told(settings: Settings, role: Head, address: str) -> dict[str, Any] | None:
    """Return what this head tells its workers, as JSON; None if none may take its place."""
    if why_off(settings, role.expected_workers):
        return None
    named = head_address(settings)
    heritage = Heritage(
        variables=dict(_variables(settings)),
        job=settings.job,
        recipe=settings.recipe,
        expected_workers=role.expected_workers,
        takeovers=role.takeovers,
        hosts=sorted({address, *([named.value] if named else [])}),
        patience=settings.head_failover,
    )
    return asdict(heritage)


def _variables(settings: Settings) -> Mapping[str, str]:
    """Return the variables that a head has for the run, also those that a file has given."""
    found = {}
    for name, variable in declared().items():
        value, about = getattr(settings, name), variable.about
        if name in OF_NODE or name in OF_JOB:
            continue
        if isinstance(value, Secret):
            found[about.name] = value.reveal()
        elif about.secret and value:
            found[about.name] = json.dumps(value)
        elif text := settings.environ.get(about.name, "").strip():
            found[about.name] = text
    return found


def heir(settings: Settings, heritage: Heritage, address: str) -> tuple[Settings, Head]:
    """Return the settings and the role with which this worker leads the run from `address`.

    Raises ConfigError, and OSError if the journal cannot be read.
    """
    inherited = {
        name
        for field, variable in declared().items()
        if field not in OF_NODE
        for name in variable.about.names
    }
    own = {name: text for name, text in settings.environ.items() if name not in inherited}
    environ = {
        **_without(own, NAMING_A_HEAD),
        **{
            name: _moved(text, heritage.hosts, address) for name, text in heritage.variables.items()
        },
        "RAY_WORKER": "0",
        "ROLLCALL_NODE_ADDRESS": address,
        "EXPECTED_WORKERS": str(heritage.expected_workers),
    }
    made = read_settings(environ, tuple(heritage.job), heritage.recipe)
    takeovers, expected = heritage.takeovers + 1, heritage.expected_workers
    role = Head(
        expected,
        succession.fewest_workers(expected, made.min_workers, takeovers),
        "the head was lost, and this worker has taken its place",
        spare_workers=made.spare_workers,
        takeovers=takeovers,
        known=_others(settings),
    )
    return made, role


def leader(settings: Settings) -> str:
    """Return where a worker leads that has taken this head's place, and lives; "" if none does."""
    leases = RunFiles(settings.run_dir).leases
    moved = lease.moved_to(leases)
    try:
        if moved and settings.head_failover != NEVER:
            Lease(leases).refuse_living()
    except HeldError:
        return moved
    except OSError:  # the lease itself says why
        pass
    return ""


def as_worker(settings: Settings, address: str) -> Settings:
    """Return the settings with which a head joins the head that has taken its place."""
    environ = {
        **_without(settings.environ, (*NAMING_A_HEAD, "ROLLCALL_JOB")),
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": address,
    }
    return read_settings(environ, settings.job, settings.recipe)


def _moved(text: str, hosts: Sequence[str], address: str) -> str:
    """Return an address on the lost head as one on this node; any other text as it is."""
    if text in hosts:
        return address
    if "://" not in text:
        return text
    url = urlsplit(text)
    try:
        host, port = url.hostname, url.port
    except ValueError:
        return text
    if host not in hosts or url.username:
        return text
    netloc = host_port(address, port) if port else host_port(address, 0).removesuffix(":0")
    return url._replace(netloc=netloc).geturl()


def _others(settings: Settings) -> tuple[str, ...]:
    """Return the workers of the last roll besides this one: a new head waits for no others."""
    events = landmarks(RunFiles(settings.run_dir).journal).events(earlier_nodes.KINDS)
    return tuple(name for name in earlier_nodes.workers(events) if name != settings.node_name)


def _without(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name not in names}
