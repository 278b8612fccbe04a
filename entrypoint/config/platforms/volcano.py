"""Volcano: a pod of a vcjob with the plugins `env` and `svc`.

VC_TASK_INDEX counts the pods of one task: in a job with two tasks, two pods have index 0.
Source: pkg/controllers/job/plugins/env/env.go and svc/svc.go of volcano-sh/volcano.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import NODE_COUNT, RANK, Facts, Platform, Source
from entrypoint.config.platforms.kubernetes import NAME_THE_HEAD, NAMED_PODS, by_pod_name

INDEX = ("VC_TASK_INDEX", "VK_TASK_INDEX")
HOSTS = re.compile(r"VC_(?P<task>.+)_HOSTS")
"""The hosts of each task, which the plugin `svc` sets; VC_<task>_NUM counts them."""


def first_of(hosts: str) -> str:
    return host(hosts.split(",")[0].strip())


def _is_one_of(hosts: str, environ: Mapping[str, str]) -> bool:
    """Whether this pod is one of `hosts`: a pod of another task has index 0 too."""
    own = environ.get("HOSTNAME", "").strip()
    return own in {name.strip().partition(".")[0] for name in hosts.split(",")} - {""}


def pod(environ: Mapping[str, str]) -> Facts | None:
    """ROLLCALL_HEAD_ADDRESS names the head; without it, the first pod of a job with one task."""
    tasks = [found["task"] for name in sorted(environ) if (found := HOSTS.fullmatch(name))]
    sources = by_pod_name(environ)
    if len(tasks) == 1 and _is_one_of(environ[f"VC_{tasks[0]}_HOSTS"], environ):
        sources = (
            *(sources or [Source("rank", index, RANK) for index in INDEX]),
            Source("nodes", f"VC_{tasks[0]}_NUM", NODE_COUNT),
            Source("head_address", f"VC_{tasks[0]}_HOSTS", first_of),
        )
    return Platform(
        name="volcano",
        marks=(*INDEX, *(f"VC_{task}_HOSTS" for task in tasks)),
        sources=sources,
        undecided=NAME_THE_HEAD,
        again="kubectl delete vcjob JOB && kubectl apply --filename FILE",
        remedies=NAMED_PODS,
    ).read(environ)
