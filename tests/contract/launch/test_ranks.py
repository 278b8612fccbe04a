"""Which processes a launch has on which nodes."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest

from contract.launch import ranks
from contract.launch.launcher_flags import parse
from contract.launch.ranks import Meeting, RankProcess
from contract.resources import NodeResources

LAUNCHER = "accelerate.commands.launch"
MEETING = Meeting("10.0.0.1", 29400, "rollcall-2")


def nodes(*gpus: int) -> list[NodeResources]:
    return [NodeResources(name=f"node-{n}", gpus=count) for n, count in enumerate(gpus)]


def processes(line: str, *gpus: int, threads: str | None = None) -> list[list[RankProcess]]:
    return ranks.processes(parse(shlex.split(line)), nodes(*gpus), MEETING, threads)


def numbers(found: list[list[RankProcess]], name: str) -> list[list[str]]:
    return [[process.env[name] for process in node] for node in found]


def test_each_gpu_has_a_rank_also_if_nodes_differ() -> None:
    found = processes("train.py", 2, 1)
    assert numbers(found, "RANK") == [["0", "1"], ["2"]]
    assert numbers(found, "LOCAL_RANK") == [["0", "1"], ["0"]]
    assert numbers(found, "GROUP_RANK") == [["0", "0"], ["1"]]
    assert numbers(found, "LOCAL_WORLD_SIZE") == [["2", "2"], ["1"]]
    for process in (process for node in found for process in node):
        assert process.env["WORLD_SIZE"] == "3"
        assert process.env["GROUP_WORLD_SIZE"] == "2"
        assert (process.env["MASTER_ADDR"], process.env["MASTER_PORT"]) == ("10.0.0.1", "29400")
    assert [process.log for process in found[0]] == ["rank-0", "rank-1"]


def test_a_node_without_gpus_has_one_rank_or_as_many_as_the_job_says() -> None:
    assert numbers(processes("train.py", 0, 0), "RANK") == [["0"], ["1"]]
    found = processes("torchrun --nproc-per-node 2 train.py", 0, 0)
    assert numbers(found, "RANK") == [["0", "1"], ["2", "3"]]


def test_threads_are_as_with_torchrun() -> None:
    (one,), (two, _) = processes("train.py", 1)[0], processes("train.py", 2)[0]
    assert "OMP_NUM_THREADS" not in one.env
    assert two.env["OMP_NUM_THREADS"] == "1"
    ((given, _),) = processes("train.py", 2, threads="6")
    assert given.env["OMP_NUM_THREADS"] == "6"


def test_only_nodes_with_gpus_run_ranks_if_there_are_any() -> None:
    assert [node.name for node in ranks.members(nodes(0, 8, 8))] == ["node-1", "node-2"]
    assert len(ranks.members(nodes(0, 0))) == 2


def test_deepspeeds_local_rank_stands_before_the_scripts_arguments() -> None:
    ((_, second),) = processes("deepspeed train.py --epochs 3", 2)
    assert second.argv == ("python", "train.py", "--local_rank=1", "--epochs", "3")


def test_accelerate_starts_a_nodes_ranks_and_knows_the_machine() -> None:
    first, second = processes("accelerate launch --config_file a.yaml train.py --lr 1", 8, 8)
    (process,) = second
    assert process.name == "ranks 8 to 15"
    words = list(process.argv)
    assert words[:6] == ["python", *ranks.ACCELERATE, "--config_file", "a.yaml"]
    assert words[-3:] == ["train.py", "--lr", "1"]
    given = dict(pairwise(words))
    assert given["--num_machines"] == "2"
    assert given["--machine_rank"] == "1"
    assert given["--num_processes"] == "16"
    assert given["--main_process_ip"] == "10.0.0.1"
    assert given["--main_process_port"] == "29400"
    assert "--multi_gpu" not in words, "the file says how"
    assert "RANK" not in process.env
    ((alone,),) = processes("accelerate launch train.py", 8)
    assert "--multi_gpu" in alone.argv
    assert first[0].name == "ranks 0 to 7"


def test_accelerates_launcher_leaves_its_ranks_their_time_to_save() -> None:
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    ((process,),) = processes("accelerate launch train.py", 8)
    assert int(process.env[name]) == 86400
    ((own,),) = processes(f"{name}=7 accelerate launch train.py", 8)
    assert own.env[name] == "7"
    ((rank,),) = processes("torchrun train.py", 1)
    assert name not in rank.env


def test_accelerate_on_cpus_runs_once_for_each_rank() -> None:
    (first,), (second,) = processes("accelerate launch --cpu train.py", 0, 0)
    assert (first.env["RANK"], second.env["RANK"]) == ("0", "1")
    assert second.argv == ("python", *ranks.ACCELERATE, "--cpu", "train.py")


@pytest.mark.parametrize("flags", ["", "--cpu "])
@pytest.mark.parametrize("by", ["/opt/x/bin/accelerate launch", f"/opt/x/bin/python -m {LAUNCHER}"])
def test_accelerate_with_a_path_runs_with_the_python_beside_it(by: str, flags: str) -> None:
    ((process,),) = processes(f"{by} {flags}train.py", 0)
    assert process.argv[: len(ranks.ACCELERATE) + 1] == ("/opt/x/bin/python", *ranks.ACCELERATE)


def test_more_processes_than_gpus_cannot_be_placed() -> None:
    launch = parse(["torchrun", "--nproc-per-node", "8", "train.py"])
    assert ranks.lacking(launch, nodes(0, 8, 4)) == [
        "node-2 has 4 GPUs, and the job starts 8 processes on each node"
    ]
    assert ranks.lacking(launch, nodes(0, 0)) == [], "on CPUs there may be any number"


def test_accelerate_needs_equal_nodes() -> None:
    launch = parse(["accelerate", "launch", "train.py"])
    (fault,) = ranks.lacking(launch, nodes(8, 4))
    assert "node-0 8, node-1 4" in fault
    assert ranks.lacking(launch, nodes(8, 8)) == []
    same = parse(["accelerate", "launch", "--num_processes", "4", "train.py"])
    assert ranks.lacking(same, nodes(8, 4)) == []
