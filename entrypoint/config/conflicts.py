"""Settings that are right alone and wrong together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from urllib.parse import urlsplit

from contract.options import Fault, nearest
from entrypoint.config.check_names import CheckName
from entrypoint.config.job_parsers import CHECKPOINT
from entrypoint.config.parsers import Tls, one_of
from entrypoint.config.recipes import RECIPES
from entrypoint.config.role import expected_workers
from entrypoint.config.settings import ServiceOn, Settings, declared
from entrypoint.config.uses import OF_OTHER_PROGRAMS, Use
from entrypoint.config.variables import shown


def contradictions(settings: Settings, use: Use) -> Iterator[Fault]:
    """Yield the faults that count for `use`."""
    yield from _tls(settings)
    if use is Use.ASK:
        return
    yield from _debuggers(settings)
    yield from _ports(settings)
    yield from _services(settings)
    if use is Use.START:
        yield from _jobs(settings)
        yield from _uploads(settings)
    yield from _storage(settings)
    yield from _left_out(settings)
    yield from _beside_ray(settings)


def _debuggers(settings: Settings) -> Iterator[Fault]:
    """Ray's two debuggers exclude each other, whichever variables ask for them."""
    environ = settings.environ
    asked = {
        "legacy": [("RAY_DEBUG", environ.get("RAY_DEBUG", "") == "legacy")],
        "post-mortem": [
            ("RAY_DEBUG_POST_MORTEM", environ.get("RAY_DEBUG_POST_MORTEM", "") not in ("", "0"))
        ],
    }
    for kind, by in asked.items():
        by.append(("DEBUG_RAY", settings.debug_ray == kind))
    legacy, post_mortem = ([name for name, on in by if on] for by in asked.values())
    if legacy and post_mortem:
        yield Fault(
            post_mortem[0],
            environ.get(post_mortem[0]),
            f"asks for the post-mortem debugger and {legacy[0]}={environ.get(legacy[0])} "
            "for the legacy one, and Ray cannot run both",
            "set DEBUG_RAY alone: 1 for the legacy debugger, post-mortem for the other",
        )


def _ports(settings: Settings) -> Iterator[Fault]:
    taken = {
        "ROLLCALL_RAY_PORT": (settings.ray_port, settings.ray_port),
        "ROLLCALL_DASHBOARD_PORT": (settings.dashboard_port, settings.dashboard_port),
        "ROLLCALL_CONTROL_PORT": (settings.control_port, settings.control_port),
        "ROLLCALL_WORKER_PORTS": tuple(settings.worker_ports),
    }
    for service in ("reward", "retriever"):
        url = getattr(settings, f"{service}_url")
        if url and getattr(settings, f"{service}_command") and (port := urlsplit(url).port):
            taken[f"ROLLCALL_{service.upper()}_URL"] = (port, port)
    for (name, own), (other, its) in combinations(taken.items(), 2):
        if own[0] <= its[1] and its[0] <= own[1]:
            value = _range(*own)
            yield Fault(name, value, f"overlaps {other}={_range(*its)}", "give each its own port")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _services(settings: Settings) -> Iterator[Fault]:
    for service in ("reward", "retriever"):
        name = f"ROLLCALL_{service.upper()}"
        if getattr(settings, f"{service}_command") and not getattr(settings, f"{service}_url"):
            raw = settings.environ.get(f"{name}_COMMAND", "")
            remedy = f"set {name}_URL to where the server answers"
            value = shown(raw, settings.secrets)
            yield Fault(f"{name}_COMMAND", value, f"is set without {name}_URL", remedy)


def _tls(settings: Settings) -> Iterator[Fault]:
    given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(settings, name)]
    if given and settings.variable("tls"):
        problem = f"is set beside {declared()[given[0]].name}"
        yield Fault("ROLLCALL_TLS", str(settings.tls), problem, "set one of the two")
    plain = [one for one in settings.urls if urlsplit(one).scheme != "https"]
    if plain and settings.tls_mode is not Tls.OFF:
        problem = "is without TLS, which is on (ROLLCALL_TLS or ROLLCALL_TLS_CA)"
        value = shown(plain[0], settings.secrets)
        yield Fault("ROLLCALL_URL", value, problem, "begin it with https://")


def _jobs(settings: Settings) -> Iterator[Fault]:
    """A cluster that waits for jobs has none of its own; some settings are of other programs."""
    if settings.waits_for_jobs and settings.job:
        source = settings.variable("job") or "the command line"
        remedy = "leave one of the two out; `rollcall submit` gives the cluster its jobs"
        problem = f"waits for jobs, and {source} has one"
        yield Fault("ROLLCALL_WAIT_FOR_JOBS", "1", problem, remedy)
    if settings.waits_for_jobs:
        if settings.runtime_env:
            problem = "is set, and the cluster waits for jobs, each of which has its own"
            remedy = "leave it out, and give it with `rollcall submit --runtime-env`"
            yield Fault("ROLLCALL_RUNTIME_ENV", None, problem, remedy)
    elif RECIPES[settings.recipe].own_trainer:
        for name in OF_OTHER_PROGRAMS:
            if getattr(settings, name):
                problem = f"is set, and the recipe is {settings.recipe}, which takes none"
                remedy = "set ROLLCALL_RECIPE=command or torchrun, or leave it out"
                yield Fault(declared()[name].name, None, problem, remedy)
    if settings.checkpoints is None and any(CHECKPOINT in word for word in settings.resume_args):
        problem = f"has {CHECKPOINT}, and ROLLCALL_CHECKPOINTS is not set"
        remedy = "set ROLLCALL_CHECKPOINTS to where the job's checkpoints lie"
        yield Fault("ROLLCALL_RESUME_ARGS", None, problem, remedy)


def _storage(settings: Settings) -> Iterator[Fault]:
    """Nodes that share no run directory: workers cannot read the head's token."""
    if settings.shares_run_dir:
        return
    if settings.ray_address is not None:
        yield Fault(
            "ROLLCALL_STORAGE",
            settings.storage,
            "keeps the run directory on this node alone, and the job's driver runs on Ray's head "
            "(ROLLCALL_RAY_ADDRESS)",
            "give shared, and storage that this node and Ray's nodes share",
        )
        return
    if settings.token is None and expected_workers(settings) != 0:
        yield Fault(
            "ROLLCALL_TOKEN",
            None,
            f"is not set, and with ROLLCALL_STORAGE={settings.storage} workers cannot read the "
            "token that the head would make",
            "set the same ROLLCALL_TOKEN on every node",
        )


def _uploads(settings: Settings) -> Iterator[Fault]:
    """Only `builtin` writes checkpoints of ours, and a store has those of one run."""
    if settings.ray_address is not None:
        return
    if settings.store and not RECIPES[settings.recipe].uploads:
        uploading = one_of(name for name, traits in RECIPES.items() if traits.uploads)
        yield Fault(
            "ROLLCALL_STORAGE",
            settings.storage,
            f"uploads the checkpoints of the {uploading} recipe, not those of {settings.recipe}",
            "give head, and have the job save to a store itself",
        )
    if settings.store and settings.waits_for_jobs:
        yield Fault(
            "ROLLCALL_STORAGE",
            settings.storage,
            "uploads the checkpoints of one run, and this cluster waits for jobs, each a run",
            "give head, or start one cluster for each run",
        )


def _left_out(settings: Settings) -> Iterator[Fault]:
    """Names in ROLLCALL_PREFLIGHT_SKIP that no check has."""
    for name in sorted(settings.preflight_skip.difference(CheckName)):
        remedy = f"give {nearest(name, CheckName) or 'one of ' + ', '.join(CheckName)}"
        value = shown(name, settings.secrets)
        yield Fault("ROLLCALL_PREFLIGHT_SKIP", value, "is the name of no check", remedy)


OF_RAYS_START = {
    "ray_port": "Ray has its ports already",
    "dashboard_port": "the address has the dashboard's port",
    "worker_ports": "Ray has its ports already",
    "ray_temp_dir": "Ray has its directory already",
    "resources": "give them to `ray start` on Ray's nodes",
    "num_cpus": "give them to `ray start` on Ray's nodes",
    "num_gpus": "give them to `ray start` on Ray's nodes",
    "spare_workers": "a node more in Ray's cluster is a spare",
    "standby_ranks": "Ray's nodes start their processes without them",
    "waits_for_jobs": "start Rollcall once for each job, with the job's own words",
    "debug_ray": "set RAY_DEBUG or RAY_DEBUG_POST_MORTEM on Ray's nodes",
}
"""Settings for the Ray that a node starts, and what counts instead if Ray is there already."""


def _beside_ray(settings: Settings) -> Iterator[Fault]:
    """Settings that have no effect on a Ray that exists already."""
    if settings.ray_address is None:
        return
    remedy = "remove it, or remove ROLLCALL_RAY_ADDRESS to start Ray here"
    for field, instead in OF_RAYS_START.items():
        if (name := settings.variable(field)) and getattr(settings, field):
            value = shown(settings.environ[name], settings.secrets)
            problem = "is for a Ray that Rollcall starts, and ROLLCALL_RAY_ADDRESS names one that "
            yield Fault(name, value, f"{problem}exists ({instead})", remedy)
    for service in ("reward", "retriever"):
        if (
            getattr(settings, f"{service}_command")
            and getattr(settings, f"{service}_on") is ServiceOn.EVERY
        ):
            yield Fault(
                f"ROLLCALL_{service.upper()}_ON",
                "every",
                "starts a server on every node of Rollcall, and Ray's nodes are none "
                "(ROLLCALL_RAY_ADDRESS)",
                "give `head`, or start the server on Ray's nodes yourself",
            )
