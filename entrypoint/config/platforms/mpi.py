"""Processes that `mpirun` or `mpiexec` starts: Open MPI, and the launchers that set PMI_RANK.

A rank counts processes, so it counts nodes only with one process on each node. No launcher says
where rank 0 runs. Launchers of PMIx alone (prterun) say no more than the rank.
Sources: docs.open-mpi.org, "Environment variables set for MPI applications"; PMI-1 of MPICH's
hydra and Intel MPI (PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS, MPI_LOCALRANKID), and Cray PALS
(PMI_LOCAL_SIZE, PMI_LOCAL_RANK); seen with Open MPI 4.1 and MPICH 4.0.
"""

from __future__ import annotations

from entrypoint.config.platforms.facts import (
    NODE_COUNT,
    RANK,
    Platform,
    Source,
    first_process,
    one_process,
)

TO_THE_HEAD = "set ROLLCALL_HEAD_ADDRESS to the host of rank 0, on all nodes"

OPEN_MPI = Platform(
    name="open-mpi",
    marks=(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    sources=(
        Source("rank", "OMPI_COMM_WORLD_RANK", RANK),
        Source("nodes", "OMPI_COMM_WORLD_SIZE", NODE_COUNT),
        Source("processes", "OMPI_COMM_WORLD_LOCAL_SIZE", one_process),
        Source("processes", "OMPI_COMM_WORLD_LOCAL_RANK", first_process),
    ),
    undecided="pass OMPI_COMM_WORLD_RANK to the node, or set RAY_WORKER",
    remedies={
        "head_address": TO_THE_HEAD,
        "processes": "start one process on each node: mpirun --map-by ppr:1:node",
    },
)

PMI = Platform(
    name="pmi",
    marks=(
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
        "PMI_LOCAL_SIZE",
        "PMI_LOCAL_RANK",
    ),
    sources=(
        Source("rank", "PMI_RANK", RANK),
        Source("nodes", "PMI_SIZE", NODE_COUNT),
        Source("processes", "MPI_LOCALNRANKS", one_process),
        Source("processes", "MPI_LOCALRANKID", first_process),
        Source("processes", "PMI_LOCAL_SIZE", one_process),
        Source("processes", "PMI_LOCAL_RANK", first_process),
    ),
    undecided="pass PMI_RANK to the node, or set RAY_WORKER",
    remedies={
        "head_address": TO_THE_HEAD,
        "processes": "start one process on each node: mpiexec -ppn 1",
    },
)

PMIX = Platform(
    name="pmix",
    marks=("PMIX_RANK", "PMIX_NAMESPACE"),
    sources=(Source("rank", "PMIX_RANK", RANK),),
    undecided="pass PMIX_RANK to the node, or set RAY_WORKER",
    remedies={"head_address": TO_THE_HEAD},
)
"""Generic: `srun --mpi=pmix` and Open MPI set these variables beside their own."""
