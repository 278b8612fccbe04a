"""Parses a command line, and the files that it names, into a dataclass of flags."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from contract.files.os_errors import why_absent
from contract.options import FALSE, TRUE, ConfigError, Fault, MissingFile, MissingFlag
from trainer.config import data_columns, layout, values
from trainer.config.abbreviations import flag_meant
from trainer.config.config import Config
from trainer.config.help import help_text
from trainer.config.no_effect import contradicted_precision, warnings_between
from trainer.config.read_flags import (
    Given,
    Shape,
    aliases,
    label,
    read_file,
    read_words,
    resolve,
)
from trainer.config.schema import OVER, Declared, Flag, flags_of, with_values
from trainer.config.validate import faults_between

T = TypeVar("T")
CONFIG = "config"
OTHERS_DATA = "dataset"
"""The flag that names the data of a supervised stage."""
PROG = "python -m trainer"
DESCRIPTION = "Train a policy with PPO, GRPO and their relatives on the Ray cluster at hand."


LEFT_OPEN = {
    "--vllm_tensor_parallel_size": "actor_num_gpus_per_node",
    "--vllm_gpu_memory_utilization": "vllm_num_engines",
    "--ring_attn_size": "actor_num_gpus_per_node",
    "--zpg": "actor_num_gpus_per_node",
    "--attn_implementation": "param_dtype",
}
"""Flag → the flag that may make it valid, and that the choice of a layout gives if nobody does."""


def parse(argv: Sequence[str], *, incomplete: bool = False, absent: bool = False) -> Config:
    """Return the command line, and the files that it names, as a Config.

    Raises ConfigError with every fault, each with its remedy. The Config's `warnings` name flags
    that were given and have no effect. `incomplete`: the layout is still to be chosen, so faults
    that the choice may mend are left out. `absent`: named files may be missing.
    """
    parsed = parse_all(argv, incomplete=incomplete, absent=absent)
    if parsed.faults:
        raise ConfigError(parsed.faults)
    return parsed.config


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line with all that is wrong with it."""

    config: Config
    """A flag at fault has its default, unless it is wrong only beside another flag."""
    faults: tuple[Fault, ...]
    unsure: frozenset[str]
    """Flags whose value is not what the user meant: those at fault, and those misspelt."""


def parse_all(argv: Sequence[str], *, incomplete: bool = False, absent: bool = False) -> Parsed:
    """Return what `parse` returns or raises, so that what flags name can be looked at, too."""
    reading = read(Config, argv, PROG, DESCRIPTION)
    config = _settled(reading.config, reading.given)
    open_flags = {
        flag for flag, other in LEFT_OPEN.items() if incomplete and other not in reading.given
    }
    between = [fault for fault in faults_between(config) if fault.path not in open_flags]
    faults = reading.all_faults(between, absent=absent)
    contradicted = contradicted_precision(reading.config, reading.given)
    warnings = (*reading.warnings, *contradicted, *warnings_between(config, reading.given))
    unsure = reading.unsure(Config)
    unnamed = frozenset(data_columns.COLUMN_FLAGS) - reading.given - unsure
    config = replace(config, warnings=warnings, unnamed=unnamed)
    return Parsed(data_columns.chosen(config), faults, unsure)


def unchecked(argv: Sequence[str]) -> Config:
    """Return what `argv` and its files give, whatever is wrong with other flags.

    A flag at fault has its default.
    """
    return read(Config, argv, PROG, DESCRIPTION).config


def named_in(argv: Sequence[str]) -> frozenset[str]:
    """Return the flags that `argv` and its files name, in any spelling."""
    return read(Config, argv, PROG, DESCRIPTION).given


def given_texts(argv: Sequence[str]) -> Mapping[str, str]:
    """Return what `argv` and its files give, by the flags as they are spelt; without secrets."""
    return read(Config, argv, PROG, DESCRIPTION).texts


def _settled(config: Config, given: Set[str]) -> Config:
    """Fold flags that stand for others into those, so that each fact is in one place."""
    prompt_limit = config.prompt_max_len
    if config.max_len is not None:
        room = config.max_len - config.sampling.max_new_tokens
        # The rest of --max_len is for an episode's later turns.
        bounded = "prompt_max_len" in given or config.has_environment
        prompt_limit = min(prompt_limit, room) if bounded else room
    correction, threshold = config.correction, config.correction.threshold
    bf16 = config.bf16 or config.mixed_precision
    flash = "flash_attention_2" if config.flash_attn and bf16 else None  # it has no fp32
    if config.runs_ahead and "is_correction_level" not in given:
        correction = replace(correction, level="token")
    return replace(
        layout.settled(config, given),
        correction=replace(
            correction, threshold=threshold if len(threshold) > 1 else (0.0, *threshold)
        ),
        pretrain=_located(config.pretrain),
        critic_pretrain=_located(config.critic_pretrain),
        reward_pretrain=",".join(
            _located(name.strip()) for name in config.reward_pretrain.split(",")
        ),
        prompt_max_len=prompt_limit,
        param_dtype="bf16" if bf16 else config.param_dtype,
        attn_implementation=config.attn_implementation or flash,
        use_wandb=_switch(config.use_wandb),
    )


def _located(model: str) -> str:
    """Return a directory's absolute path, as workers may run elsewhere; a hub name unchanged."""
    return str(Path(model).absolute()) if model and why_absent(Path(model)) is None else model


def _switch(key: str) -> str:
    """Return a W&B key, or "yes" or "" for words that only switch W&B on or off."""
    if key.lower() in TRUE:
        return "yes"
    return "" if key.lower() in FALSE else key


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A parsed command line. A flag at fault has its default in `config`."""

    config: T
    given: frozenset[str]
    """Flags that were given by a spelling of their own."""
    texts: Mapping[str, str]
    """What was given, by the flags as they were spelt; without secrets."""
    at_fault: frozenset[str]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]
    """One sentence for each flag that was given and has no effect."""
    unread: bool
    """A file of flags cannot be read: what it gives is unknown."""
    files: tuple[str, ...]
    """The files of flags that were named."""

    def all_faults(self, between: Iterable[Fault], *, absent: bool) -> tuple[Fault, ...]:
        """Return the faults of one flag, and those `between` flags.

        Those `between` flags that name one at fault, or misspelt, are left out: with what the user
        meant they may not be there. So are all, if a file of flags cannot be read. `absent`: named
        files may be missing.
        """
        unsure = self.unsure(type(self.config))
        more = [
            replace(fault, flags_from=self.files) if isinstance(fault, MissingFile) else fault
            for fault in between
            if not (self.unread or _flags_named(fault) & unsure)
            and not (absent and isinstance(fault, MissingFile))
        ]
        return (*self.faults, *more)

    def unsure(self, config: type[T]) -> frozenset[str]:
        """Return the flags at fault by themselves, and those that a wrong spelling is nearest to.

        `config`: the class of the flags.
        """
        return self.at_fault | _meant(self.faults, aliases(config))


FLAG_NAME = re.compile(r"--(\w+)|\b([a-z]+_\w+)")
"""A flag in a sentence: behind dashes, or by several words."""


def _flags_named(fault: Fault) -> set[str]:
    text = f"{fault.path} {fault.problem} {fault.remedy}"
    return {dashed or words for dashed, words in FLAG_NAME.findall(text)}


def _meant(faults: Iterable[Fault], known: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the flags of these faults: of an unknown spelling, those that it may mean."""
    spellings = (fault.path.removeprefix("--").rpartition(": ")[2] for fault in faults)
    meant = (one if one in known else flag_meant(one, known) for one in spellings)
    return frozenset(name for one in meant if one for name in known[one])


def read(config: type[T], argv: Sequence[str], prog: str, description: str) -> Reading[T]:
    """Return `argv`, and the files that its --config name, as a `config`; `argv` wins.

    Flags after the word OVER win over all others. Prints the help and exits if `argv` asks for it.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(help_text(config, prog, description))
        sys.exit(0)
    declared = flags_of(config)
    known = aliases(config)
    shapes = {spelling: _shape(declared[names[0]]) for spelling, names in known.items()}
    before, after = _parted(argv)
    from_line, faults = read_words(before, {**shapes, CONFIG: Shape(1)})
    from_above, wrong = read_words(after, shapes)
    from_files: list[Given] = []
    for given in from_line:
        if given.spelling == CONFIG and not given.texts:
            remedy = f"Give {label(CONFIG)} run.yaml"
            faults.append(Fault(label(CONFIG), "", "needs a value: a file of flags", remedy))
        elif given.spelling == CONFIG:
            more, broken = read_file(Path(*given.texts), known)
            more, broken = _of_this_command(declared, more, broken)
            from_files += more
            faults += broken
    in_files, twice_in_file, warnings = resolve(from_files, known)
    on_line, twice, _ = resolve((one for one in from_line if one.spelling != CONFIG), known)
    found = in_files | on_line | resolve(from_above, known)[0]
    unread = any(fault.path == label(CONFIG) for fault in faults)
    checked = _checked(declared, found)
    spelt = () if unread else _meant((*faults, *wrong), known)
    lacking = {} if unread else {k: v for k, v in checked.lacking.items() if k not in spelt}
    return Reading(
        with_values(config(), {declared[name].path: v for name, v in checked.values.items()}),
        frozenset(name for name, one in found.items() if known[one.spelling][0] == name),
        {
            one.spelling: " ".join(one.texts) or "true"
            for name, one in found.items()
            if not declared[name].about.secret
        },
        frozenset(checked.at_fault),
        (*faults, *wrong, *twice_in_file, *twice, *lacking.values(), *checked.faults.values()),
        tuple(dict.fromkeys([*warnings, *checked.warnings])),
        unread,
        tuple(text for one in from_line if one.spelling == CONFIG for text in one.texts),
    )


def _of_this_command(
    declared: Mapping[str, Declared], givens: list[Given], faults: list[Fault]
) -> tuple[list[Given], list[Fault]]:
    """Return what a file gives; of a file of another command, one fault that names the command."""
    about = {
        one.spelling: declared[one.spelling].about for one in givens if one.spelling in declared
    }
    foreign = [name for name, flag in about.items() if flag.unsupported]
    if about.get(OTHERS_DATA) is None or OTHERS_DATA not in foreign:
        return givens, faults
    stage, others = ("dpo", "or rm") if "chosen_key" in about else ("sft", "or dpo, rm")
    file = next(one.file for one in givens)
    problem = f"has flags of a supervised stage ({', '.join(foreign)})"
    remedy = f"Give it to the stage's own command: `rollcall {stage} --config {file}` ({others})"
    return [], [Fault(label(CONFIG), file, problem, remedy)]


def _parted(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before OVER and those after it."""
    words = list(argv)
    at = words.index(OVER) if OVER in words else len(words)
    return words[:at], words[at + 1 :]


@dataclass(frozen=True, slots=True)
class _Checked:
    """Values and faults of the flags, each checked by itself."""

    values: dict[str, Any] = field(default_factory=dict)
    lacking: dict[str, Fault] = field(default_factory=dict)
    """Flags that are required and were not given."""
    at_fault: set[str] = field(default_factory=set)
    faults: dict[str, Fault] = field(default_factory=dict)
    """By spelling: a shared spelling is at fault once."""
    warnings: list[str] = field(default_factory=list)


def _checked(declared: Mapping[str, Declared], given: Mapping[str, Given]) -> _Checked:
    """Check each flag by itself: its type, its range, whether it has an effect."""
    checked = _Checked()
    for name, one in declared.items():
        if name in given:
            value, fault = _value(one, given[name])
        elif one.about.required:
            checked.at_fault.add(name)
            checked.lacking[name] = MissingFlag(label(name), "", "is required", one.about.help)
            continue
        else:
            continue
        if fault is not None:
            checked.at_fault.add(name)
            checked.faults.setdefault(fault.path, fault)
            continue
        checked.values[name] = value
        if one.about.no_effect and value != one.default:
            checked.warnings.append(f"{given[name].label} has no effect: {one.about.no_effect}")
    return checked


def _value(one: Declared, given: Given) -> tuple[Any, Fault | None]:
    """Return the value that was given for a flag, or its fault."""
    texts = given.texts
    if not texts and one.about.bare is not None:
        texts = (one.about.bare,)
    if not texts and one.kind is bool:
        texts = ("true",)
    shown = "" if one.about.secret else " ".join(texts)
    try:
        value = values.convert(one.kind, [one.about.synonyms.get(text, text) for text in texts])
    except ValueError:
        wanted = values.described(one.kind, one.about)
        wrong = f"must be {wanted}" if any(texts) else f"needs a value: {wanted}"
        return None, Fault(given.label, shown, wrong, _remedy(one.about))
    if problem := one.about.problem(value):
        named = one.about.called.get(shown.lower().replace("-", "_"))
        remedy = f"{shown.upper()} is {named} here" if named else _remedy(one.about)
        return None, Fault(given.label, shown, problem, remedy)
    if one.about.unsupported and value != one.default:
        return None, Fault(given.label, shown, "is not supported", one.about.unsupported)
    return value, None


def _remedy(about: Flag) -> str:
    if about.help.partition(":")[0] in about.words:
        return about.help  # the name of a choice stays as it is
    return about.help[:1].upper() + about.help[1:]


def _shape(one: Declared) -> Shape:
    return Shape(values.most(one.kind), switch=one.kind is bool, repeats=one.about.repeats)
