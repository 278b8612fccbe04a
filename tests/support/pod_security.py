"""What of a pod Kubernetes' standard "restricted" refuses, and what kube-score finds critical.

Both are read from their pages: kube-score is a program in Go, which no package registry of this
project has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
LEAST_USER = 10_000
"""Smaller numbers may be users of the machine."""


def unsafe(pod: dict[str, Any]) -> list[str]:
    """The rules that a pod breaks."""
    return [*_of_the_pod(pod), *(rule for one in pod["containers"] for rule in _of(one, pod))]


def _of_the_pod(pod: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    if pod.get("automountServiceAccountToken", True):
        yield "automountServiceAccountToken"
    for volume in pod.get("volumes", []):
        if not volume.keys() - {"name"} <= VOLUMES:
            yield f"volume {volume['name']}"


def _of(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    capabilities = own.get("capabilities", {})
    holds = {
        "privileged": not own.get("privileged", False),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "capabilities.drop": capabilities.get("drop") == ["ALL"],
        "capabilities.add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
        "runAsNonRoot": both.get("runAsNonRoot") is True,
        "runAsUser": both.get("runAsUser", 0) > LEAST_USER,
        "runAsGroup": both.get("runAsGroup", 0) > LEAST_USER,
        "seccompProfile": both.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        "image": ":" in container["image"] and not container["image"].endswith(":latest"),
        "requests": {"cpu", "memory", "ephemeral-storage"}
        <= container["resources"]["requests"].keys(),
        "limits": {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys(),
        "readinessProbe": "readinessProbe" in container,
        "same probes": container.get("readinessProbe") != container.get("livenessProbe"),
    }
    yield from (f"{container['name']}: {rule}" for rule, kept in holds.items() if not kept)
