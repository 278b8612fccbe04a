"""Azure: a multi-instance task of Batch, and a job of Azure Machine Learning.

Azure ML sets MASTER_ADDR and NODE_RANK (PyTorch jobs), or Open MPI's variables (MPI jobs). The
modules `torchrun` and `mpi` read those; Azure's own variables add the head's address and the size.
Sources: learn.microsoft.com/azure/batch/batch-compute-node-environment-variables;
learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu. AZUREML_NODE_COUNT and
AZ_BATCHAI_MPI_MASTER_NODE are in no documentation; programs written for Azure ML read them.
"""

from __future__ import annotations

import re

from entrypoint.config.platforms.facts import IS_HEAD, NODE_COUNT, Platform, Source, without_port


def host_count(hosts: str) -> int:
    """How many addresses `10.0.0.4,10.0.0.5` or `10.0.0.4;10.0.0.5` has."""
    addresses = [address for address in re.split(r"[,;\s]+", hosts) if address]
    return NODE_COUNT(str(len(addresses)))


AZURE = Platform(
    name="azure",
    marks=(
        "AZ_BATCH_IS_CURRENT_NODE_MASTER",
        "AZ_BATCH_MASTER_NODE",
        "AZ_BATCHAI_MPI_MASTER_NODE",
        "AZUREML_NODE_COUNT",
        "AZ_BATCH_HOST_LIST",
        "AZ_BATCH_NODE_LIST",
    ),
    sources=(
        Source("is_main", "AZ_BATCH_IS_CURRENT_NODE_MASTER", IS_HEAD),
        Source("head_address", "AZ_BATCH_MASTER_NODE", without_port),
        Source("head_address", "AZ_BATCHAI_MPI_MASTER_NODE", without_port),
        Source("nodes", "AZ_BATCH_HOST_LIST", host_count),
        Source("nodes", "AZ_BATCH_NODE_LIST", host_count),
        Source("nodes", "AZUREML_NODE_COUNT", NODE_COUNT),
    ),
    undecided="pass AZ_BATCH_IS_CURRENT_NODE_MASTER to the node, or set RAY_WORKER; in Azure ML, "
    "set the job's distribution to PyTorch with one process on each node",
)
