"""Pure: the words of a job → the program that runs once for each rank.

The words may be those of a launcher, such as torchrun, deepspeed or accelerate launch. Its flags
of nodes, meeting point, restarts and logs are left out, because the roll call and the supervisor
decide that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contract.launch import front_ends
from contract.launch.command_lines import ACCELERATE_MODULE, script_place, variables_before
from contract.launch.command_lines import PYTHON as PYTHON_PROGRAM
from contract.launch.programs import Program

PYTHON = "python"
"""In a program's words: the interpreter of the node."""
NAMES_OF_MODULES = {
    "torch.distributed.run": "torchrun",
    ACCELERATE_MODULE: "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
}
"""A launcher's module → its program."""

PROCESSES, BARE, DROPPED, REFUSED, KEPT = "processes", "bare", "dropped", "refused", "kept"
"""What a launcher's flag is: the number of processes; without a value, and understood; without an
effect here; refused; passed on to the launcher."""


class LaunchError(Exception):
    """The words cannot be launched; `faults` has a sentence for each reason."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What runs on the nodes."""

    program: tuple[str, ...]
    """The program of each rank; for accelerate's launcher, the script."""
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    per_node: int | None = None
    """Processes of a node; None: one for each GPU, or one on a node without GPUs."""
    local_rank: bool = False
    """Each rank gets `--local_rank=N` before its arguments, as from DeepSpeed's launcher."""
    python: str = PYTHON
    """What runs the script, and accelerate's launcher."""
    accelerate: tuple[str, ...] | None = None
    """Flags of `accelerate launch`, which starts a node's ranks; None: Rollcall starts them."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    bare: str
    """Flags without a value that say how the script is run."""
    processes: str
    dropped: str
    """Flags with a value that have no effect here."""
    dropped_bare: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Flags that would change what runs, and what to do instead."""
    refused_bare: str = ""
    kept_bare: str | None = None
    """Flags without a value that are passed on; None: a flag that is not named here is refused."""

    def kind(self, flag: str) -> str:
        for kind, names in (
            (BARE, self.bare),
            (PROCESSES, self.processes),
            (DROPPED, f"{self.dropped} {self.dropped_bare}"),
        ):
            if flag in names.split():
                return kind
        return REFUSED if flag in self.refused or self.kept_bare is None else KEPT

    def has_value(self, flag: str) -> bool:
        bare = (self.bare, self.dropped_bare, self.refused_bare, self.kept_bare or "")
        return flag not in " ".join(bare).split()


TORCHRUN = _Launcher(
    "torchrun",
    bare="-m --module --no-python --run-path",
    processes="--nproc-per-node",
    dropped="--nnodes --node-rank --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf"
    " --master-addr --master-port --local-addr --max-restarts --monitor-interval --start-method"
    " --event-log-handler --role --log-dir -r --redirects -t --tee --local-ranks-filter"
    " --duplicate-stdout-filters --duplicate-stderr-filters --logs-specs --numa-binding"
    " --signals-to-handle --shutdown-timeout",
    dropped_bare="--standalone",
    refused={"--virtual-local-rank": "read LOCAL_RANK in the script"},
    refused_bare="--virtual-local-rank",
)
DEEPSPEED = _Launcher(
    "deepspeed",
    bare="--module --no-python --no-local-rank",
    processes="--num-gpus --num-accelerators",
    dropped="-H --hostfile --num-nodes --master-port --master-addr --node-rank --launcher"
    " --launcher-args --enable-each-rank-log --bind-core-list --ssh-port --venv-script --log-level",
    dropped_bare="--no-ssh --no-ssh-check --force-multi --save-pid --bind-cores-to-rank -q --quiet",
    refused={
        "-i": "set CUDA_VISIBLE_DEVICES on the node",
        "--include": "set CUDA_VISIBLE_DEVICES on the node",
        "-e": "set CUDA_VISIBLE_DEVICES on the node",
        "--exclude": "set CUDA_VISIBLE_DEVICES on the node",
        "--autotuning": "run DeepSpeed's autotuning by itself",
    },
)
TUNE = replace(TORCHRUN, name="tune run")
"""Each process runs `tune run RECIPE`: without flags of torchrun, that starts no others."""
COMPOSER = _Launcher(
    "composer",
    bare="-m --module-mode -c --command-mode",
    processes="-n --nproc",
    dropped="--stdout --stderr --world-size --base-rank --node-rank --master-addr --master-port",
    dropped_bare="-v --verbose",
)
COLOSSALAI = _Launcher(
    "colossalai run",
    bare="-m",
    processes="--nproc-per-node",
    dropped="-H -host --host --hostfile --num-nodes --master-port --master-addr --ssh-port"
    " --extra-launch-args",
    refused={
        "--include": "set CUDA_VISIBLE_DEVICES on the node",
        "--exclude": "set CUDA_VISIBLE_DEVICES on the node",
    },
)
AS_MODULE = frozenset({"-m", "--module", "--module-mode"})
WITHOUT_PYTHON = frozenset({"--no-python", "-c", "--command-mode"})
"""Flags that say how the script of a launcher is run."""
ACCELERATE = _Launcher(
    "accelerate launch",
    bare="",
    processes="--num-processes",
    dropped="--num-machines --machine-rank --main-process-ip --main-process-port --rdzv-backend"
    " --rdzv-conf --max-restarts --monitor-interval -t --tee --log-dir --role --deepspeed-hostfile"
    " --deepspeed-exclusion-filter --deepspeed-inclusion-filter --deepspeed-multinode-launcher"
    " --mpirun-hostfile",
    dropped_bare="--same-network --quiet -q",  # quiet, it hides how its rank has ended
    refused={"--tpu": "TPUs are not supported", "--tpu-cluster": "TPUs are not supported"},
    refused_bare="--tpu --tpu-cluster",
    kept_bare="-h --help --cpu --multi-gpu --enable-cpu-affinity --dynamo-use-fullgraph"
    " --dynamo-use-dynamic --dynamo-use-regional-compilation --use-deepspeed --use-fsdp"
    " --use-parallelism-config --use-megatron-lm -m --module --no-python --no-tpu-cluster"
    " --tpu-use-sudo --downcast-bf16 --fp8-use-autocast-during-eval --debug",
)


def starts_all_nodes(words: Sequence[str]) -> bool:
    """Return whether the words are those of a launcher that this module reads."""
    return _launcher(*variables_before(words)) is not None


def python_of(words: Sequence[str]) -> str:
    """Return the path of the Python that a launcher's words have; PYTHON if they have none.

    It is the one beside a launcher with a path, as /opt/x/bin/torchrun has.
    """
    variables, command = variables_before(words)
    directory, slash, name = (command[0] if command else "").rpartition("/")
    if not slash or _launcher(variables, command) is None:
        return PYTHON
    return command[0] if PYTHON_PROGRAM.fullmatch(name) else f"{directory}/{PYTHON}"


def parse(words: Sequence[str]) -> Launch:
    """Return what the words launch. Raises LaunchError."""
    variables, command = variables_before(words)
    if not command:
        raise LaunchError("the job has no program: give a script, such as train.py")
    if (of := _module(command)) and of[0] == "torch.distributed.launch":
        raise LaunchError("torch.distributed.launch is deprecated: give torchrun instead")
    found = _launcher(variables, command)
    if found is None:
        return _plain(_program(command), variables)
    python = python_of(words)
    launcher, rest = found
    flags, script = _flags(launcher, rest)
    if not script:
        raise LaunchError(f"{launcher.name} has no script: give one after its flags")
    if launcher is ACCELERATE:
        return replace(_accelerate(flags, script, variables), python=python)
    names = {name for name, _, _ in flags}
    program: tuple[str, ...] = (python, script[0])
    if launcher is TUNE:
        program = (*command[:2], script[0])
    elif names & AS_MODULE:
        program = (python, "-m", script[0])
    elif names & WITHOUT_PYTHON:
        program = (script[0],)
    per_node = _per_node(launcher, flags)
    if per_node is None and front_ends.as_module(variables, command):
        given = variables.get(front_ends.PER_NODE)
        per_node = _count(front_ends.PER_NODE, given) if given else None
    return Launch(
        program=program,
        arguments=tuple(script[1:]),
        variables=variables,
        per_node=per_node,
        local_rank=launcher is DEEPSPEED and "--no-local-rank" not in names,
        python=python,
        warnings=_warnings(launcher, flags),
    )


def telling_steps(launch: Launch) -> Launch:
    """Return the launch, with its script run by `trainer.cluster.launch.with_steps`.

    Raises LaunchError if the script is none of Python's.
    """
    by = str(Program.WITH_STEPS)
    if launch.accelerate is None:
        if not PYTHON_PROGRAM.fullmatch(launch.program[0]):
            raise LaunchError(
                f"{launch.program[0]} is not a Python script: give one, as in train.py"
            )
        words = list(launch.program[1:])
        first = script_place(words)
        if first == len(words) or "-c" in words[:first]:
            raise LaunchError("Python has no script here: give one, as in python train.py")
        program = (launch.program[0], *words[:first], "-m", by, *words[first:])
        return replace(launch, program=program)
    modules = {"-m", "--module"}
    if "--no-python" in launch.accelerate or "--no_python" in launch.accelerate:
        raise LaunchError("accelerate launch --no_python runs no Python script: leave it out")
    flags = tuple(word for word in launch.accelerate if word not in modules)
    script = ("-m", *launch.program) if len(flags) < len(launch.accelerate) else launch.program
    return replace(
        launch, program=(by,), arguments=(*script, *launch.arguments), accelerate=(*flags, "-m")
    )


Flag = tuple[str, str | None, tuple[str, ...]]
"""The flag's name with hyphens, its value, and its words as they were typed."""


def _launcher(
    variables: Mapping[str, str], command: Sequence[str]
) -> tuple[_Launcher, list[str]] | None:
    """Return the launcher and the words after its name; None if the words are a program."""
    if of_module := front_ends.as_module(variables, command):
        return TORCHRUN, of_module
    if front_ends.is_tune(command):
        return TUNE, list(command[2:])
    if found := _module(command):
        module, words = found
        command = [NAMES_OF_MODULES.get(module, PYTHON), *words]
    names = [command[0].rsplit("/", 1)[-1], *command[1:2]] if command else []
    match names:
        case ["torchrun", *_]:
            return TORCHRUN, list(command[1:])
        case ["deepspeed", *_]:
            return DEEPSPEED, list(command[1:])
        case ["accelerate", "launch", *_]:
            return ACCELERATE, list(command[2:])
        case ["composer", *_]:
            return COMPOSER, list(command[1:])
        case ["colossalai", "run", *_]:
            return COLOSSALAI, list(command[2:])
        case ["accelerate-launch", *_]:
            return ACCELERATE, list(command[1:])
    return None


def _module(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the module of `python -u -m MODULE …` and the words after it; None without one."""
    if not command or not PYTHON_PROGRAM.fullmatch(command[0]):
        return None
    rest = list(command[1 + script_place(command[1:]) :])
    return (rest[1], rest[2:]) if rest[:1] == ["-m"] and len(rest) > 1 else None


def _program(command: Sequence[str]) -> tuple[str, ...]:
    first = command[0]
    if first.endswith(".py") or first == "-m":
        return (PYTHON, *command)
    return (PYTHON, *command[1:]) if first == "python3" else tuple(command)


def _plain(program: tuple[str, ...], variables: Mapping[str, str]) -> Launch:
    python = program[0] if PYTHON_PROGRAM.fullmatch(program[0]) else PYTHON
    return Launch(program=program, variables=variables, python=python)


def _flags(launcher: _Launcher, words: Sequence[str]) -> tuple[list[Flag], list[str]]:
    """Return the launcher's flags, and the script with its arguments. Raises LaunchError."""
    flags: list[Flag] = []
    faults = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        typed, equals, value = word.partition("=")
        name = typed.replace("_", "-")
        kind = launcher.kind(name)
        if kind is REFUSED:
            remedy = launcher.refused.get(
                name, f"{launcher.name} has no such flag, as far as known"
            )
            faults.append(f"{launcher.name} {typed} cannot be used here: {remedy}")
        if equals or not launcher.has_value(name):
            flags.append((name, value if equals else None, (word,)))
        elif rest:
            flags.append((name, rest[0], (word, rest.pop(0))))
        else:
            faults.append(f"{launcher.name} {typed} has no value: give one")
    if faults:
        raise LaunchError(*faults)
    return flags, rest


def _per_node(launcher: _Launcher, flags: Sequence[Flag]) -> int | None:
    """Return the number of processes that the flags give a node. Raises LaunchError."""
    found = [(name, value) for name, value, _ in flags if launcher.kind(name) is PROCESSES]
    if not found:
        return None
    name, value = found[-1]
    if launcher is TORCHRUN and value in ("gpu", "auto"):
        return None
    return _count(f"{launcher.name} {name}", value)


def _count(name: str, value: str | None) -> int:
    if value is None or not re.fullmatch(r"[0-9]{1,4}", value) or int(value) < 1:
        raise LaunchError(f"{name} {value} is not a number of processes: give 1, 2 or more")
    return int(value)


def _warnings(launcher: _Launcher, flags: Sequence[Flag]) -> tuple[str, ...]:
    dropped = [words for name, _, words in flags if launcher.kind(name) is DROPPED]
    if not dropped:
        return ()
    named = ", ".join(" ".join(words) for words in dropped)
    them = "it" if len(dropped) == 1 else "them"
    why = f"Rollcall's roll call, restart budget and logs replace {them}"
    return (f"{launcher.name} {named}: no effect here, {why}",)


def _accelerate(
    flags: Sequence[Flag], script: Sequence[str], variables: Mapping[str, str]
) -> Launch:
    values = {name: value for name, value, _ in flags}
    kept = [words for name, _, words in flags if ACCELERATE.kind(name) is KEPT]
    per_node = None
    if "--num-processes" in values:
        total = _count("accelerate launch --num_processes", values["--num-processes"])
        machines = _count("accelerate launch --num_machines", values.get("--num-machines", "1"))
        if total % machines:
            raise LaunchError(
                f"accelerate launch --num_processes {total} is not a multiple of --num_machines "
                f"{machines}: each machine has the same number of processes"
            )
        per_node = total // machines
    return Launch(
        program=(script[0],),
        arguments=tuple(script[1:]),
        variables=variables,
        per_node=per_node,
        accelerate=tuple(word for words in kept for word in words),
        warnings=_warnings(ACCELERATE, flags),
    )
