"""AWS: a node of a multi-node parallel job of Batch, and a host of a SageMaker training job.

Sources: docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html;
docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html and
ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit (SM_RESOURCE_CONFIG).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contract.options import ParseError
from entrypoint.config.parsers import host, start_id
from entrypoint.config.platforms.facts import (
    NODE_COUNT,
    NOT_THE_JSON,
    RANK,
    Facts,
    Platform,
    Source,
    first_given,
)

MAIN_INDEX = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"


def batch_node(environ: Mapping[str, str]) -> Facts | None:
    """The main node is the head. Only the other nodes are told its address."""
    main_index = environ.get(MAIN_INDEX, "").strip()

    def is_main(index: str) -> bool:
        return RANK(index) == RANK(main_index)

    known = (Source("is_main", NODE_INDEX, is_main),) if main_index else ()
    return Platform(
        name="aws-batch",
        marks=(NODE_INDEX, "AWS_BATCH_JOB_NUM_NODES", MAIN_INDEX),
        sources=(
            *known,
            Source("nodes", "AWS_BATCH_JOB_NUM_NODES", NODE_COUNT),
            Source("head_address", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", host),
            Source("start_id", "AWS_BATCH_JOB_ID", _of_all_nodes),
        ),
        again="aws batch submit-job --job-name NAME --job-queue $AWS_BATCH_JQ_NAME "
        "--job-definition DEFINITION",
        undecided=f"pass {NODE_INDEX} and {MAIN_INDEX} to the node, or set RAY_WORKER",
    ).read(environ)


def _of_all_nodes(job: str) -> str:
    """The job's id, which stays in each attempt, without the node's number after it."""
    return start_id(job.partition("#")[0])


RESOURCE_CONFIG = "SM_RESOURCE_CONFIG"
RESOURCE_FILE = Path("/opt/ml/input/config/resourceconfig.json")
"""SageMaker tells a container about the other hosts here; only its toolkit sets variables."""


def _of_hosts(fact: Callable[[list[str], str], Any]) -> Callable[[str], Any]:
    """Reads a fact from the JSON of the hosts' names and this host's name."""

    def parse(raw: str) -> Any:
        try:
            resources = json.loads(raw)
            hosts, current = sorted(map(host, resources["hosts"])), resources["current_host"]
            return fact(hosts, current)
        except NOT_THE_JSON:
            remedy = 'give {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]}'
            raise ParseError("does not name this host and the others", remedy) from None

    return parse


SAGEMAKER = Platform(
    name="sagemaker",
    marks=(RESOURCE_CONFIG, "SM_HOSTS", "SM_CURRENT_HOST", "TRAINING_JOB_ARN"),
    sources=(
        Source("rank", RESOURCE_CONFIG, _of_hosts(lambda hosts, current: hosts.index(current))),
        Source("nodes", RESOURCE_CONFIG, _of_hosts(lambda hosts, _: len(hosts))),
        Source("head_address", RESOURCE_CONFIG, _of_hosts(lambda hosts, _: hosts[0])),
        Source("node_name", RESOURCE_CONFIG, _of_hosts(lambda _, current: host(current))),
    ),
    undecided=f"set {RESOURCE_CONFIG} to the text of {RESOURCE_FILE}, or set RAY_WORKER",
)


def sagemaker_host(environ: Mapping[str, str]) -> Facts | None:
    """The first host by name is the head: every host knows the same names."""
    if first_given(environ, SAGEMAKER.marks) and not first_given(environ, (RESOURCE_CONFIG,)):
        environ = {**environ, RESOURCE_CONFIG: _resource_file()}
    return SAGEMAKER.read(environ)


def _resource_file() -> str:
    try:
        return RESOURCE_FILE.read_text()
    except (OSError, ValueError):
        return ""
