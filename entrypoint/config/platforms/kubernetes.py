"""Kubernetes: pods of a LeaderWorkerSet, Kubeflow, an Indexed Job, a JobSet or a StatefulSet.

Only LeaderWorkerSet and Kubeflow number the nodes. JOB_COMPLETION_INDEX counts the pods of one
Job: two Jobs of a JobSet both have index 0. A StatefulSet sets no variable. For those three, the
pod whose name ROLLCALL_HEAD_ADDRESS begins with is the head.
Sources: pkg/utils/pod/pod_utils.go of kubernetes-sigs/lws (LWS_WORKER_INDEX since 0.6);
pkg/runtime/framework/plugins/torch/torch.go of kubeflow/trainer; kubernetes.io/docs, "Job with
Pod-to-Pod Communication" and "StatefulSets", stable network ID; jobset.sigs.k8s.io/docs/concepts;
ray-operator/controllers/ray/common/pod.go of ray-project/kuberay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from contract.options import Fault
from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import (
    NODE_COUNT,
    RANK,
    Facts,
    Platform,
    Source,
    first_given,
)
from entrypoint.config.variables import shown

LEADER_WORKER_SET = Platform(
    name="leaderworkerset",
    marks=("LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE"),
    sources=(
        Source("rank", "LWS_WORKER_INDEX", RANK),
        Source("nodes", "LWS_GROUP_SIZE", NODE_COUNT),
        Source("head_address", "LWS_LEADER_ADDRESS", host),
    ),
    again="kubectl delete pod $HOSTNAME",
    undecided="set LWS_WORKER_INDEX from the label leaderworkerset.sigs.k8s.io/worker-index",
)
KUBEFLOW = Platform(
    name="kubeflow",
    marks=("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"),
    sources=(
        Source("rank", "PET_NODE_RANK", RANK),
        Source("nodes", "PET_NNODES", NODE_COUNT),
        Source("head_address", "PET_MASTER_ADDR", host),
    ),
    again="kubectl delete trainjob JOB && kubectl apply --filename FILE",
    undecided="use a runtime that sets PET_NODE_RANK (no elastic policy), or set RAY_WORKER",
)

POD_NAME = re.compile(r"(?P<owner>.+)-(?P<index>[0-9]+)")
"""The name of a pod of an Indexed Job, a JobSet or a StatefulSet."""

OF_A_JOB_SET = re.compile(r"(?P<set>.+)-node-[0-9]+")
"""The name of a Job of a JobSet whose replicated job is `node`, as in this product's chart."""
REPLACE_A_JOB = "kubectl delete job JOB && kubectl apply --filename FILE"

HEAD_ADDRESS = "ROLLCALL_HEAD_ADDRESS"
NAME_THE_HEAD = (
    "set ROLLCALL_HEAD_ADDRESS on all pods to the head pod's name in its headless service, as in "
    "train-0.SERVICE, or set RAY_WORKER to 0 on the head and to 1 on workers"
)
NAMED_PODS = {"nodes": "set EXPECTED_WORKERS on the head: all pods without the head"}


def by_pod_name(environ: Mapping[str, str]) -> tuple[Source, ...]:
    """The source of the role if both this pod and the head have numbered names; else none.

    Upper and lower case are the same, as they are to DNS.
    """
    own, head = (_first_part(environ.get(name, "")) for name in ("HOSTNAME", HEAD_ADDRESS))
    if not (POD_NAME.fullmatch(own) and POD_NAME.fullmatch(head)):
        return ()
    return (Source("is_main", "HOSTNAME", lambda _: own == head),)


def _first_part(name: str) -> str:
    """The pod's part of a name such as `train-0.train`, in lower case."""
    return name.strip().partition(".")[0].lower()


def named_pod(environ: Mapping[str, str]) -> Facts | None:
    """A pod that no other platform numbers: its name says whether it is the head."""
    return Platform(
        name="kubernetes",
        marks=("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
        sources=by_pod_name(environ),
        undecided=NAME_THE_HEAD,
        remedies=NAMED_PODS,
        again=_again(environ),
    ).read(environ)


def _again(environ: Mapping[str, str]) -> str:
    """A StatefulSet makes a pod that is deleted again; a Job that has ended makes none."""
    named = POD_NAME.fullmatch(_first_part(environ.get("HOSTNAME", "")))
    if not first_given(environ, ("JOB_COMPLETION_INDEX",)):
        return "kubectl delete pod $HOSTNAME" if named else REPLACE_A_JOB
    if named is None:
        return REPLACE_A_JOB
    of_set = OF_A_JOB_SET.fullmatch(named["owner"])
    kind, name = ("jobset", of_set["set"]) if of_set else ("job", named["owner"])
    return f"kubectl delete {kind} {name} && helm upgrade {name} CHART --reuse-values"


def kuberay_pod(environ: Mapping[str, str]) -> Facts | None:
    """KubeRay starts Ray in its pods. A second Ray beside it would be a second cluster.

    ROLLCALL_RAY_ADDRESS takes the place of this fault.
    """
    mark = first_given(environ, ("KUBERAY_GEN_RAY_START_CMD",))
    if mark is None:
        return None
    remedy = (
        "set ROLLCALL_RAY_ADDRESS to Ray's dashboard, in one pod only "
        "(compose/kubernetes/kuberay.yaml); or run the image as a LeaderWorkerSet or a JobSet"
    )
    fault = Fault(mark, shown(environ[mark]), "shows that KubeRay starts Ray in this pod", remedy)
    return Facts(name="kuberay", faults={"is_main": fault})
