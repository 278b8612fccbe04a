"""Pure: OpenRLHF's command line as a guide has it → program and flags, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from contract.launch.command_lines import (
    OPENRLHF_MODULE,
    OPENRLHF_ON_RANKS,
    PYTHON,
    openrlhf_program,
    variables_before,
)
from contract.launch.launcher_flags import python_of, starts_all_nodes
from entrypoint.job.recipes.base import MemoryAdvice
from entrypoint.job.recipes.openrlhf import flags as openrlhf_flags
from entrypoint.job.recipes.openrlhf.flags import Flag, flags_in
from entrypoint.job.recipes.typed_command import whole_number

PPO = "openrlhf.cli.train_ppo_ray"
DIRECTORY, OUTPUT, EVERY = "ckpt.path", "ckpt.output_dir", "ckpt.save_steps"
LOAD, NO_STATE, UNIVERSAL = "ckpt.load_enable", "ckpt.disable_ds", "ds.use_universal_ckpt"
TEMPLATE = "data.tokenizer_chat_template"
MOST, WANDB = "ckpt.max_num", "logger.wandb.key"


@dataclass(frozen=True, slots=True)
class OpenRLHFCommand:
    interpreter: str | None
    """A Python as it was typed; None if none was, or if a launcher is."""
    options: tuple[str, ...]
    """Of the interpreter, such as -u."""
    launcher: tuple[str, ...]
    """The words of torchrun, deepspeed or `accelerate launch`, if one was typed."""
    program: tuple[str, ...]
    """`-m MODULE`, or a script."""
    flags: tuple[Flag, ...]
    variables: dict[str, str] = field(default_factory=dict)
    strange: tuple[str, ...] = ()
    """Words that belong to nothing."""

    @property
    def python(self) -> str | None:
        """A Python as it was typed, or the one beside a launcher with a path; else None."""
        beside = python_of(self.launcher)
        return self.interpreter or (beside if "/" in beside else None)

    @property
    def module(self) -> str:
        """OpenRLHF's module, also of one that is started by its file; "" for another program."""
        name = openrlhf_program(self.program[-1])
        return f"openrlhf.cli.{name}" if name else ""

    @property
    def file(self) -> str:
        """The path of a program that is started by it; "" for a module."""
        return "" if self.program[0] in ("-m", "--module") else self.program[-1]

    @property
    def on_ranks(self) -> bool:
        """Whether the program runs once for each GPU of all nodes."""
        return bool(self.launcher) or bool(OPENRLHF_ON_RANKS.fullmatch(self.program[-1]))

    @property
    def ppo(self) -> bool:
        """Whether the flags are those of train_ppo_ray."""
        return not OPENRLHF_ON_RANKS.fullmatch(self.program[-1])

    @property
    def words(self) -> tuple[str, ...]:
        """The command as words, which `parse` reads again."""
        variables = (f"{name}={value}" for name, value in self.variables.items())
        by = self.launcher or (self.interpreter or "python3", *self.options)
        return (*variables, *by, *self.program, *self.flag_words)

    @property
    def flag_words(self) -> tuple[str, ...]:
        return tuple(word for flag in self.flags for word in flag.words)

    @property
    def dotted(self) -> bool:
        """Whether the flags are spelt as in 0.11; true if there are none."""
        flat = openrlhf_flags.dotted_of(ppo=self.ppo)
        own = {*flat, *openrlhf_flags.IMPLIED, openrlhf_flags.LENGTH}
        spelt = [flag.name for flag in self.flags if flag.name in own]
        return not spelt or any("." in flag.name for flag in self.flags)

    def given(self, key: str) -> list[Flag]:
        """Return the flags that set a flag of 0.11, in either spelling."""
        table = openrlhf_flags.dotted_of(ppo=self.ppo)
        return [flag for flag in self.flags if key in table.get(flag.name, (flag.name,))]

    def has(self, key: str) -> bool:
        return bool(self.given(key))

    def value(self, key: str) -> str | None:
        """Return the value of a flag of 0.11: that of the last one, as argparse has it."""
        found = self.given(key)
        return found[-1].values[0] if found and found[-1].values else None

    def number(self, key: str) -> int | None:
        return whole_number(self.value(key))

    def having(self, *flags: Flag) -> OpenRLHFCommand:
        """Return the command with these flags of 0.11 instead of its own."""
        return self.without(*(flag.name for flag in flags)).adding(*flags)

    def adding(self, *flags: Flag) -> OpenRLHFCommand:
        return replace(self, flags=(*self.flags, *flags))

    def without(self, *keys: str) -> OpenRLHFCommand:
        away = [flag for key in keys for flag in self.given(key)]
        return replace(self, flags=tuple(flag for flag in self.flags if flag not in away))

    def spelt(self, *, dotted: bool) -> OpenRLHFCommand:
        """Return the command with all flags spelt as in 0.11, or as in older releases."""
        as_in = openrlhf_flags.upgraded if dotted else openrlhf_flags.flat
        return replace(self, flags=as_in(self.flags, ppo=self.ppo))


def parse(words: Sequence[str]) -> OpenRLHFCommand:
    """Return the command; words without a program are flags of train_ppo_ray."""
    variables, rest = variables_before(words)
    place = _place_of_program(rest)
    if place is None:
        flags, strange = flags_in(rest)
        return OpenRLHFCommand(None, (), (), ("-m", PPO), flags, variables, strange)
    before, program, rest = rest[:place], rest[place], rest[place + 1 :]
    as_module: tuple[str, ...] = ()
    if before and before[-1] in ("-m", "--module"):
        as_module = (before.pop(),)
    elif OPENRLHF_MODULE.fullmatch(program):
        as_module = ("-m",)  # which a guide leaves out
    if before[:1] == before[1:2]:
        before = before[1:]  # another guide has `torchrun torchrun`
    flags, strange = flags_in(rest)
    interpreter: str | None = None
    options: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    if before and PYTHON.fullmatch(before[0]) and not starts_all_nodes(before):
        interpreter, options = before[0], tuple(before[1:])
    else:
        launcher = tuple(before)
    return OpenRLHFCommand(
        interpreter=interpreter,
        options=options,
        launcher=launcher,
        program=(*as_module, program),
        flags=flags,
        variables=variables,
        strange=strange,
    )


def faults(command: OpenRLHFCommand) -> list[str]:
    """Return a sentence for each word that cannot work under supervision."""
    found = [f"{word} belongs to no flag: give --name value" for word in command.strange]
    if command.module and not command.module.startswith("openrlhf.cli.train_"):
        found.append(
            f"{command.program[-1]} is not a training program: give a module openrlhf.cli.train_…"
        )
    elif command.module and command.launcher and command.ppo:
        found.append(
            f"{PurePath(command.launcher[0]).name} starts {command.program[-1]} once for each "
            "GPU, and it runs once and uses Ray: leave the launcher out"
        )
    for key in (DIRECTORY, EVERY):
        values = {flag.values[:1]: flag.name for flag in command.given(key)}
        if len(values) > 1:
            named = " and ".join(f"--{flag} {''.join(value)}" for value, flag in values.items())
            found.append(f"{named} contradict each other: leave one of the two out")
    if command.has(LOAD) and command.has(NO_STATE):
        load, none = command.given(LOAD)[-1].name, command.given(NO_STATE)[-1].name
        found.append(
            f"--{load} and --{none} contradict each other: without DeepSpeed's files nothing can "
            f"be resumed; leave --{none} out"
        )
    if (every := command.value(EVERY)) is not None and (
        (number := command.number(EVERY)) is None or number == 0 or number < -1
    ):
        name = command.given(EVERY)[-1].name
        found.append(f"--{name} {every} is not a number of steps: give 1 or more, or -1 for never")
    return found


def less_memory(command: OpenRLHFCommand) -> MemoryAdvice:
    """Return the flags that lower the need for memory, spelt as the command's own."""
    lower = ["train.micro_batch_size", "data.max_len"]
    if command.ppo:
        lower = [
            "train.micro_batch_size",
            "rollout.micro_batch_size",
            "vllm.gpu_memory_utilization",
        ]
    flags = tuple(map(Flag, (*lower, "ds.zero_stage")))
    if not command.dotted:
        flags = openrlhf_flags.flat(flags, ppo=command.ppo)
    *most, last, stage = (f"--{flag.name}" for flag in flags)
    return MemoryAdvice(
        gpu=f"lower {', '.join(most)} or {last}, or raise {stage}",
        node=f"lower {most[-1]}",
    )


def _place_of_program(words: Sequence[str]) -> int | None:
    """Return the place of the module or the script; None if the words are flags alone."""
    named = (n for n, word in enumerate(words) if OPENRLHF_MODULE.fullmatch(word))
    if (place := next(named, None)) is not None:
        return place
    if not words or words[0].startswith("-"):
        return None
    return next((n for n, word in enumerate(words) if word.endswith(".py")), None)


def models(command: OpenRLHFCommand) -> dict[str, str]:
    """Map the flags that name models, as 0.11 spells them, to their values."""
    roles = ("actor", "critic", "reward", "ref", "model", "teacher")
    named = {key: command.value(key) for key in (f"{role}.model_name_or_path" for role in roles)}
    return {f"--{key}": value for key, value in named.items() if value}
