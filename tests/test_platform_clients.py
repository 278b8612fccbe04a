"""The platforms' own clients and schemas accept the files of compose/."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from tests.support.pod_security import unsafe
from tests.support.repository import ROOT

COMPOSE = ROOT / "compose"
CHART = COMPOSE / "kubernetes" / "chart"
CLIENTS = ROOT / ".platforms" / "bin"
READER = ROOT / "tests" / "support" / "platform_clients.py"
HOPELESS = {ExitCode.USAGE, ExitCode.JOB_FAILED, ExitCode.NOT_ALLOWED}

pytestmark = pytest.mark.skipif(
    not (CLIENTS.parent / ".done").exists(), reason="no clients of platforms: make .platforms/.done"
)


def read(what: str, path: Path, home: Path, **values: Any) -> Any:
    more = [json.dumps(values)] if what == "chart" else []
    done = subprocess.run(
        [CLIENTS / "python", READER, what, path, *more],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_dstack_reads_the_fleet_and_the_task(tmp_path: Path) -> None:
    fleet = read("dstack", COMPOSE / "dstack" / "fleet.dstack.yml", tmp_path)
    task = read("dstack", COMPOSE / "dstack" / "task.dstack.yml", tmp_path)
    assert (fleet["type"], fleet["placement"]) == ("fleet", "cluster")
    assert (task["type"], task["nodes"]) == ("task", 3)
    assert fleet["nodes"]["max"] >= task["nodes"]
    assert [port["container_port"] for port in task["ports"]] == [8267, 8265]


def test_skypilot_reads_the_task_the_managed_job_and_their_volume(tmp_path: Path) -> None:
    read_files = read("skypilot", COMPOSE / "skypilot", tmp_path)
    task, managed, volume = (read_files[name] for name in ("task", "managed", "volume"))
    assert (task["nodes"], task["gpus"], task["spot"]) == (3, {"H100": 8}, False)
    assert managed["spot"] is True
    assert managed["recovery"]["recover_on_exit_codes"]
    assert task["volumes"] == managed["volumes"] == {"/shared": volume["name"]}
    assert volume["config"]["access_mode"] == "ReadWriteMany"
    (container,) = task["containers"]
    assert container["name"] == "ray-node"
    assert container["securityContext"]["runAsUser"] == 0


def test_aws_takes_the_job_definition(tmp_path: Path) -> None:
    definition = read("aws-batch", COMPOSE / "aws-batch" / "job-definition.json", tmp_path)
    assert definition["type"] == "multinode"


def test_kubernetes_takes_the_pods_of_kuberays_file(tmp_path: Path) -> None:
    kinds = read("kuberay", COMPOSE / "kubernetes" / "kuberay.yaml", tmp_path)
    assert kinds == [
        *("RayCluster", "Job", "Service"),
        *("NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim"),
    ]


def test_shellcheck_finds_nothing() -> None:
    script = COMPOSE / "slurm" / "rollcall.sbatch"
    command = [str(CLIENTS / "shellcheck"), "--shell=bash", "--severity=warning", str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


KINDS = {"indexed-job": "Job", "jobset": "JobSet", "leader-worker-set": "LeaderWorkerSet"}
FULL = {
    "labels": {"kueue.x-k8s.io/queue-name": "queue"},
    "imagePullSecrets": [{"name": "registry"}],
    "env": {"NCCL_DEBUG": "WARN", "ROLLCALL_MIN_WORKERS": 1},
    "envFrom": [{"secretRef": {"name": "keys"}}],
    "extraResources": {"rdma/hca": 1},
    "storage": {"existingClaim": "mine", "runDir": "/shared/other"},
    "token": {"existingSecret": "mine"},
    "ttlSecondsAfterFinished": 60,
    "nodeSelector": {"a": "b"},
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "podSecurityContext": {"runAsUser": 1000, "fsGroup": 1000},
}


OF_JOB = "metadata.labels['batch.kubernetes.io/controller-uid']"
START_IDS = {"indexed-job": OF_JOB, "jobset": OF_JOB, "leader-worker-set": "metadata.uid"}
"""A new Job is never the same again; a LeaderWorkerSet starts the containers of a pod again."""


def rendered(home: Path, **values: Any) -> dict[str, dict[str, Any]]:
    manifests = read("chart", CHART, home, **values)
    return {f"{found['kind']}/{found['metadata']['name']}": found for found in manifests}


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    if manifest["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    template = spec.get("template") or spec["leaderWorkerTemplate"]["workerTemplate"]
    pod: dict[str, Any] = template["spec"]
    return pod


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_helm_renders_what_kubernetes_takes(
    kind: str, values: dict[str, Any], tmp_path: Path
) -> None:
    manifests = rendered(tmp_path, kind=kind, **values)
    pod = pod_of(manifests[f"{KINDS[kind]}/first"])
    (container,) = pod["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/shared", "/dev/shm", "/tmp", "/run/secrets/rollcall"} == mounts
    assert {"readinessProbe", "livenessProbe"} <= container.keys()
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    (start,) = (one for one in container["env"] if one["name"] == "ROLLCALL_START_ID")
    assert start["valueFrom"]["fieldRef"]["fieldPath"] == START_IDS[kind]
    (touched,) = container["lifecycle"]["preStop"]["exec"]["command"][1:]
    assert touched == variables["ROLLCALL_PREEMPT_FILE"]
    grace = int(variables["ROLLCALL_GRACE_SECONDS"].rstrip("s"))
    assert pod["terminationGracePeriodSeconds"] > grace + 30  # the head ends a job after 30 s more
    made = {"Secret/first-token", "PersistentVolumeClaim/first-shared"}
    assert made & manifests.keys() == (set() if values else made)
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"].items() >= values.get("podSecurityContext", {}).items()


@pytest.mark.parametrize("kind", KINDS)
def test_the_chart_s_pods_meet_the_restricted_standard_and_what_kube_score_asks(
    kind: str, tmp_path: Path
) -> None:
    assert unsafe(pod_of(rendered(tmp_path, kind=kind)[f"{KINDS[kind]}/first"])) == []


def test_the_chart_s_pods_talk_to_each_other_to_dns_and_by_https_alone(tmp_path: Path) -> None:
    labels = {"app.kubernetes.io/name": "rollcall", "app.kubernetes.io/instance": "first"}
    manifests = rendered(tmp_path, env=PORTS)
    template = manifests["Job/first"]["spec"]["template"]
    assert labels.items() <= template["metadata"]["labels"].items()
    policy = manifests["NetworkPolicy/first"]["spec"]
    pods = [{"podSelector": {"matchLabels": labels}}]
    assert policy["podSelector"] == {"matchLabels": labels}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    control = [{"port": PORTS["ROLLCALL_CONTROL_PORT"], "protocol": "TCP"}]
    assert policy["ingress"] == [
        {"from": pods},
        {"from": [{"podSelector": {}}], "ports": control},
    ]
    dns = [{"port": 53, "protocol": name} for name in ("UDP", "TCP")]
    https = [{"port": 443, "protocol": "TCP"}]
    assert policy["egress"] == [{"to": pods}, {"ports": dns}, {"ports": https}]


def test_the_page_can_be_closed_and_the_policy_left_to_others(tmp_path: Path) -> None:
    closed: dict[str, list[str]] = {"pageFrom": [], "egress": []}
    policy = rendered(tmp_path, networkPolicy=closed)["NetworkPolicy/first"]["spec"]
    assert (len(policy["ingress"]), len(policy["egress"])) == (1, 2)
    assert "NetworkPolicy/first" not in rendered(tmp_path, networkPolicy={"enabled": False})


PORTS = {
    "ROLLCALL_RAY_PORT": "7379",
    "ROLLCALL_DASHBOARD_PORT": "9265",
    "ROLLCALL_CONTROL_PORT": 9267,
}


@pytest.mark.parametrize("values", [{}, {"env": PORTS}], ids=["defaults", "given"])
def test_the_pods_ports_are_those_of_the_variables(values: dict[str, Any], tmp_path: Path) -> None:
    (container,) = pod_of(rendered(tmp_path, **values)["Job/first"])["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    named = (7379, 9265, 9267) if values else (6379, 8265, 8267)
    assert ports == dict(zip(("ray", "dashboard", "control"), named, strict=True))


@pytest.mark.parametrize("kind", ["indexed-job", "jobset"])
@pytest.mark.parametrize("seconds", [None, 0, 60])
def test_a_job_is_removed_so_long_after_its_end_or_never(
    kind: str, seconds: int | None, tmp_path: Path
) -> None:
    manifest = rendered(tmp_path, kind=kind, ttlSecondsAfterFinished=seconds)
    assert manifest[f"{KINDS[kind]}/first"]["spec"].get("ttlSecondsAfterFinished") == seconds


def test_the_head_has_the_name_of_the_first_pod(tmp_path: Path) -> None:
    heads = {"indexed-job": "first-0.first", "jobset": "first-node-0-0.first"}
    for kind, head in heads.items():
        manifests = rendered(tmp_path, kind=kind, nodes=4)
        (container,) = pod_of(manifests[f"{KINDS[kind]}/first"])["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["ROLLCALL_HEAD_ADDRESS"] == head
        assert variables["EXPECTED_WORKERS"] == "3"
    service = rendered(tmp_path, kind="indexed-job")["Service/first"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_spares_are_nodes_that_the_head_does_not_wait_for(tmp_path: Path) -> None:
    for kind in KINDS:
        manifests = rendered(tmp_path, kind=kind, nodes=5, spares=1)
        (container,) = pod_of(manifests[f"{KINDS[kind]}/first"])["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["ROLLCALL_SPARE_WORKERS"] == "1"
        assert variables.get("EXPECTED_WORKERS", "3") == "3"


def test_a_job_fails_at_once_only_for_exit_codes_that_would_come_again(tmp_path: Path) -> None:
    for kind in ("indexed-job", "jobset"):
        spec = rendered(tmp_path, kind=kind)[f"{KINDS[kind]}/first"]["spec"]
        job = spec if kind == "indexed-job" else spec["replicatedJobs"][0]["template"]["spec"]
        rules = job["podFailurePolicy"]["rules"]
        codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules[1:]}
        assert codes == {"FailJob": sorted(HOPELESS), "Ignore": [ExitCode.STOPPED]}
        assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
        assert job["podReplacementPolicy"] == "Failed"


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "deployment"},
        {"nodes": 0},
        {"nodez": 3},
        {"storage": {"runDir": "/sharedrun"}},
        {"storage": {"mountPath": "/lustre/me", "runDir": "/shared/run"}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        read("chart", CHART, tmp_path, **values)
