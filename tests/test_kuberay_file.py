"""compose/kubernetes/kuberay.yaml fits itself, the program, and KubeRay's own fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, decide
from entrypoint.machine.inventory import installed
from tests.support.pod_security import unsafe
from tests.support.repository import ROOT
from trainer.config.parse import parse

FILE = ROOT / "compose" / "kubernetes" / "kuberay.yaml"
CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Fields of RayCluster in KubeRay's API group ray.io/v1, of those that it has."""
HOPELESS = {ExitCode.USAGE, ExitCode.JOB_FAILED, ExitCode.NOT_ALLOWED}


def manifests() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text())}


def pods() -> dict[str, dict[str, Any]]:
    """The pod of Ray's head, of its workers, and of the supervisor."""
    found = manifests()
    cluster = found["RayCluster"]["spec"]
    (workers,) = cluster["workerGroupSpecs"]
    return {
        "head": cluster["headGroupSpec"]["template"]["spec"],
        "worker": workers["template"]["spec"],
        "supervisor": found["Job"]["spec"]["template"]["spec"],
    }


def supervisor() -> dict[str, Any]:
    (container,) = pods()["supervisor"]["containers"]
    return dict(container)


def variables() -> dict[str, str]:
    """With what KubeRay's secret holds."""
    given = {one["name"]: one.get("value", "from-a-secret") for one in supervisor()["env"]}
    return given | {"ROLLCALL_NODE_NAME": "train-x2x4z", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_the_cluster_has_fields_of_kuberay() -> None:
    cluster = manifests()["RayCluster"]
    assert cluster["apiVersion"] == "ray.io/v1"
    assert set(cluster["spec"]) <= CLUSTER_FIELDS
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    assert set(workers) <= GROUP_FIELDS
    for group in (cluster["spec"]["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_every_pod_has_the_one_image_whose_ray_the_file_names() -> None:
    images = {pod["containers"][0]["image"] for pod in pods().values()}
    assert len(images) == 1
    assert manifests()["RayCluster"]["spec"]["rayVersion"] == installed("ray")


@pytest.mark.parametrize("name", ["head", "worker", "supervisor"])
def test_a_pod_meets_the_restricted_standard_and_what_kube_score_asks(name: str) -> None:
    assert unsafe(pods()[name]) == []


def test_the_pods_of_ray_and_the_supervisor_reach_each_other_and_others_reach_the_page() -> None:
    found = list(yaml.safe_load_all(FILE.read_text()))
    ray, page = (one["spec"] for one in found if one["kind"] == "NetworkPolicy")
    cluster = manifests()["RayCluster"]["metadata"]["name"]
    (job,) = (one for one in found if one["kind"] == "Job")
    of_ray = {"matchLabels": {"ray.io/cluster": cluster}}
    of_supervisor = {"matchLabels": job["spec"]["template"]["metadata"]["labels"]}
    assert (ray["podSelector"], page["podSelector"]) == (of_ray, of_supervisor)
    assert ray["ingress"] == [{"from": [{"podSelector": of_ray}, {"podSelector": of_supervisor}]}]
    all_ports, control = page["ingress"]
    assert all_ports == {"from": [{"podSelector": of_ray}]}
    (port,) = control["ports"]
    assert port["port"] in {one["name"] for one in supervisor()["ports"]}


def test_the_supervisor_waits_for_all_workers_of_the_cluster_that_it_names() -> None:
    found = manifests()
    (workers,) = found["RayCluster"]["spec"]["workerGroupSpecs"]
    settings = read_settings(variables())
    role = decide(settings)
    assert isinstance(role, Head)
    assert role.expected_workers == workers["replicas"] == workers["minReplicas"]
    name = found["RayCluster"]["metadata"]["name"]
    assert settings.ray_address == f"http://{name}-head-svc:8265"
    (token,) = (one for one in supervisor()["env"] if one["name"] == "RAY_AUTH_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}
    (start,) = (one for one in supervisor()["env"] if one["name"] == "ROLLCALL_START_ID")
    assert "controller-uid" in start["valueFrom"]["fieldRef"]["fieldPath"]
    assert found["RayCluster"]["spec"]["authOptions"]["mode"] == variables()["RAY_AUTH_MODE"]


def test_every_pod_mounts_the_claim_where_the_run_directory_is() -> None:
    claim = manifests()["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods().values():
        (volume,) = (one for one in pod["volumes"] if "persistentVolumeClaim" in one)
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert mounts[volume["name"]] == "/shared"
    assert variables()["ROLLCALL_RUN_DIR"].startswith("/shared/")


def test_the_job_has_flags_of_the_trainer(tmp_path: Path) -> None:
    prompts = tmp_path / "train.jsonl"
    prompts.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    there = {"/shared/data/train.jsonl": str(prompts)}
    flags = [flag.split("=", 1) for flag in supervisor()["args"]]
    words = [f"{name}={there.get(value, value)}" for name, value in flags]
    assert parse([*words, "--run_dir", str(tmp_path)]).warnings == ()


def test_a_supervisor_that_fails_is_tried_again_unless_it_would_end_the_same_way() -> None:
    job = manifests()["Job"]["spec"]
    by_code = [rule for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in by_code}
    assert codes == {"FailJob": sorted(HOPELESS), "Ignore": [ExitCode.STOPPED]}
    assert all(rule["onExitCodes"]["containerName"] == supervisor()["name"] for rule in by_code)
    grace = int(variables()["ROLLCALL_GRACE_SECONDS"].rstrip("s"))
    assert pods()["supervisor"]["terminationGracePeriodSeconds"] > grace + 30


def test_a_pod_of_kuberay_without_the_variable_is_refused_and_told_of_the_file() -> None:
    mark = {"KUBERAY_GEN_RAY_START_CMD": "ray start --head"}
    with pytest.raises(ConfigError, match=r"ROLLCALL_RAY_ADDRESS.*kuberay\.yaml"):
        read_settings({"ROLLCALL_NODE_NAME": "here", **mark})
