"""What a job's words launch, as users type them for other launchers."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from contract.launch import front_ends
from contract.launch.command_lines import variables_before
from contract.launch.launcher_flags import (
    ACCELERATE,
    DEEPSPEED,
    TORCHRUN,
    Launch,
    LaunchError,
    parse,
    starts_all_nodes,
    telling_steps,
)

RUN = "torch.distributed.run"
FACTORY, AXOLOTL = "llamafactory.launcher", "axolotl.cli.train"


def launched(line: str) -> Launch:
    return parse(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("train.py --lr 1", ("python", "train.py", "--lr", "1")),
        ("-m trl.scripts.sft --lr 1", ("python", "-m", "trl.scripts.sft", "--lr", "1")),
        ("python -u train.py", ("python", "-u", "train.py")),
        ("python3 train.py", ("python", "train.py")),
        ("python -m mod -m torch.distributed.run", ("python", "-m", "mod", "-m", RUN)),
        ("/usr/bin/python3 train.py", ("/usr/bin/python3", "train.py")),
        ("bash run.sh", ("bash", "run.sh")),
    ],
)
def test_a_script_or_a_program_is_run_as_it_is(line: str, program: tuple[str, ...]) -> None:
    found = launched(line)
    assert (found.program, found.arguments, found.per_node) == (program, (), None)
    assert not found.local_rank
    assert found.accelerate is None


@pytest.mark.parametrize(
    ("line", "program", "per_node"),
    [
        ("composer -n 8 train.py --lr 1", "python train.py", 8),
        ("composer --world_size 16 --node_rank 0 -m mod", "python -m mod", None),
        ("composer -c run", "run", None),
        ("colossalai run --nproc_per_node 4 --hostfile hosts train.py", "python train.py", 4),
        ("colossalai run --host a,b -m mod", "python -m mod", None),
        ("tune run --nnodes 2 --nproc_per_node 8 full --config c", "tune run full", 8),
        ("/opt/x/bin/tune run --nproc_per_node 8 full", "/opt/x/bin/tune run full", 8),
        ("FORCE_TORCHRUN=1 llamafactory-cli train a.yaml", f"python -m {FACTORY}", None),
        ("NPROC_PER_NODE=4 NNODES=2 llamafactory-cli train a.yaml", f"python -m {FACTORY}", 4),
        ("/opt/x/bin/llamafactory-cli train a", f"/opt/x/bin/python -m {FACTORY}", None),
        ("axolotl train c.yml --launcher torchrun -- --nnodes 2", f"python -m {AXOLOTL}", None),
        ("axolotl train c.yml --no-accelerate --lr 1", f"python -m {AXOLOTL}", None),
        ("NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo", "python -m swift.cli.rlhf", 8),
        ("NNODES=2 swift sft --model m", "python -m swift.cli.sft", None),
    ],
)
def test_what_starts_processes_of_its_own_runs_once_for_each_rank(
    line: str, program: str, per_node: int | None
) -> None:
    found = launched(line)
    assert starts_all_nodes(shlex.split(line))
    assert (found.program, found.per_node) == (tuple(program.split()), per_node)
    assert not {"--", "torchrun", "--no-accelerate", "--nnodes"} & set(found.arguments)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tune run lora_finetune_single_device --config c", "tune run --nproc_per_node 8 RECIPE"),
        ("swift sft --model m", "NPROC_PER_NODE=8 swift sft"),
        ("fabric run --num-nodes 2 train.py", "torchrun train.py"),
        ("mpirun -np 16 python train.py", "torchrun train.py"),
        ("/usr/bin/srun python train.py", "torchrun train.py"),
        ("swift infer --model m", ""),
        ("tune ls", ""),
        ("tune run --nproc_per_node 8 full", ""),
        ("llamafactory-cli train a.yaml", ""),
        ("llamafactory-cli chat a.yaml", ""),
        ("python train.py", ""),
        ("", ""),
    ],
)
def test_what_starts_nothing_on_other_nodes_has_a_remedy(line: str, says: str) -> None:
    variables, command = variables_before(shlex.split(line))
    instead = front_ends.alone(variables, command)
    assert says in instead
    assert bool(instead) == bool(says)
    assert not (says and starts_all_nodes(command))


def test_torchruns_script_and_processes_stay_and_what_the_roll_says_goes() -> None:
    found = launched(
        "OMP_NUM_THREADS=4 NCCL_DEBUG=INFO torchrun --nnodes=2 --nproc_per_node 8 --rdzv-backend "
        "c10d --rdzv_endpoint $HOST:29400 --standalone -m mod --nnodes 3"
    )
    assert found.program == ("python", "-m", "mod")
    assert found.arguments == ("--nnodes", "3"), "the script's own flags are not the launcher's"
    assert found.per_node == 8
    assert found.variables == {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO"}
    (warning,) = found.warnings
    assert warning.startswith(
        "torchrun --nnodes=2, --rdzv-backend c10d, --rdzv_endpoint $HOST:29400, --standalone: no"
    )


@pytest.mark.parametrize(
    "line",
    [
        "torchrun",
        "python -m torch.distributed.run",
        "/opt/x/bin/python3.11 -u -m torch.distributed.run",
        "python3 -W ignore -uB -m torch.distributed.run",
    ],
)
def test_torchrun_has_two_names(line: str) -> None:
    found = launched(f"{line} --nproc-per-node gpu --no-python ./train.sh a")
    assert (found.program, found.arguments, found.per_node) == (("./train.sh",), ("a",), None)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("A=b /opt/x/bin/torchrun", ("/opt/x/bin/python", "train.py")),
        ("./env/bin/torchrun -m", ("./env/bin/python", "-m", "train.py")),
        ("/opt/x/bin/deepspeed", ("/opt/x/bin/python", "train.py")),
        (
            "/opt/x/bin/python3.11 -u -m torch.distributed.run",
            ("/opt/x/bin/python3.11", "train.py"),
        ),
        ("python3.11 -m torch.distributed.run", ("python", "train.py")),
        ("/opt/x/bin/accelerate launch", ("train.py",)),
        ("/opt/x/bin/accelerate-launch", ("train.py",)),
    ],
)
def test_a_launcher_with_a_path_runs_with_the_python_beside_it(
    line: str, program: tuple[str, ...]
) -> None:
    found = launched(f"{line} train.py")
    assert found.program == program
    assert found.python == (program[0] if len(program) > 1 else "/opt/x/bin/python")
    assert launched(f"{line.replace('/opt/x/bin/', '')} train.py").python != "/opt/x/bin/python"


def test_deepspeeds_script_gets_its_local_rank() -> None:
    found = launched("deepspeed --num_gpus 4 --hostfile h train.py --deepspeed ds.json")
    assert found.program == ("python", "train.py")
    assert found.arguments == ("--deepspeed", "ds.json")
    assert (found.per_node, found.local_rank) == (4, True)
    assert "--hostfile h" in found.warnings[0]
    assert not launched("deepspeed --no_local_rank train.py").local_rank


@pytest.mark.parametrize(
    "line", ["accelerate-launch", "python -m accelerate.commands.launch --quiet"]
)
def test_accelerates_launcher_has_several_names(line: str) -> None:
    found = launched(f"{line} --num_processes 2 train.py")
    assert found.accelerate is not None
    assert (found.program, found.per_node) == (("train.py",), 2)


def test_accelerates_flags_stay_with_its_launcher() -> None:
    found = launched(
        "accelerate launch --config_file fsdp.yaml --num_machines 2 --machine_rank 0 "
        "--num_processes 16 --mixed_precision=bf16 --main_process_ip 10.0.0.1 train.py --lr 1"
    )
    assert found.accelerate == ("--config_file", "fsdp.yaml", "--mixed_precision=bf16")
    assert (found.program, found.arguments, found.per_node) == (("train.py",), ("--lr", "1"), 8)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "the job has no program"),
        ("A=b", "the job has no program"),
        ("torchrun --nproc-per-node 8", "torchrun has no script"),
        ("torchrun --nproc-per-node cpu t.py", "is not a number of processes: give 1, 2 or more"),
        ("torchrun --nproc-per-node 0 t.py", "is not a number of processes"),
        ("torchrun --virtual-local-rank t.py", "read LOCAL_RANK in the script"),
        ("torchrun --no-such-flag 1 t.py", "torchrun --no-such-flag cannot be used here"),
        ("torchrun --nnodes", "torchrun --nnodes has no value"),
        ("python -m torch.distributed.launch t.py", "deprecated: give torchrun"),
        ("deepspeed --include localhost:0 t.py", "set CUDA_VISIBLE_DEVICES on the node"),
        ("accelerate launch --num_processes 3 --num_machines 2 t.py", "is not a multiple of"),
    ],
)
def test_words_that_cannot_be_launched_are_refused_with_the_reason(line: str, fault: str) -> None:
    with pytest.raises(LaunchError, match=fault):
        launched(line)


class _FoundError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def deepspeeds_parser(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    from deepspeed.launcher import runner

    def caught(parser: argparse.ArgumentParser, args: object = None) -> None:
        raise _FoundError(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", caught)
    with pytest.raises(_FoundError) as found:
        runner.parse_args([])
    return found.value.parser


def flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, bool]]:
    """Each flag with hyphens, and whether it has a value."""
    for action in parser._actions:
        for name in action.option_strings:
            yield name.replace("_", "-"), action.nargs != 0


def test_the_tables_have_the_flags_of_the_installed_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    parsers = (
        (TORCHRUN, get_args_parser()),
        (ACCELERATE, launch_command_parser()),
        (DEEPSPEED, deepspeeds_parser(monkeypatch)),
    )
    for launcher, parser in parsers:
        for name, has_value in flags(parser):
            if name not in ("-h", "--help"):
                known = launcher.kind(name) != "refused" or name in launcher.refused
                assert known, f"{launcher.name} {name}"
                assert launcher.has_value(name) == has_value, f"{launcher.name} {name}"


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("train.py --lr 1", "python -m trainer.cluster.launch.with_steps train.py --lr 1"),
        ("python -u train.py", "python -u -m trainer.cluster.launch.with_steps train.py"),
        ("python -W ignore t.py", "python -W ignore -m trainer.cluster.launch.with_steps t.py"),
        ("python3 -X dev -m mod", "python -X dev -m trainer.cluster.launch.with_steps -m mod"),
        ("torchrun -m mod", "python -m trainer.cluster.launch.with_steps -m mod"),
        ("deepspeed train.py", "python -m trainer.cluster.launch.with_steps train.py"),
        ("accelerate launch train.py", "trainer.cluster.launch.with_steps"),
    ],
)
def test_a_script_is_run_by_the_module_that_tells_its_steps(line: str, program: str) -> None:
    assert telling_steps(launched(line)).program == tuple(program.split())


@pytest.mark.parametrize(
    ("line", "arguments"), [("train.py", ("train.py", "--a")), ("-m mod", ("-m", "mod", "--a"))]
)
def test_accelerate_runs_it_as_a_module(line: str, arguments: tuple[str, ...]) -> None:
    found = telling_steps(launched(f"accelerate launch --mixed_precision bf16 {line} --a"))
    assert found.accelerate == ("--mixed_precision", "bf16", "-m")
    assert found.arguments == arguments


@pytest.mark.parametrize(
    "line",
    [
        "bash x.sh",
        "python -c 1",
        "python -u",
        "accelerate launch --no_python x",
        "torchrun --no-python x",
    ],
)
def test_what_is_no_python_script_tells_no_steps(line: str) -> None:
    with pytest.raises(LaunchError, match="Python"):
        telling_steps(launched(line))
