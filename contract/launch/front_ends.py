"""Pure: other projects' commands that start the processes of their own node alone.

Of some, what each process runs is known: then it runs on every GPU of all nodes, as from torchrun.
Of the others, a sentence says what does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath

Words = tuple[str, ...]

PER_NODE = "NPROC_PER_NODE"
"""The variable with which LLaMA-Factory and ms-swift are told the processes of a node."""
MODULES: Mapping[Words, str] = {
    ("llamafactory-cli", "train"): "llamafactory.launcher",
    ("axolotl", "train"): "axolotl.cli.train",
    **{("swift", name): f"swift.cli.{name}" for name in ("pt", "sft", "rlhf")},
}
"""Program and command → the module that each of its processes runs with the same arguments."""
SPREADS = ("NNODES", PER_NODE)
"""Without one of these, ms-swift is one process, over whose GPUs a model may be spread."""
AXOLOTLS_VALUES, AXOLOTLS_SWITCHES = ("--launcher",), ("--accelerate", "--no-accelerate")
"""Flags of axolotl's command that say how it starts processes; those of the launcher follow --."""
BY_TORCHRUN = "`torchrun train.py …` runs a script on every GPU of all nodes"
ALONE: Mapping[Words, str] = {
    ("tune", "run"): "with a flag of torchrun, as in `tune run --nproc_per_node 8 RECIPE`, it runs "
    "on every GPU of all nodes",
    **{
        ("swift", name): f"`{PER_NODE}=8 swift {name} …` runs on every GPU of all nodes"
        for name in ("pt", "sft", "rlhf")
    },
    **{
        (name, "run"): f"{BY_TORCHRUN}; give their number to Fabric or Trainer as num_nodes"
        for name in ("lightning", "fabric")
    },
    **dict.fromkeys([("mpirun",), ("mpiexec",), ("horovodrun",), ("srun",)], BY_TORCHRUN),
}
"""Program and command that start nothing on the other nodes of a cluster → what does."""
NAMES = ("composer", "colossalai", *dict.fromkeys(name for name, *_ in (*MODULES, *ALONE)))
"""Programs of which a command may start processes."""


def is_tune(command: Sequence[str]) -> bool:
    """Return whether torchtune starts a recipe with flags of torchrun: else it is one process."""
    return _begin(command, 2) == ("tune", "run") and command[2:3] != [] and command[2][:1] == "-"


def as_module(variables: Mapping[str, str], command: Sequence[str]) -> list[str] | None:
    """Return `-m MODULE` and the arguments of each process; None if the command is not known."""
    begin = _begin(command, 2)
    module = MODULES.get(begin)
    if module is None or (begin[0] == "swift" and not set(SPREADS) & set(variables)):
        return None
    arguments = list(command[2:])
    if begin[0] == "axolotl":
        arguments = _without_launcher(arguments)
    return ["-m", module, *arguments]


def alone(variables: Mapping[str, str], command: Sequence[str]) -> str:
    """Return what runs on all nodes in place of a command that starts nothing there; else ""."""
    if as_module(variables, command) or is_tune(command):
        return ""
    return ALONE.get(_begin(command, 2)) or ALONE.get(_begin(command, 1), "")


def _begin(command: Sequence[str], words: int) -> Words:
    """Return the first words; the program without its directory."""
    return (*(PurePath(one).name for one in command[:1]), *command[1:words])


def _without_launcher(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = list(takewhile(lambda word: word != "--", arguments))
    while rest:
        word = rest.pop(0)
        if word in AXOLOTLS_VALUES:
            del rest[:1]
        elif word not in AXOLOTLS_SWITCHES and word.partition("=")[0] not in AXOLOTLS_VALUES:
            kept.append(word)
    return kept
