"""Decides this node's role from settings and platform facts: a Head or a Worker, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from contract.durations import counted
from contract.options import ConfigError, Fault
from entrypoint.config import misspelt
from entrypoint.config.partly import judged
from entrypoint.config.platforms.facts import REMEDIES
from entrypoint.config.platforms.runpod import pod_host
from entrypoint.config.recipe_registry import BUILTIN
from entrypoint.config.settings import Settings, Stragglers
from entrypoint.config.variables import shown

DEFAULT_EXPECTED_WORKERS = 1
DEFAULT = "default"
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses at which a server listens on all interfaces."""
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Head:
    """The node that forms the cluster and runs the job."""

    name: ClassVar[str] = "head"
    expected_workers: int
    min_workers: int
    why: str
    spare_workers: int = 0
    takeovers: int = 0
    """How many heads of this run were lost before, each replaced by a worker."""
    known: tuple[str, ...] | None = None
    """The workers for which a new head waits, after it was a worker; None: all."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A node that joins the head at `head_address`."""

    name: ClassVar[str] = "worker"
    head_address: str
    why: str


class Sourced(NamedTuple):
    """A fact and the variable that decided it."""

    value: str
    source: str


def decide(settings: Settings) -> Head | Worker:
    """This node's role. Raises ConfigError if the settings give none or contradict each other."""
    if found := list(faults(settings)):
        raise ConfigError(found)
    head = head_address(settings)
    if is_worker(settings) and head is not None:
        return Worker(head.value, f"{_why(settings)}; the head is named by {head.source}")
    expected = expected_workers(settings)
    least = expected if settings.min_workers is None else settings.min_workers
    return Head(expected, least, _why(settings), settings.spare_workers)


def warnings(settings: Settings) -> Iterator[str]:
    """Yield what of the settings does not count, or cannot come true by the platform alone."""
    for name, meant in misspelt.alike(settings.environ):
        yield f"{name} is not a setting and does not count: did you mean {meant}?"
    address, pod = settings.head_address, settings.head_pod_id
    if address and pod and pod_host(pod).lower() != address.lower():
        yield (
            f"HEAD_POD_ID={pod} does not count: ROLLCALL_HEAD_ADDRESS={address} names the head. "
            "Unset one of the two"
        )
    if not is_worker(settings) and (fault := _too_few_nodes(settings)):
        yield f"{fault.path}={fault.value} {fault.problem}: others must come from elsewhere"


def is_worker(settings: Settings) -> bool:
    """An explicit RAY_WORKER, else what the platform says, else the head."""
    if settings.ray_address is not None:
        return False
    if settings.ray_worker is not None:
        return settings.ray_worker
    return settings.platform.is_head is False


def undecided(settings: Settings) -> Fault | None:
    """The fault if the platform may have several nodes and says nothing of this node's role."""
    platform = settings.platform
    given = settings.ray_worker is not None or settings.ray_address is not None
    known = given or platform.is_head is not None
    alone = platform.nodes == 1 or settings.expected_workers == 0
    return None if known or alone else platform.undecided


def head_address(settings: Settings) -> Sourced | None:
    """The head's address from the most explicit source; None if no source has it."""
    if settings.head_address is not None:
        return Sourced(settings.head_address, "ROLLCALL_HEAD_ADDRESS")
    if settings.head_pod_id is not None:
        return Sourced(pod_host(settings.head_pod_id), "HEAD_POD_ID")
    platform = settings.platform
    if platform.head_address is not None:
        return Sourced(platform.head_address, platform.sources["head_address"])
    if platform.node_host is not None and not is_worker(settings):
        return Sourced(platform.node_host, platform.sources["node_host"])
    return None


def head_named_to_a_default(settings: Settings) -> Sourced | None:
    """The head's address as the user gives it to a node that is the head by default.

    The node then is the head only if the address is its own.
    """
    platform, named = settings.platform, head_address(settings)
    given = settings.ray_worker is not None or settings.ray_address is not None
    of_user = named is not None and named.source in ("ROLLCALL_HEAD_ADDRESS", "HEAD_POD_ID")
    if given or platform.is_head is not None or not of_user or expected_workers(settings) == 0:
        return None
    host = platform.node_host
    return None if named and host and named.value.lower() == host.lower() else named


def host_to_ask(settings: Settings) -> str:
    """The host that this node's commands ask: this machine, unless another node is named."""
    named = head_address(settings)
    if named and named.value != settings.platform.node_host:
        return named.value
    return bind_address(settings) or "localhost"


def bind_address(settings: Settings) -> str:
    """The address or name at which alone the control port listens; "" if at several addresses."""
    return "" if settings.bind in (None, *EVERYWHERE) else str(settings.bind)


def expected_workers(settings: Settings) -> int:
    """How many workers do the job's work: the spares are not among them."""
    if settings.expected_workers is not None:
        return settings.expected_workers
    if settings.platform.nodes is not None:
        return max(0, settings.platform.nodes - 1 - settings.spare_workers)
    return DEFAULT_EXPECTED_WORKERS


def sources(settings: Settings) -> dict[str, str]:
    """Fact to the variable that decided it, or "default". Unknown facts are left out."""
    head = head_address(settings)
    facts = {
        "role": settings.variable("ray_address")
        or settings.variable("ray_worker")
        or settings.platform.role_source
        or DEFAULT,
        "head_address": head.source if head else None,
        "node_name": _source(settings, "node_name", "node_name"),
        "recipe": settings.variable("recipe")
        or (DEFAULT if settings.recipe == BUILTIN else COMMAND_LINE),
        "run_dir": _source(settings, "run_dir"),
        "storage": _source(settings, "storage"),
        "token": _source(settings, "token"),
    }
    if settings.node_address is not None:
        facts["node_address"] = _source(settings, "node_address", "node_address")
    if settings.job:
        facts["job"] = settings.variable("job") or COMMAND_LINE
    if not is_worker(settings):
        facts["expected_workers"] = _source(settings, "expected_workers", "nodes")
        facts["min_workers"] = settings.variable("min_workers") or facts["expected_workers"]
        if settings.spare_workers:
            facts["spare_workers"] = _source(settings, "spare_workers")
    return {fact: source for fact, source in facts.items() if source is not None}


def _source(settings: Settings, setting: str, fact: str | None = None) -> str:
    from_platform = settings.platform.sources.get(fact) if fact is not None else None
    return settings.variable(setting) or from_platform or DEFAULT


def _why(settings: Settings) -> str:
    if settings.ray_address is not None:
        return f"ROLLCALL_RAY_ADDRESS={settings.ray_address}"
    if settings.ray_worker is not None:
        return f"RAY_WORKER={int(settings.ray_worker)}"
    if settings.platform.role_source is None:
        return "RAY_WORKER is not set"
    return f"{_said_by_platform(settings)} ({settings.platform.name})"


def _said_by_platform(settings: Settings) -> str:
    """The variable that gives the platform's role, with its value."""
    platform, source = settings.platform, settings.platform.role_source or ""
    value = platform.rank if platform.is_main is None else shown(settings.environ[source])
    return f"{source}={value}"


def faults(settings: Settings, *, is_told: bool = True) -> Iterator[Fault]:
    """Yield the faults of the role, as far as settings without a fault of their own tell it.

    `is_told`: what the platform says of its nodes has no fault, either.
    """
    rules = [_undecided(settings), *([_two_heads(settings), _of_a_role(settings)] * is_told)]
    yield from judged(rules)


def _undecided(settings: Settings) -> Iterator[Fault]:
    if fault := undecided(settings):
        yield fault


def _of_a_role(settings: Settings) -> Iterator[Fault]:
    if undecided(settings):
        return
    if is_worker(settings):
        yield from _worker_faults(settings)
    else:
        of_head = (_unknown_size, _spare_faults, _straggler_faults, _min_workers)
        yield from judged(rule(settings) for rule in of_head)


def _two_heads(settings: Settings) -> Iterator[Fault]:
    """HEAD_POD_ID (the head's pod) and RUNPOD_POD_ID (this pod) must fit this node's role.

    RAY_WORKER=0 overrides any HEAD_POD_ID. RAY_WORKER=1 with this pod's own id is an error.
    """
    if undecided(settings):
        return
    named, own = settings.head_pod_id, settings.environ.get("RUNPOD_POD_ID", "").strip()
    if named is None or not own:
        return
    names_this = named.lower() == own.lower()
    if is_worker(settings) and names_this:
        problem = f"is this pod itself (RUNPOD_POD_ID), and {_why(settings)} makes it a worker"
        remedy = "set RAY_WORKER=0 on the head, and on workers HEAD_POD_ID to the head's id"
        yield Fault("HEAD_POD_ID", named, problem, remedy)
    if not is_worker(settings) and not names_this and settings.ray_worker is None:
        problem = f"names another pod than this one (RUNPOD_POD_ID={own}), and {_why(settings)}"
        remedy = "set RAY_WORKER=1 where this is a worker, RAY_WORKER=0 where it is the head"
        yield Fault("HEAD_POD_ID", named, problem, remedy)


def _worker_faults(settings: Settings) -> Iterator[Fault]:
    head, platform = head_address(settings), settings.platform
    if head is None and settings.ray_worker is None:
        yield Fault(
            "ROLLCALL_HEAD_ADDRESS",
            None,
            f"is not set, and {platform.name} does not say where the head is ({_why(settings)})",
            platform.remedies.get("head_address", REMEDIES["head_address"]),
        )
    elif head is None:
        on_runpod = bool(settings.environ.get("RUNPOD_POD_ID", "").strip())
        ways = {
            "ROLLCALL_HEAD_ADDRESS": "set ROLLCALL_HEAD_ADDRESS to the head's address",
            "HEAD_POD_ID": "set HEAD_POD_ID to the head's RunPod id",
        }
        first, other = sorted(ways, reverse=not on_runpod)
        lacking = f"is not set, and this node is a worker ({_why(settings)})"
        for name, meant in misspelt.alike(settings.environ):
            if meant in ways:
                yield Fault(meant, None, f"{lacking}, but {name} is", f"spell it as {meant}")
                return
        yield Fault(first, None, lacking, f"{ways[first]}, or {ways[other].removeprefix('set ')}")
    elif platform.is_head and head.source == platform.sources.get("head_address"):
        yield Fault(
            "RAY_WORKER",
            "1",
            f"contradicts {_said_by_platform(settings)}: the head that {head.source} names is "
            "this node",
            "leave RAY_WORKER unset, or set ROLLCALL_HEAD_ADDRESS to another node",
        )


def _supervisor_faults(settings: Settings) -> Iterator[Fault]:
    """The faults of a node beside an existing Ray, which has workers and does not count them."""
    platform = settings.platform
    if settings.ray_worker is True or (settings.ray_worker is None and platform.is_head is False):
        said = "RAY_WORKER=1" if settings.ray_worker else _said_by_platform(settings)
        yield Fault(
            "ROLLCALL_RAY_ADDRESS",
            settings.ray_address,
            f"contradicts {said}, which makes this node a worker: Ray has its workers already",
            "start Rollcall once, beside Ray's head or in any pod that reaches its dashboard",
        )
    if settings.expected_workers is None:
        yield Fault(
            "EXPECTED_WORKERS",
            None,
            "is not set, and Ray does not say how many nodes will join",
            "set EXPECTED_WORKERS to the number of Ray's nodes besides its head",
        )


def _unknown_size(settings: Settings) -> Iterator[Fault]:
    """More or fewer nodes than the platform or Ray says, or none of the three."""
    platform = settings.platform
    if settings.ray_address is not None:
        yield from _supervisor_faults(settings)
    by_platform = (
        settings.ray_worker is None
        and settings.ray_address is None
        and platform.is_head is not None
    )
    if by_platform and settings.expected_workers is None and platform.nodes is None:
        yield Fault(
            "EXPECTED_WORKERS",
            None,
            f"is not set, and {platform.name} does not say how many nodes there are",
            platform.remedies.get("nodes", REMEDIES["nodes"]),
        )
    may_begin = settings.min_workers is not None and settings.min_workers < (platform.nodes or 0)
    if by_platform and not may_begin and (fault := _too_few_nodes(settings)):
        yield fault


def _min_workers(settings: Settings) -> Iterator[Fault]:
    expected = expected_workers(settings)
    if settings.min_workers is not None and settings.min_workers > expected:
        source = _source(settings, "expected_workers", "nodes")
        yield Fault(
            "ROLLCALL_MIN_WORKERS",
            str(settings.min_workers),
            f"is above the {counted(expected, 'worker')} that are expected ({source})",
            "give at most as many, or set EXPECTED_WORKERS higher",
        )


def _too_few_nodes(settings: Settings) -> Fault | None:
    """The fault if more workers are expected than the platform has nodes besides the head.

    With spares, `_spare_faults` counts. Beside an existing Ray, the nodes are Ray's.
    """
    expected, nodes = settings.expected_workers, settings.platform.nodes
    if expected is None or nodes is None or expected < nodes:
        return None
    is_unsure = "nodes" in settings.platform.faults
    if is_unsure or settings.spare_workers or settings.ray_address is not None:
        return None
    others = f"{nodes - 1} nodes are" if nodes != 2 else "1 node is"
    problem = f"is more than {settings.platform.name} has: {others} there besides the head "
    problem += f"({settings.platform.sources['nodes']}={nodes})"
    remedy = f"give at most {nodes - 1}, leave it out, or start more nodes"
    return Fault("EXPECTED_WORKERS", str(expected), problem, remedy)


def _straggler_faults(settings: Settings) -> Iterator[Fault]:
    """A policy that evicts slow nodes, where none could be found or nothing takes its place."""
    if settings.stragglers is not Stragglers.REPLACE:
        return
    recipe, spare = settings.recipe, settings.spare_workers or settings.replace_command
    if settings.ray_address is not None:
        problem = "evicts a slow node, and nodes of a Ray that exists are not ours to evict"
        remedy = "give warn, or remove ROLLCALL_RAY_ADDRESS to start Ray here"
    elif recipe != BUILTIN and not settings.waits_for_jobs:
        problem = f"compares the ranks of recipe {BUILTIN}, and ROLLCALL_RECIPE={recipe} has others"
        remedy = f"give warn, or set ROLLCALL_RECIPE={BUILTIN}"
    elif expected_workers(settings) == 0:
        source = _source(settings, "expected_workers", "nodes")
        problem = f"evicts a slow worker, and no worker is expected ({source})"
        remedy = "give warn, or set EXPECTED_WORKERS"
    elif not spare:
        problem = "evicts a slow node for a spare, and there is none (ROLLCALL_SPARE_WORKERS)"
        remedy = (
            "set ROLLCALL_SPARE_WORKERS=1, or ROLLCALL_REPLACE_COMMAND to bring a node; or give"
        )
        remedy += " warn"
    else:
        return
    yield Fault("ROLLCALL_STRAGGLERS", str(settings.stragglers), problem, remedy)


def _spare_faults(settings: Settings) -> Iterator[Fault]:
    """Spares that no worker can need, or that the platform does not have."""
    spares, nodes = settings.spare_workers, settings.platform.nodes
    if not spares:
        return
    source = _source(settings, "expected_workers", "nodes")
    if nodes is not None and spares > nodes - 2:
        problem = f"leaves no worker of the {counted(nodes, 'node')} of {settings.platform.name}: "
        problem += f"one is the head ({settings.platform.sources['nodes']})"
        remedy = f"give at most {max(0, nodes - 2)}, or start more nodes"
    elif expected_workers(settings) == 0:
        problem = f"are to take a lost worker's place, and no worker is expected ({source})"
        remedy = "leave it out, or set EXPECTED_WORKERS to the workers without the spares"
    elif nodes is not None and expected_workers(settings) + spares > nodes - 1:
        workers, others = counted(expected_workers(settings), "worker"), counted(nodes - 1, "node")
        problem = f"and the {workers} of {source} are more than the "
        problem += f"{others} besides the head ({settings.platform.sources['nodes']})"
        remedy = "lower one of them: EXPECTED_WORKERS does not count the spares"
    else:
        return
    yield Fault("ROLLCALL_SPARE_WORKERS", str(spares), problem, remedy)
