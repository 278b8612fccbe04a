"""Pure: verl's command line as a guide has it → module and overrides, and what they say.

An override is a word of Hydra's: `key=value`, `+key=value`; the last one for a key counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from contract.durations import counted
from contract.launch.command_lines import PYTHON, script_place, variables_before
from contract.options import TRUE
from entrypoint.job.job_end import JobEnd
from entrypoint.job.recipes.typed_command import TypedCommand, whole_number

MODULE = "verl.trainer.main_ppo"
MODULES = re.compile(
    r"(?:verl|recipe)(?:\.\w+)*\."
    r"(?:main_ppo(?:_v0|_sync|_format)?|main_dapo|fully_async_main|async_main_ppo)"
)
"""Trainers with the keys of main_ppo, and of their own besides."""
RELATIVES = re.compile(r"(?:\w+\.)*(?!\w*(?:generation|eval))\w*main\w*")
"""Modules of packages on verl's code, which have its keys if the command gives some of them."""
KEYS_OF_PPO = ("actor_rollout_ref.", "trainer.")
ASYNC = re.compile(r"(?:verl|recipe)(?:\.\w+)*\.(?:fully_async|one_step_off)\w*\.\w+")
"""Trainers whose rollouts have GPUs of their own: `rollout.nnodes`."""
PROGRAM_OF_SFT = re.compile(
    r"verl\.trainer\.(?:fsdp_)?sft_trainer|(?:.*/)?verl/trainer/(?:fsdp_)?sft_trainer\.py"
)
"""verl's supervised trainer, which is started on every rank."""
OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[\w./@]+)=(?P<value>.*)", re.DOTALL)
NNODES, GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
DIRECTORY, FREQUENCY, LOGGER = "trainer.default_local_dir", "trainer.save_freq", "trainer.logger"
UNQUOTED = re.compile(r"[A-Za-z0-9_/.@%+:-]+")
"""A value that Hydra's grammar reads as a text without quotes."""
NOT_A_PATH = re.compile(r"\$\{|['\",]")
"""What Hydra reads as an interpolation, as a quoted text, or as several values."""
RESUME_MODE, RESUME_PATH = "trainer.resume_mode", "trainer.resume_from_path"
AUTO, NO_RESUME, FROM_PATH = "auto", "disable", "resume_path"
"""Values of RESUME_MODE."""
WORKERS_PYTHON = "ray_kwargs.ray_init.runtime_env.py_executable"
ASYNC_SAVES = tuple(
    f"{role}.checkpoint.async_save" for role in ("actor_rollout_ref.actor", "critic")
)
KEEPS = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
REMOVE_PREVIOUS = "trainer.remove_previous_ckpt_in_save"
CONTENTS, HF_MODEL = "actor_rollout_ref.actor.checkpoint.save_contents", "hf_model"
TOTAL, EPOCHS, DEFAULT_EPOCHS = "trainer.total_training_steps", "trainer.total_epochs", 30
MODELS = tuple(
    f"{role}.model.path"
    for role in ("actor_rollout_ref", "critic", "reward_model", "reward.reward_model")
)
ONLY_VALIDATES = "trainer.val_only"
HDFS, RAY_CPUS = "trainer.default_hdfs_dir", "ray_kwargs.ray_init.num_cpus"


OF_SEARCH_R1 = re.compile(
    r"\+{0,2}(?:retriever\.\w+|max_turns|do_search|data\.max_(?:start|obs)_length"
    r"|actor_rollout_ref\.actor\.state_masking)=.*",
    re.DOTALL,
)
"""Overrides that Search-R1's copy of verl has, and verl itself has not."""


def is_training(program: Sequence[str]) -> bool:
    """Return whether a program is one of verl's trainers, started as a module."""
    return program[0] == "-m" and MODULES.fullmatch(program[-1]) is not None


def is_relative(typed: TypedCommand) -> bool:
    """Return whether a package on verl's code trains: its command has keys of main_ppo."""
    if typed.program[0] != "-m" or not RELATIVES.fullmatch(typed.program[-1]):
        return False
    keys = [word.lstrip("+~") for word in typed.unwrapped if OVERRIDE.fullmatch(word)]
    return all(any(key.startswith(begin) for key in keys) for begin in KEYS_OF_PPO)


def is_search_r1(typed: TypedCommand) -> bool:
    """Return whether a command of verl's PPO trainer has keys of Search-R1."""
    is_ppo = is_training(typed.program) and typed.program[-1] in (MODULE, f"{MODULE}_format")
    return is_ppo and any(OF_SEARCH_R1.fullmatch(word) for word in typed.unwrapped)


@dataclass(frozen=True, slots=True)
class VerlCommand:
    interpreter: str | None
    """A Python as it was typed; None: no program was."""
    program: tuple[str, ...]
    overrides: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Words before the interpreter that are not understood."""

    @property
    def words(self) -> tuple[str, ...]:
        """The command as words, which `parse` reads again."""
        variables = (f"{name}={value}" for name, value in self.variables.items())
        return (*variables, self.interpreter or "python3", *self.program, *self.overrides)

    @property
    def flags(self) -> dict[str, str]:
        """The values of the overrides by their keys, and behind "" the program and other words."""
        matches = {word: OVERRIDE.fullmatch(word) for word in self.overrides}
        others = replace(
            self, overrides=tuple(word for word, match in matches.items() if not match)
        )
        values = {match["key"]: match["value"] for match in matches.values() if match}
        return {"": " ".join(others.words), **values}

    def value(self, key: str) -> str | None:
        """Return the value of an override; None if none is given or if it is null."""
        found = None
        for word in self.overrides:
            if (match := OVERRIDE.fullmatch(word)) and match["key"] == key:
                found = match["value"]
        return None if found in (None, "null", "None", "") else found

    def number(self, key: str) -> int | None:
        return whole_number(self.value(key))

    @property
    def resume_mode(self) -> str:
        return self.value(RESUME_MODE) or AUTO

    @property
    def own_start(self) -> tuple[str, str | None]:
        """Return the words by which the command does not start with its own newest checkpoint.

        And the path that they name, as given; "" without such words.
        """
        mode = self.resume_mode
        path = self.value(RESUME_PATH) if mode == FROM_PATH else None
        if mode not in (NO_RESUME, FROM_PATH):
            return "", None
        return f"{RESUME_MODE}={mode}" + (f" {RESUME_PATH}={path}" if path else ""), path

    def resuming(self, checkpoint: Path | None) -> VerlCommand:
        """Return the command that goes on from a checkpoint; None: what is there is half written.

        A command that says itself where it starts does so as long as there is none.
        """
        if checkpoint:
            return self.having(**{RESUME_MODE: FROM_PATH, RESUME_PATH: checkpoint})
        return self.having(**{RESUME_MODE: NO_RESUME}) if self.resume_mode == AUTO else self

    def having(self, **values: object) -> VerlCommand:
        """Return the command with these overrides instead of its own; `__` stands for a dot.

        A path is quoted if Hydra requires it.
        """
        given = {
            name.replace("__", "."): quoted(value) if isinstance(value, PurePath) else value
            for name, value in values.items()
        }
        kept = [word for word in self.overrides if _key(word) not in given]
        added = [f"{key}={value}" for key, value in given.items()]
        return replace(self, overrides=(*kept, *added))


def parse(words: Sequence[str]) -> VerlCommand:
    """Return the command; words without a program are overrides of verl's PPO trainer."""
    place = next((n for n, word in enumerate(words) if PYTHON.fullmatch(word)), None)
    if place is None:
        return VerlCommand(None, ("-m", MODULE), tuple(words))
    variables, before = variables_before(words[:place])
    interpreter, rest = words[place], list(words[place + 1 :])
    first = script_place(rest)
    end = first + (2 if rest[first : first + 1] == ["-m"] else 1)
    program, overrides = tuple(rest[:end]), tuple(rest[end:])
    return VerlCommand(interpreter, program, overrides, variables, tuple(before))


def workers_by_uv(command: VerlCommand) -> str:
    """Return the value by which `uv run …` starts verl's workers; "" if another one does."""
    value = (command.value(WORKERS_PYTHON) or "").strip("'\"")
    words = value.split()
    return value if words[:1] == ["uv"] and "run" in words else ""


def quoted(value: object) -> str:
    """Return a text as the value of an override, such as '/runs/lr=1e-6'."""
    text = str(value)
    return text if UNQUOTED.fullmatch(text) else "'" + text.replace("'", r"\'") + "'"


def faults(command: VerlCommand) -> list[str]:
    """Return a sentence for each override that cannot work under supervision."""
    found = []
    if command.program[-2:] == ("-m", MODULE) and (word := _no_override(command.overrides)):
        found.append(
            f"{word} is not a key=value, and no verl reads it: give verl's own command, such as "
            f"python3 -m {MODULE} …, with the words that a script has; ROLLCALL_RECIPE=command "
            "runs a script as it is"
        )
    found += resume_faults(command)
    if value := command.value(RAY_CPUS):
        found.append(f"{RAY_CPUS}={value}: Ray refuses it on a cluster that runs, so leave it out")
    return [*found, *common_faults(command, "verl")]


def resume_faults(command: VerlCommand) -> list[str]:
    """Return the fault of the overrides that say from where to resume, if they have one."""
    mode, path = command.resume_mode, command.value(RESUME_PATH)
    if mode not in (AUTO, NO_RESUME, FROM_PATH):
        return [f"{RESUME_MODE}={mode} is unknown: give {AUTO}, {NO_RESUME} or {FROM_PATH}"]
    if mode == FROM_PATH and not (path and "global_step_" in path):
        return [f"{RESUME_MODE}={FROM_PATH} needs {RESUME_PATH}=…/global_step_N"]
    return []


def common_faults(command: VerlCommand, recipe: str) -> list[str]:
    """Return the faults of overrides that verl and what is built on its code have."""
    found = []
    if command.before:
        found.append(
            f"{' '.join(command.before)} before {command.interpreter} is not understood: leave it "
            "out, or have ROLLCALL_RECIPE=command run the words as they are"
        )
    if not command.program:
        python = command.interpreter or "python3"
        found.append(f"{python} has nothing to run: give a module behind it, such as -m {MODULE}")
    if (given := command.value(DIRECTORY)) and (wrong := NOT_A_PATH.search(given)):
        found.append(
            f"{DIRECTORY}={given} has {wrong[0]}, which Hydra resolves, and the recipe "
            f"{recipe} looks for checkpoints there: give the path itself, or leave it out"
        )
    if value := command.value(HDFS):
        found.append(f"{HDFS}={value}: {recipe} cannot resume from there, so leave it out")
    found += [
        f"{key}={value} is not a number of 1 or more"
        for key in (NNODES, GPUS)
        if (value := command.value(key)) and not (command.number(key) or 0) > 0
    ]
    return found


def risks(command: VerlCommand) -> Iterator[str]:
    """Yield a sentence for each override by which a crash may find no complete checkpoint."""
    for key in ASYNC_SAVES:
        if _is_true(command.value(key)):
            yield (
                f"{key}={command.value(key)}: the newest checkpoint may be half written and does "
                "not count until verl names it in latest_checkpointed_iteration.txt, which is "
                "later with Megatron and never with FSDP: leave it out"
            )
    ones = [f"{key}=1" for key in KEEPS if command.number(key) == 1]
    if _is_true(previous := command.value(REMOVE_PREVIOUS)):
        ones.append(f"{REMOVE_PREVIOUS}={previous}")
    if ones:
        yield (
            f"{', '.join(ones)}: verl deletes the only complete checkpoint before the next one is "
            f"complete, so a crash meanwhile leaves none: give {' and '.join(KEEPS)} 2 or more"
        )


def models(command: VerlCommand) -> dict[str, str]:
    """Map the overrides that name models to their values."""
    named = {key: command.value(key) for key in MODELS}
    return {key: value.strip("'\"") for key, value in named.items() if value}


def last_step(command: VerlCommand, end: JobEnd) -> int:
    """Return the run's last step; 0 if it is unknown. The data may be exhausted before the total.

    verl v0.9.1, RayPPOTrainer: `_create_dataloader` and `fit`.
    """
    total = end.total_steps or command.number(TOTAL) or 0
    if not (total and end.epoch_steps):
        return total
    passes = command.number(EPOCHS) or DEFAULT_EPOCHS
    return min(total, end.before + end.epoch_steps * passes)


def steps_left(
    command: VerlCommand, end: JobEnd, last: int, *, saved: int, saves_last: bool
) -> str:
    """Return what a job lacks that has ended with exit code 0; "" if it has its last step.

    `saved`: step of the newest checkpoint; `saves_last`: a finished job has one of its last step.
    Without it the last step may be untold: Ray may lose the last lines of a driver's actors.
    """
    newest = max(saved, end.step if end.told else 0)
    is_own = command.program[-1:] != (MODULE,) and 0 < end.step <= saved
    if not last or newest >= last or (not saves_last and newest == last - 1):
        return ""
    if is_own or (end.ended and (end.told or _may_only_validate(command))):
        return ""
    return "the log has neither its last step nor verl's last line"


def _may_only_validate(command: VerlCommand) -> bool:
    """Return whether `trainer.val_only` is true, or may be true in a file of settings."""
    return _is_true(command.value(ONLY_VALIDATES)) or any(
        word.startswith("-") for word in command.overrides
    )


NOT_SHARED = f"all ranks write checkpoints and read them: all nodes must share {DIRECTORY}"
"""If ROLLCALL_STORAGE is not `shared`: the head alone never sees a whole checkpoint."""


def without_model(command: VerlCommand) -> str:
    """Return why the checkpoints have no model for Hugging Face; "" if they may have one.

    They may if the settings are in a file, or of an engine that writes one by itself, as Megatron.
    """
    is_elsewhere = any(word.startswith("-") or "@" in _key(word) for word in command.overrides)
    engines = (("model_engine", ("dp",)), ("actor_rollout_ref.actor.strategy", ("fsdp", "fsdp2")))
    is_other = any(command.value(key) not in (None, *names) for key, names in engines)
    if command.program[-1:] != (MODULE,) or is_elsewhere or is_other:
        return ""
    if (every := command.number(FREQUENCY)) is not None and every < 1:
        return f"{FREQUENCY}={every} writes no checkpoint: give 1 or more"
    if any(HF_MODEL in word for word in command.overrides) or "$" in (
        command.value(CONTENTS) or ""
    ):
        return ""
    return f"its checkpoints have no {HF_MODEL}: give {CONTENTS}=[model,optimizer,extra,{HF_MODEL}]"


def placed(command: VerlCommand, gpus: Sequence[int]) -> VerlCommand:
    """Return the command with the numbers of nodes and GPUs. `gpus`: of each node that has any."""
    nodes, each = command.number(NNODES), command.number(GPUS)
    if not gpus or (nodes and each) or on_cpus(command):
        return command
    left = sum(gpus) - sum(apart(command).values())
    gpus = _first_of(gpus, left)
    if not gpus:
        return command
    if each:
        nodes = sum(count >= each for count in gpus)
    else:
        nodes = min(nodes or len(gpus), len(gpus))
        each = sorted(gpus, reverse=True)[nodes - 1]
    return command.having(trainer__nnodes=nodes, trainer__n_gpus_per_node=each)


def _first_of(gpus: Sequence[int], most: int) -> list[int]:
    """Return the nodes, the largest first, that have no more GPUs than `most` together."""
    found: list[int] = []
    for count in sorted(gpus, reverse=True):
        if sum(found) + count <= most:
            found.append(count)
    return found


def lacking(command: VerlCommand, gpus: Sequence[int], framework: str = "verl") -> str:
    """Return what the nodes lack for the command; "" if they can hold it."""
    nodes, each = command.number(NNODES) or 1, command.number(GPUS) or 8
    others = {name: count for name, count in apart(command).items() if count}
    enough = nodes * each + sum(others.values()) <= sum(gpus)
    if (enough and sum(count >= each for count in gpus) >= nodes) or on_cpus(command):
        return ""
    offered = ", ".join(map(str, gpus)) or "0"
    more = "".join(f", and {count} for {name}" for name, count in others.items())
    wanted = f"{framework} wants {counted(each, 'GPU')} on each of {counted(nodes, 'node')}{more}"
    return f"{wanted}; the nodes offer {offered}"


def apart(command: VerlCommand) -> dict[str, int]:
    """Return how many GPUs each part has for itself, beside those of `trainer.nnodes`."""
    separate = command.value("trainer.v1.trainer_mode") == "separate_async"
    each = command.number(GPUS) or 8
    parts = (
        ("rollout", ASYNC.fullmatch(command.program[-1]) is not None, (1, 8)),
        ("actor_rollout_ref.rollout", separate, (0, each)),
        ("reward.reward_model", _has_pool(command, "reward.reward_model"), (0, 8)),
        ("reward_model", _has_pool(command, "reward_model"), (0, 8)),
        ("distillation", _is_true(command.value("distillation.enabled")), (0, 8)),
    )
    return {
        f"{name}.nnodes × {name}.n_gpus_per_node": _gpus_of(command, name, default)
        for name, counts, default in parts
        if counts
    }


def console_added(command: VerlCommand, *, wandb: bool) -> VerlCommand:
    """Return the command with the logger `console`, whose lines tell the steps."""
    logger = command.value(LOGGER)
    if logger is None:
        return command if wandb else command.having(trainer__logger="[console]")
    if "console" in logger:
        return command
    others = logger.strip("[]")
    return command.having(trainer__logger=f"[console,{others}]")


def _no_override(words: Sequence[str]) -> str:
    """Return the first word that is neither an override nor of an option; "" if all are."""
    before = ""
    for word in words:
        is_value = before[:1] == "-" and "=" not in before
        if word[:1] not in ("-", "~") and not is_value and "=" not in word:
            return word
        before = word
    return ""


def _has_pool(command: VerlCommand, name: str) -> bool:
    return _is_true(command.value(f"{name}.enable_resource_pool"))


def _gpus_of(command: VerlCommand, name: str, default: tuple[int, int]) -> int:
    """Return nodes × GPUs of each; 0 if one of them is not a plain number."""
    keys = (f"{name}.nnodes", f"{name}.n_gpus_per_node")
    values = [
        number if command.value(key) is None else command.number(key) or 0
        for key, number in zip(keys, default, strict=True)
    ]
    return values[0] * values[1]


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in TRUE


def on_cpus(command: VerlCommand) -> bool:
    return command.value("trainer.device") == "cpu"


def _key(word: str) -> str:
    match = OVERRIDE.fullmatch(word)
    return match["key"] if match else ""
