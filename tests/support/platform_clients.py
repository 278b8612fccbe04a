"""Reads files of compose/ with a platform's own client. Needs the environment `.platforms`.

    .platforms/bin/python tests/support/platform_clients.py WHAT FILE [JSON]

It prints one JSON value, and ends with a traceback if the client refuses the file.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml


def dstack(file: Path) -> Any:
    from dstack._internal.core.models.configurations import parse_apply_configuration

    parsed = parse_apply_configuration(yaml.safe_load(file.read_text()))
    return json.loads(parsed.json())


def skypilot(directory: Path) -> Any:
    import sky
    from sky.utils.config_utils import merge_k8s_configs
    from sky.volumes.volume import Volume

    found = {}
    for name in ("task", "managed"):
        task = sky.Task.from_yaml(str(directory / f"{name}.yaml"))
        (resources,) = task.resources
        pod: dict[str, Any] = {"spec": {"containers": [{"name": "ray-node"}]}}
        merge_k8s_configs(pod, resources.cluster_config_overrides["kubernetes"]["pod_config"])
        found[name] = {
            "nodes": task.num_nodes,
            "gpus": resources.accelerators,
            "recovery": resources.job_recovery,
            "spot": resources.use_spot,
            "volumes": task.volumes,
            "containers": pod["spec"]["containers"],
        }
    volume = Volume.from_yaml_config(yaml.safe_load((directory / "volume.yaml").read_text()))
    return {**found, "volume": {"name": volume.name, "config": volume.config}}


def aws_batch(file: Path) -> Any:
    import botocore.session
    from botocore.validate import ParamValidator

    client = botocore.session.get_session().create_client(
        "batch", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    operation = client.meta.service_model.operation_model("RegisterJobDefinition")
    definition = json.loads(file.read_text())
    report = ParamValidator().validate(definition, operation.input_shape)
    assert not report.has_errors(), report.generate_report()
    return definition


def chart(directory: Path, values: dict[str, Any]) -> Any:
    """The manifests that Helm's engine renders, each of Kubernetes' own kinds validated."""
    import helm_python
    import kubernetes_validate

    found = helm_python.lint(str(directory))["messages"]
    assert [message for message in found if message["severity"] > 1] == []
    with helm_python.Chart.load(str(directory)) as loaded:
        loaded.validate_schema(values)
        rendered = loaded.render(values, name="first", namespace="runs")
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    manifests = [found for text in texts for found in yaml.safe_load_all(text) if found]
    for manifest in manifests:
        for kind in of_kubernetes(manifest):
            kubernetes_validate.validate(kind, "1.32", strict=True)
    return manifests


def kuberay(file: Path) -> Any:
    """The manifests, each of Kubernetes' own kinds validated, and the pods of a RayCluster."""
    import kubernetes_validate

    manifests = list(yaml.safe_load_all(file.read_text()))
    for manifest in manifests:
        for kind in of_kubernetes(manifest):
            kubernetes_validate.validate(kind, "1.32", strict=True)
    return [manifest["kind"] for manifest in manifests]


def of_kubernetes(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifest, or what of Kubernetes' own kinds a kind of others holds."""
    named = {"metadata": {"name": "first"}}
    if manifest["kind"] == "JobSet":
        jobs = [job["template"] for job in manifest["spec"]["replicatedJobs"]]
        return [{"apiVersion": "batch/v1", "kind": "Job", **named, **job} for job in jobs]
    if manifest["kind"] == "LeaderWorkerSet":
        pod = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        return [{"apiVersion": "v1", "kind": "PodTemplate", **named, "template": pod}]
    if manifest["kind"] == "RayCluster":
        groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
        template = {"apiVersion": "v1", "kind": "PodTemplate", **named}
        return [{**template, "template": group["template"]} for group in groups]
    if manifest["kind"] == "Secret":
        assert len(base64.b64decode(manifest["data"]["token"])) >= 16
    return [manifest]


if __name__ == "__main__":
    readers: dict[str, Callable[..., Any]] = {
        "dstack": dstack,
        "skypilot": skypilot,
        "aws-batch": aws_batch,
        "chart": chart,
        "kuberay": kuberay,
    }
    what, path, *more = sys.argv[1:]
    print(json.dumps(readers[what](Path(path), *map(json.loads, more)), default=str))
