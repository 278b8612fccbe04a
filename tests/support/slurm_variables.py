"""The variables that Slurm 22.05 sets, printed by tasks on four nodes."""

from __future__ import annotations

Environ = dict[str, str]

SLURM_JOB = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "gn[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_NODELIST": "gn[1-3]",
    "SLURM_NTASKS": "3",
}
SLURM_BATCH = SLURM_JOB | {
    "SLURMD_NODENAME": "gn1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}
"""A batch script: SLURM_NODEID is 0, as in the first task, and there is no step."""
SLURM_INTERACTIVE = SLURM_BATCH | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "gn1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
"""The shell that `salloc` opens on the first node."""
SLURM_SALLOC = SLURM_JOB | {"SLURM_JOB_NAME": "interactive"}
"""A command of `salloc`: it runs where the user typed it."""


def slurm_step(node: int, name: str, nodes: int, listed: str, tasks: str = "") -> Environ:
    return {
        "SLURMD_NODENAME": name,
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": listed,
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": tasks or f"1(x{nodes})",
    }


SLURM_TWO_TASKS = tuple(
    SLURM_JOB
    | slurm_step(node, f"gn{node + 1}", 2, "gn[1-2]", "2(x2)")
    | {"SLURM_LOCALID": str(task), "SLURM_PROCID": str(2 * node + task)}
    for node in (0, 1)
    for task in (0, 1)
)
"""The tasks of `srun` in a job with --nodes=2 --ntasks-per-node=2."""

SLURM_HET_JOB = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID": "5",
    "SLURM_JOB_NODELIST": "gn[1-3]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gn3",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "gn[1-2]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
}
SLURM_HET_STEP = tuple(
    SLURM_HET_JOB | slurm_step(n, name, 3, "gn[1-3]")
    for n, name in enumerate(("gn3", "gn1", "gn2"))
)
"""`srun --het-group=0,1`: node 0 is gn3, though the sorted list begins with gn1."""
SLURM_HET_FIRST_ONLY = SLURM_HET_JOB | slurm_step(0, "gn3", 1, "gn3")
"""`srun` alone starts on the first component only."""
