"""From another trainer's command to ours: each flag said, or listed with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from contract.options import FALSE as FALSE_WORDS
from contract.options import MISTYPED, ConfigError, MissingFile, MissingFlag, did_you_mean, nearest
from contract.options import TRUE as TRUE_WORDS
from contract.redaction import redact
from trainer.config import values as kinds
from trainer.config.config import Config
from trainer.config.no_effect import NO_EFFECT
from trainer.config.parse import DESCRIPTION, PROG, parse, read
from trainer.config.read_flags import aliases
from trainer.config.schema import Declared, by_group, flags_of
from trainer.config.translate import nodes, openrlhf
from trainer.config.translate.accelerate_file import not_here
from trainer.config.translate.command import OPENRLHF, TRL, VERL, TranslateError
from trainer.config.translate.hydra_file import FILE_NOT_READ
from trainer.config.translate.result import Translation
from trainer.config.translate.rows import (
    NOTHING,
    TRUE,
    UNSET,
    Command,
    Remarked,
    Row,
    Table,
    UnreadError,
    Unsaid,
    Values,
    is_default,
    needs_variable,
    same,
)
from trainer.config.translate.trl import TRL as TRL_TABLE
from trainer.config.translate.unknown_values import computed_from_open, is_told, untold
from trainer.config.translate.verl import SEARCH_R1, evaluation_in, is_search_r1
from trainer.config.translate.verl import VERL as VERL_TABLE
from trainer.config.translate.verl_conversions import MEGATRON

ELLIPSES = ("...", "…", "etc.")
HYDRA = re.compile(r"--config-(?P<what>path|name|dir)=(?P<value>.*)")
OF_EVERY_SHELL = ("HOME", "LOGNAME", "PWD", "USER")
"""Variables that a shell has set already."""
REQUIRED = "is required"
AS_WITHOUT = "the same as without it"
RUN = "/checkpoints"
"""A run directory for the check of a translation; the entrypoint gives the right one."""

OF_GUIDES = frozenset({"VLLM_ATTENTION_BACKEND"})
"""Variables that verl's guides set, and that nothing needs here."""


def translated(command: Command) -> Translation:
    """Return the translation of a command, checked by the trainer's own parser.

    Raises TranslateError for a command that trains nothing.
    """
    if command.trainer == VERL and (word := evaluation_in(command.given)):
        raise TranslateError(
            f"{word} evaluates the model and trains nothing, and the builtin trainer has no such "
            "command: run it as it is by a recipe (docs/recipes), or leave it out to train"
        )
    if command.trainer == OPENRLHF:
        made = _of_openrlhf(command)
    else:
        table = VERL_TABLE if command.trainer == VERL else TRL_TABLE
        if command.trainer == VERL and is_search_r1(set(command.given)):
            table = SEARCH_R1
        made = _by_table(command, table)
    for word in map(plain, command.strange):
        if word in ELLIPSES:
            made.notes.append(f"{word}: the guide leaves flags out here")
        elif found := HYDRA.fullmatch(word):
            made.lost += _of_hydra(found["what"], found["value"])
        else:
            made.lost.append(f"{word}: belongs to no flag")
    if command.trainer == TRL:
        made.unseen += _of_scripts(command)
    made.notes += (f"{one}: leave it out" for one in command.exported if one in OF_GUIDES)
    told = {*OF_GUIDES, *command.given}
    if names := ", ".join(one for one in command.exported if one not in told):
        made.first.append(
            f"{names}: set in the script; give every node those that a program reads, and leave "
            "out those that the script alone uses"
        )
    made.first += command.first
    made.needed += dict.fromkeys(command.missing.values())
    made.needed += untold(command, made)
    made.lost += command.absent
    made.notes += command.idle
    made.warnings += command.notes
    _leave_out_without_effect(made)
    named = {needs_variable(word) for word in made.words}
    open_ = named - {"", *OF_EVERY_SHELL, *command.missing}
    if open_:
        made.first.append(
            f"{', '.join(sorted(open_))}: must be set in the shell that runs the command, or give "
            f"the value, as in --set {min(open_)}=…"
        )
    workers = nodes.workers([plain(word) for word in made.words])
    if isinstance(workers, str):
        made.first.append(workers)
    elif not nodes.is_open(command):
        made.environment["EXPECTED_WORKERS"] = str(workers)
    _check(made)
    if any(FILE_NOT_READ in sentence for sentence in made.lost):  # the file may have them
        made.needed = [one for one in made.needed if REQUIRED not in one]
    made.lost = [*dict.fromkeys(made.lost)]
    return made


def _of_hydra(what: str, value: str) -> Iterator[str]:
    """Yield what a configuration of Hydra's own takes away."""
    if what == "path" or value.removesuffix(".yaml") == "ppo_trainer":
        return  # the directory says nothing by itself, and the file is main_ppo's own
    which = MEGATRON if "megatron" in value else FILE_NOT_READ
    yield f"--config-{what}={plain(value)}: {which}"


def _of_scripts(command: Command) -> Iterator[str]:
    """Yield what the flags of a TRL script do not tell."""
    if command.program.endswith(".py"):
        yield (
            f"{command.program}: of what the script sets by itself, only constants in calls of "
            "GRPOConfig and GRPOTrainer are seen"
        )
    yield from map(plain, not_here(command))
    yield "prompts: add --apply_chat_template if they are messages"
    typed = {name.replace("-", "_") for name in (*command.launcher, *command.given)}
    if not {"num_processes", "nproc_per_node", "num_gpus"} & typed:
        yield "processes: none are named, so batches are those of one; add --num_processes"


def plain(text: str) -> str:
    return text.replace(UNSET, "$")


def _by_table(command: Command, table: Table) -> Translation:
    made = Translation(table.name)
    given: dict[str, str] = {}
    for typed, texts in {**command.launcher, **command.given}.items():
        name, text = _named(typed, texts, table)
        if not texts and any(_needs_value(row) for row in table.of(name)):
            made.lost.append(f"{typed}: needs a value")
        elif table.of(name):
            given[name] = text
        elif typed in command.given:
            made.lost.append(_unknown(typed, table))
    settings = Values(table.defaults | given)
    settings.unread = {*command.unread}
    for row in _rows(table, given):
        name, is_given = row.theirs, row.theirs in given
        if name in settings.unread:
            made.left_out.setdefault(name, []).append(row.ours)
            continue
        value = settings.get(name)
        if value is None or (value in NOTHING and row.default in (None, "null")):
            if is_given and not row.ours:
                made.notes.append(f"{name}={value or 'an empty text'}: {row.note or AS_WITHOUT}")
            continue
        _say(made, row, value, settings, is_given=is_given)
    made.flags = {name: made.flags[name] for name in sorted(made.flags, key=_place)}
    made.needed += computed_from_open(made, given)
    said = {row.theirs for row in table.rows if row.ours in made.flags}
    said |= {sentence.partition("=")[0] for sentence in made.lost}
    unsaid = (note for note in made.notes if note.partition("=")[0] not in said)
    made.notes = list(dict.fromkeys(unsaid))
    return made


def _rows(table: Table, given: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows that count: given ones first, since they win; of a pattern, each match."""
    for row in table.rows:
        if row.theirs in given:
            yield row
    for name in given:
        for row in table.of(name):
            if row.is_pattern:
                yield Row(name, row.ours, row.note, row.by, row.default, row.lost)
    yield from (row for row in table.rows if row.theirs not in given and row.default is not None)


def _named(typed: str, texts: Sequence[str], table: Table) -> tuple[str, str]:
    """Return a flag's name in the table, and its value; --no_x and a bare --x are switches."""
    name = typed if table.of(typed) else typed.replace("-", "_")
    if not texts and name.startswith("no_") and not table.of(name):
        return name.removeprefix("no_"), "false"
    return name, " ".join(texts) if texts else TRUE


def _needs_value(row: Row) -> bool:
    return bool(row.ours) and row.by is same and _flag(row.ours).kind is not bool


def _unknown(typed: str, table: Table) -> str:
    names = {row.theirs for row in table.rows if not row.is_pattern}
    hint = did_you_mean(typed, sorted(names), begin=": ", cutoff=MISTYPED)
    return f"{typed}: {table.name} has no such flag, as far as known{hint}"


def _say(made: Translation, row: Row, value: str, settings: Values, *, is_given: bool) -> None:
    if variable := needs_variable(value) if row.by.__name__ in NUMERIC else "":
        what = ("value", "…") if row.by.__name__ in SWITCHES else ("number", "NUMBER")
        made.lost.append(
            f"{row.theirs}={plain(value)}: give the {what[0]}, as in --set {variable}={what[1]}"
        )
        return
    try:
        answer = row.answer(value, settings)
    except (ValueError, ArithmeticError) as error:
        of = error.name if isinstance(error, UnreadError) else row.theirs
        if of != row.theirs and of in {*settings, *settings.unread}:
            made.left_out.setdefault(of, []).append(row.ours)
            return
        if is_given and row.ours and UNSET in value:
            where = f"--{row.ours}: {row.theirs}={plain(value)} is known only where it runs"
            made.needed.append(f"{where}. Give its value")
            return
        # What depends on a number that is still to be given is not said twice.
        if is_given and not any(map(needs_variable, settings.values())):
            made.lost.append(f"{row.theirs}={plain(value)}: its value cannot be read")
        return
    if isinstance(answer, Unsaid):
        is_lost = answer.lost and not is_default(value, row.default)
        if is_given:
            told = made.lost if is_lost else made.warnings if answer.warns else made.notes
            told.append(f"{redact(f'{row.theirs}={plain(value)}')}: {answer.why}")
        elif is_lost and row.ours:
            made.lost.append(f"{row.theirs}: {answer.why}")
        return
    texts = _texts(row.ours, answer)
    before = made.flags.get(row.ours)
    if before is None:
        if not is_given and _is_our_default(row.ours, texts):
            return
        if _is_off(row.ours, texts):
            return
        made.flags[row.ours] = texts
        if isinstance(answer, Remarked) and is_given:
            made.warnings.append(f"{row.theirs}={plain(value)}: {answer.remark}")
        if not is_given:
            made.by_default.add(row.ours)
    elif before != texts and is_given:
        made.notes.append(
            f"{row.theirs}={plain(value)}: --{row.ours} {plain(' '.join(before))} is for both"
        )


SWITCHES = ("switch", "kl_loss")
NUMERIC = ("whole", "number", "samples", "engines", "of_all_gpus", "frozen", *SWITCHES)
"""Names of conversions that need a number, or on or off."""


def _flag(spelling: str) -> Declared:
    return flags_of(Config)[aliases(Config)[spelling][0]]


@cache
def _places() -> dict[str, int]:
    named = (flag.name for flags in by_group(Config).values() for flag in flags)
    return {name: place for place, name in enumerate(named)}


def _place(spelling: str) -> int:
    """Return the place of a flag in the help."""
    return _places()[aliases(Config)[spelling][0]]


def _texts(spelling: str, answer: str) -> tuple[str, ...]:
    kind = _flag(spelling).kind
    if kind is bool and answer == TRUE:
        return ()  # a switch alone is on
    return tuple(answer.split()) if kinds.most(kind) > 1 else (answer,)


def _is_our_default(spelling: str, texts: tuple[str, ...]) -> bool:
    flag = _flag(spelling)
    names = aliases(Config)[spelling]
    try:
        value = kinds.convert(flag.kind, texts or (TRUE,))
    except ValueError:
        return False
    return all(flags_of(Config)[name].default == value for name in names)


def _is_off(spelling: str, texts: tuple[str, ...]) -> bool:
    """Return whether a switch is off, as it is by default."""
    return _flag(spelling).kind is bool and _is_our_default(spelling, texts)


def _of_openrlhf(command: Command) -> Translation:
    made = Translation("OpenRLHF")
    known, declared = aliases(Config), flags_of(Config)
    old = {name: texts for name, texts in command.given.items() if name not in known}
    for typed, texts in command.given.items():
        name = typed if typed in known else typed.replace("-", "_")
        if name not in known:
            continue
        about = declared[known[name][0]].about
        shown = "" if about.secret else " ".join(map(plain, texts))
        said = f"--{typed} {shown}".strip()
        if about.unsupported and not _is_our_default(name, texts or (TRUE,)):
            made.lost.append(f"{said}: {about.unsupported[:1].lower()}{about.unsupported[1:]}")
        elif about.no_effect:
            made.notes.append(f"{said}: {about.no_effect}")
        elif about.secret and _is_shown(texts):
            made.flags[name] = ("yes",)
            made.first.append(f"{said}: give the key by WANDB_API_KEY on the head")
        elif not about.unsupported:
            made.flags[name] = texts
    from_old = _by_table(Command(OPENRLHF, old), openrlhf.OLD)
    names = (*known, *(row.theirs for row in openrlhf.OLD.rows))
    for sentence in from_old.lost:
        typed = sentence.partition(":")[0]
        near = nearest(typed, names, cutoff=MISTYPED)
        hint = f": did you mean --{near}?" if near and "no such flag" in sentence else ""
        made.lost.append(f"--{sentence.partition(': did you')[0]}{hint}")
    made.notes += [f"--{sentence}" for sentence in from_old.notes]
    made.flags |= from_old.flags
    _leave_out_template(made)
    _openrlhf_defaults(made, dotted=any("." in name for name in command.given))
    return made


def _leave_out_template(made: Translation) -> None:
    """Leave out --input_template where a chat template renders the prompts, as OpenRLHF does."""
    by_name = {aliases(Config)[spelling][0]: spelling for spelling in made.flags}
    chats, template = by_name.get("apply_chat_template"), by_name.get("input_template")
    if not chats or _is_off(chats, made.flags[chats]):
        made.notes.append(openrlhf.WITHOUT_BOS)
    elif template:
        del made.flags[template]
        made.notes.append(f"--{template}: OpenRLHF leaves it out beside --{chats}")


def _is_shown(texts: Sequence[str]) -> bool:
    """Return whether the value of a secret is in the command itself."""
    switches = (*TRUE_WORDS, *FALSE_WORDS)
    return any(text.lower() not in switches and not needs_variable(text) for text in texts)


def _openrlhf_defaults(made: Translation, *, dotted: bool) -> None:
    """Say the defaults of theirs that differ from ours."""
    named = {name for spelling in made.flags for name in aliases(Config)[spelling]}
    for default in openrlhf.DEFAULTS:
        if default.ours not in named and not named & set(default.unless):
            made.flags[default.ours] = (default.dotted if dotted else default.flat,)
            made.by_default.add(default.ours)


def _leave_out_without_effect(made: Translation) -> None:
    """Leave out their defaults that say nothing beside the other flags."""
    config = read(Config, [plain(word) for word in made.words], PROG, DESCRIPTION).config
    idle = {flag for rule in NO_EFFECT if rule.when(config) for flag in rule.flags}
    if not config.has_critic:
        idle |= {"critic_num_nodes", "critic_num_gpus_per_node"}
    if not config.kl.has_reference:
        idle |= {"ref_num_nodes", "ref_num_gpus_per_node"}
    for spelling in [*made.by_default]:
        if set(aliases(Config)[spelling]) <= idle:
            made.by_default.discard(spelling)
            del made.flags[spelling]


def _check(made: Translation) -> None:
    """List what the trainer's parser misses, files apart: they may be on other machines."""
    words = [plain(word) for word in made.words]
    try:
        warnings = parse([*words, "--run_dir", RUN], incomplete=True).warnings
    except ConfigError as error:
        faults = [fault for fault in error.faults if not isinstance(fault, MissingFile)]
        lacking = [fault for fault in faults if isinstance(fault, MissingFlag)]
        made.needed += [str(one) for one in lacking if not is_told(made, one.path)]
        made.conflicts += [str(fault) for fault in faults if fault not in lacking]
        return
    made.warnings += warnings
