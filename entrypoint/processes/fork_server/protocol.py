"""Pure: a request to the fork server, and whether a fork would equal a started process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

OWN = ("RAY_", "ROLLCALL_")
"""Prefixes that are read only after the fork, and so may differ: Ray is imported after it."""
HARMLESS = frozenset(
    {
        *("_", "OLDPWD", "PWD", "SHLVL"),  # a shell's
        "OMP_NUM_THREADS",  # every model sets its threads anew before it computes
        "PYTHONBREAKPOINT",  # read at a breakpoint
        # Set by Ray, and read when a device is first used.
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR"),
        *("ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "NEURON_RT_VISIBLE_CORES"),
        *("RBLN_DEVICES", "TPU_VISIBLE_CHIPS"),
    }
)
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


class NotForkableError(Exception):
    """A fork would not equal a started process; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process, as `python ARGV…` would start it."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str
    umask: int
    blocked: tuple[int, ...]
    """Signals."""

    @classmethod
    def read(cls, text: bytes) -> Request:
        row = json.loads(text)
        return cls(
            tuple(row["argv"]),
            row["environ"],
            row["directory"],
            row["umask"],
            tuple(row["blocked"]),
        )


def forkable(request: Request, environ: Mapping[str, str], python: str) -> Request:
    """The process to fork from a server that was started as `python` with `environ`.

    Raises NotForkableError if a fork would differ from a started process.
    """
    request = _unwrapped(request, python)
    names = {*environ, *request.environ}
    unlike = (n for n in names if environ.get(n, "") != request.environ.get(n, ""))
    differing = sorted(n for n in unlike if n not in HARMLESS and not n.startswith(OWN))
    if differing:
        listed = ", ".join(differing)
        raise NotForkableError(f"{listed} may be read at import, and differ from the node's")
    return request


def _unwrapped(request: Request, python: str) -> Request:
    """The request without Ray's setup_worker.py, if that would only set variables."""
    if not request.argv[0].endswith("/setup_worker.py"):
        return request
    said = next((word for word in request.argv if word.startswith(CONTEXT)), CONTEXT + "{}")
    context: dict[str, Any] = json.loads(said.removeprefix(CONTEXT))
    variables: dict[str, str] = context.pop("env_vars", {})
    if context.pop("py_executable", python) != python or any(context.values()):
        raise NotForkableError("the runtime environment has more than variables")
    if any("$" in value for value in variables.values()):
        raise NotForkableError("the runtime environment's variables refer to others")
    argv = [word for word in request.argv[1:] if not word.startswith((CONTEXT, LANGUAGE))]
    return replace(request, argv=tuple(argv), environ={**request.environ, **variables})
