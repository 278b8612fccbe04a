"""Settings that are right alone and wrong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from urllib.parse import urlsplit

from contract.options import Fault, nearest
from entrypoint.config.check_names import CheckName
from entrypoint.config.job_parsers import CHECKPOINT
from entrypoint.config.parsers import Tls, one_of
from entrypoint.config.partly import judged
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.role import expected_workers
from entrypoint.config.settings import ServiceOn, Settings, declared
from entrypoint.config.uses import OF_OTHER_PROGRAMS, Use
from entrypoint.config.variables import shown

Rule = Callable[[Settings], Iterator[Fault]]


def contradictions(settings: Settings, use: Use) -> Iterator[Fault]:
    """Yield the faults that count for `use`."""
    rules: list[Rule] = [_tls_twice, _tls_urls]
    if use is not Use.ASK:
        rules += [_debuggers, *_OF_PORTS, *_OF_SERVICES]
    if use is Use.START:
        rules += [_waits_with_a_job, _needless, _resume_args, _uploads]
    if use is not Use.ASK:
        rules += [_storage, _left_out, *_BESIDE_RAY]
    yield from judged(rule(settings) for rule in rules)


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


def _ports_of(settings: Settings, field: str) -> tuple[int, int] | None:
    """The first and the last port that a setting takes here; None if it takes none."""
    value = getattr(settings, field)
    if field == "worker_ports":
        return value.first, value.last
    if field.endswith("_url"):
        is_here = value and getattr(settings, field.replace("_url", "_command"))
        value = urlsplit(value).port if is_here else None
    return (value, value) if value else None


def _overlap(settings: Settings, field: str, other: str) -> Iterator[Fault]:
    own, its = _ports_of(settings, field), _ports_of(settings, other)
    if own and its and own[0] <= its[1] and its[0] <= own[1]:
        problem = f"overlaps {declared()[other].name}={_range(*its)}"
        yield Fault(declared()[field].name, _range(*own), problem, "give each its own port")


_WITH_PORTS = (
    *("ray_port", "dashboard_port", "control_port", "worker_ports", "reward_url", "retriever_url"),
)
_OF_PORTS: Sequence[Rule] = [
    partial(_overlap, field=one, other=two) for one, two in combinations(_WITH_PORTS, 2)
]


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _service(settings: Settings, service: str) -> Iterator[Fault]:
    name = f"ROLLCALL_{service.upper()}"
    if getattr(settings, f"{service}_command") and not getattr(settings, f"{service}_url"):
        raw = settings.environ.get(f"{name}_COMMAND", "")
        remedy = f"set {name}_URL to where the server answers"
        value = shown(raw, settings.secrets)
        yield Fault(f"{name}_COMMAND", value, f"is set without {name}_URL", remedy)


_OF_SERVICES: Sequence[Rule] = [partial(_service, service=one) for one in ("reward", "retriever")]


def _tls_twice(settings: Settings) -> Iterator[Fault]:
    given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(settings, name)]
    if given and settings.variable("tls"):
        problem = f"is set beside {declared()[given[0]].name}"
        yield Fault("ROLLCALL_TLS", str(settings.tls), problem, "set one of the two")


def _tls_urls(settings: Settings) -> Iterator[Fault]:
    plain = [one for one in settings.urls if urlsplit(one).scheme != "https"]
    if plain and settings.tls_mode is not Tls.OFF:
        problem = "is without TLS, which is on (ROLLCALL_TLS or ROLLCALL_TLS_CA)"
        value = shown(plain[0], settings.secrets)
        yield Fault("ROLLCALL_URL", value, problem, "begin it with https://")


def _waits_with_a_job(settings: Settings) -> Iterator[Fault]:
    """A cluster that waits for jobs has none of its own."""
    if settings.waits_for_jobs and settings.job:
        source = settings.variable("job") or "the command line"
        remedy = "leave one of the two out; `rollcall submit` gives the cluster its jobs"
        problem = f"waits for jobs, and {source} has one"
        yield Fault("ROLLCALL_WAIT_FOR_JOBS", "1", problem, remedy)


def _needless(settings: Settings) -> Iterator[Fault]:
    """Some settings are of other programs."""
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


def _resume_args(settings: Settings) -> Iterator[Fault]:
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


def _beside_ray(settings: Settings, field: str) -> Iterator[Fault]:
    """A setting that has no effect on a Ray that exists already."""
    if settings.ray_address is None:
        return
    if (name := settings.variable(field)) and getattr(settings, field):
        value = shown(settings.environ[name], settings.secrets)
        problem = "is for a Ray that Rollcall starts, and ROLLCALL_RAY_ADDRESS names one that "
        problem += f"exists ({OF_RAYS_START[field]})"
        remedy = "remove it, or remove ROLLCALL_RAY_ADDRESS to start Ray here"
        yield Fault(name, value, problem, remedy)


def _service_beside_ray(settings: Settings, service: str) -> Iterator[Fault]:
    if (
        settings.ray_address is not None
        and getattr(settings, f"{service}_command")
        and getattr(settings, f"{service}_on") is ServiceOn.EVERY
    ):
        yield Fault(
            f"ROLLCALL_{service.upper()}_ON",
            "every",
            "starts a server on every node of Rollcall, and Ray's nodes are none "
            "(ROLLCALL_RAY_ADDRESS)",
            "give `head`, or start the server on Ray's nodes yourself",
        )


_BESIDE_RAY: Sequence[Rule] = [
    *(partial(_beside_ray, field=field) for field in OF_RAYS_START),
    *(partial(_service_beside_ray, service=one) for one in ("reward", "retriever")),
]
