"""Slurm: a task that `srun` started, one on each node.

A batch script runs on the first node with SLURM_NODEID=0, as the first task does; only a step that
`srun` started has SLURM_STEP_ID. In a step over several components of a heterogeneous job,
SLURM_NODEID and SLURM_STEP_NUM_NODES count the nodes of all of them, component by component, but
SLURM_STEP_NODELIST is sorted by name.
Sources: slurm.schedmd.com/srun.html and heterogeneous_jobs.html; seen with Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from contract.options import Bounds, Fault, ParseError
from entrypoint.config.parsers import host, node_name, whole_number
from entrypoint.config.platforms.facts import (
    GPU_COUNT,
    NODE_COUNT,
    RANK,
    Facts,
    Source,
    first_given,
    first_process,
    gather,
    not_decided,
    one_process,
)
from entrypoint.config.variables import shown

COMPONENTS = whole_number(Bounds(at_least=1, at_most=128))
NUMBERS = r"\[(\w+)(?:-\w+)?(?:,\w+(?:-\w+)?)*\]"
"""The numbers of nodes in a list, such as `[10,20-25]`; its group is the first of them."""
SPECIAL_STEPS = 0xFFFFFFFA
"""Step ids from here on are the interactive shell of `salloc`, the batch script and the like."""


def first_host(node_list: str) -> str:
    """The first name of a compressed list: `gnode10` of `gnode[10,20-25],big1`.

    Raises ParseError, also for a list that was cut off within brackets.
    """
    if re.search(r"[\[\]]", re.sub(NUMBERS, "", node_list)):
        problem = "is no list of nodes as Slurm gives it, such as gn[10-12]"
        raise ParseError(problem, "give the list as Slurm sets it")
    return host(re.sub(NUMBERS, r"\1", node_list).partition(",")[0])


def one_task_a_node(counts: str) -> int:
    """1, from the number of tasks on each node: `1(x3)`; `2(x2),1` is a fault."""
    for count in counts.split(","):
        one_process(re.sub(r"\(x\d+\)$", "", count.strip()))
    return 1


NODE = (
    Source("gpus_per_node", "SLURM_GPUS_ON_NODE", GPU_COUNT),
    Source("node_name", "SLURMD_NODENAME", node_name),
)
TASK = (
    Source("rank", "SLURM_NODEID", RANK),
    Source("processes", "SLURM_STEP_TASKS_PER_NODE", one_task_a_node),
    Source("processes", "SLURM_LOCALID", first_process),
)
STEP = (
    Source("nodes", "SLURM_STEP_NUM_NODES", NODE_COUNT),
    Source("head_address", "SLURM_STEP_NODELIST", first_host),
)
JOB = (
    Source("nodes", "SLURM_JOB_NUM_NODES", NODE_COUNT),
    Source("nodes", "SLURM_NNODES", NODE_COUNT),
    Source("head_address", "SLURM_JOB_NODELIST", first_host),
)
HEAD_OF_ALL_COMPONENTS = Source("head_address", "SLURM_JOB_NODELIST_HET_GROUP_0", first_host)

MARKS = (
    *("SLURM_JOB_ID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEPID"),
    *(source.variable for source in (*STEP, *JOB)),
    "SLURM_NODELIST",
)
"""A container that a task starts may have some of them only."""

REMEDIES = {
    "processes": "give srun as many tasks as nodes, as in `srun --nodes=2 --ntasks=2`; in a job "
    "with more tasks a node, srun ignores --ntasks-per-node=1"
}
PASS_THE_RANK = "pass SLURM_NODEID to the node, or set RAY_WORKER"
START_WITH_SRUN = (
    "start it with `srun`, one task on each node; a container needs Slurm's variables, "
    "SLURM_STEP_ID among them"
)


AGAIN = "sbatch --export ALL,ROLLCALL_RUN_DIR=$ROLLCALL_RUN_DIR FILE WORDS"


def task(environ: Mapping[str, str]) -> Facts | None:
    """The facts of a task; in a job without `srun`, its nodes, and no rank."""
    mark = first_given(environ, MARKS)
    return None if mark is None else replace(_in_a_job(environ, mark), again=AGAIN)


def _in_a_job(environ: Mapping[str, str], mark: str) -> Facts:
    if first_given(environ, ("OMPI_COMM_WORLD_RANK",)):  # mpirun started this process, not srun
        return gather("slurm", environ, NODE)
    if not _in_a_step(environ):
        return _without_srun(environ, mark)
    if _components(environ) is not None:
        return _of_components(environ)
    # What the step says of its nodes takes the place of what the job says of all nodes.
    step = [source for source in STEP if first_given(environ, (source.variable,))]
    told = {source.fact for source in step}
    job = [source for source in JOB if source.fact not in told]
    return _task(environ, [*NODE, *TASK, *step, *job])


def _in_a_step(environ: Mapping[str, str]) -> bool:
    step = first_given(environ, ("SLURM_STEP_ID", "SLURM_STEPID"))
    if step is None:
        return False
    number = environ[step].strip()
    return not re.fullmatch(r"[0-9]{10}", number) or int(number) < SPECIAL_STEPS


def _without_srun(environ: Mapping[str, str], mark: str) -> Facts:
    components = _components(environ)
    facts = gather("slurm", environ, [*NODE, *JOB])
    problem = "is Slurm's, but `srun` did not start this command: a batch script and `salloc` run "
    problem += "on one node only"
    undecided = Fault(mark, shown(environ[mark]), problem, START_WITH_SRUN)
    return replace(facts, nodes=components or facts.nodes, undecided=undecided)


def _components(environ: Mapping[str, str]) -> int | None:
    """The nodes of all components of a heterogeneous job; None in another job."""
    size = environ.get("SLURM_HET_SIZE", "").strip()
    try:
        names = [f"SLURM_JOB_NUM_NODES_HET_GROUP_{n}" for n in range(COMPONENTS(size))]
        return sum(NODE_COUNT(environ.get(name, "").strip()) for name in names)
    except ParseError:
        return None


def _of_components(environ: Mapping[str, str]) -> Facts:
    """A step over all components is one cluster; a step over some of them is a fault."""
    everything = _components(environ)
    facts = _task(environ, [*NODE, *TASK, STEP[0], HEAD_OF_ALL_COMPONENTS])
    if facts.nodes == everything:
        return facts
    last = int(environ["SLURM_HET_SIZE"]) - 1
    problem = f"is not the {everything} nodes of all components (SLURM_HET_SIZE={last + 1})"
    remedy = (
        f"start the command with `srun --het-group=0-{last}`; for a cluster of this step alone, "
        "set EXPECTED_WORKERS on its nodes"
    )
    given = environ.get("SLURM_STEP_NUM_NODES", "").strip() or None
    facts = _task(environ, [*NODE, *TASK, *STEP])
    fault = Fault("SLURM_STEP_NUM_NODES", given and shown(given), problem, remedy)
    return replace(facts, faults={"nodes": fault, **facts.faults})


def _task(environ: Mapping[str, str], sources: Sequence[Source]) -> Facts:
    """The facts of a task. Its rank is 0 if and only if the list of nodes begins with its node."""
    undecided = not_decided("slurm", environ, "SLURM_STEP_ID", PASS_THE_RANK)
    facts = replace(gather("slurm", environ, sources, REMEDIES), undecided=undecided)
    named, own = facts.head_address, facts.node_name
    if facts.rank is None or named is None or own is None or (facts.rank == 0) == (named == own):
        return facts
    verb = "is not" if facts.rank == 0 else "is"
    problem = f"contradicts {facts.sources['head_address']}, whose first node {named} {verb} "
    problem += f"this node (SLURMD_NODENAME={own})"
    remedy = "set ROLLCALL_HEAD_ADDRESS to the node with SLURM_NODEID=0"
    fault = Fault("SLURM_NODEID", str(facts.rank), problem, remedy)
    return replace(facts, faults={"head_address": fault, **facts.faults})
