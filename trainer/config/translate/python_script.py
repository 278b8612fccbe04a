"""What a Python script says of TRL's GRPO: it is read, and never run.

Each argument is taken over, or a sentence says that it is not, and what to give instead.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trainer.config.translate import script_changes as changes
from trainer.config.translate import script_objects as objects
from trainer.config.translate.python_source import (
    Source,
    constant,
    is_empty,
    is_none,
    named,
    path,
    plain_name,
    shown,
)
from trainer.config.translate.rows import Command
from trainer.config.translate.script_classes import AFTER
from trainer.config.translate.script_config import CONFIG, Configs, is_read_elsewhere
from trainer.config.translate.script_data import Data
from trainer.config.translate.script_fields import PARSERS
from trainer.config.translate.script_findings import Finding, Flags, Kind, give, sentences, values
from trainer.config.translate.script_objects import argument
from trainer.config.translate.script_variables import environment, of_trackers
from trainer.config.translate.trl import TRL, VARIABLES, reward_of

OF_GRPO = {"num_generations", "max_completion_length", "reward_funcs", "steps_per_generation"}
"""Flags that no other trainer of TRL's has."""
TRAINER, ADAPTER = "GRPOTrainer", "LoraConfig"
TRAINERS = {
    **{"SFTTrainer": "sft", "DPOTrainer": "dpo", "RewardTrainer": "rm"},
    **dict.fromkeys(("KTOTrainer", "RLOOTrainer", "PPOTrainer", "OnlineDPOTrainer"), ""),
    **dict.fromkeys(("ORPOTrainer", "CPOTrainer", "GKDTrainer", "Trainer"), ""),
    **dict.fromkeys(("PRMTrainer", "XPOTrainer", "NashMDTrainer", "BCOTrainer"), ""),
}
"""Other trainers of TRL and transformers → the stage of Rollcall that trains the same, or ""."""
LORA_FLAGS = "--lora_rank, --lora_alpha and --target_modules"


def is_grpo(script: str, flags: Collection[str]) -> bool:
    """Return whether a script's flags, or its text if it is here, are those of TRL's GRPO."""
    if OF_GRPO & set(flags):
        return True
    source = Source(script)
    return bool(source.calls(source.kinds(CONFIG)) or source.calls(source.kinds(TRAINER)))


def other_trainer(script: str) -> tuple[str, str]:
    """Return another trainer that a script builds, and the stage that trains the same, or ""."""
    source = Source(script)
    found = (name for name in TRAINERS if source.calls(source.kinds(name)))
    name = next(found, "")
    return name, TRAINERS.get(name, "")


def with_script(command: Command) -> Command:
    """Return the command with the constants that its own script gives; typed flags count more."""
    if not command.program.endswith(".py") or not is_grpo(command.program, ()):
        return command
    options = Source(command.program).options
    given, strange = options.parted(command.given, command.strange)
    script = _Script.of(command.program, given)
    found = script.findings()
    flags, unread = values(found, script.typed)
    told = partial(sentences, found, script.typed)
    return replace(
        command,
        strange=tuple(strange),
        given={**flags, **script.typed},
        exported=tuple(dict.fromkeys((*command.exported, *environment(script.source)))),
        untold=tuple(told(Kind.UNTOLD, Kind.UNREAD)),
        unread=unread,
        absent=tuple(dict.fromkeys(command.absent) | told(Kind.ABSENT)),
        idle=tuple(dict.fromkeys(command.idle) | told(Kind.IDLE)),
    )


@dataclass(frozen=True, slots=True)
class _Script:
    """Finds what a script gives by constants, and a sentence on each argument that is none."""

    file: str
    source: Source
    trainers: Sequence[ast.Call]
    config: Configs
    own: Flags
    """The command's flags that the script's own options take."""
    others: Mapping[str, str]
    """Those that are fields of the script's own classes → what to say if nothing reads them."""
    typed: Flags
    """Those of TRL, which count more than the script."""

    @classmethod
    def of(cls, file: str, given: Flags) -> _Script:
        """Return the script, with the command's flags as whose they are."""
        source = Source(file, given)
        trainers = source.calls(source.kinds(TRAINER))
        passed = objects.passed(source, trainers, "args")
        config, fields = Configs(source, trainers, passed), objects.own_fields(source, PARSERS)
        takes_all, variables = is_read_elsewhere(source), {*VARIABLES} & {*given}
        own = {
            key: texts
            for key, texts in given.items()
            if key not in variables and (takes_all or source.options.of(key))
        }
        others = {
            key: f"{key}={' '.join(texts)}: a field of the script's own {fields[name]}, not of "
            f"{TRL.name}: what the script does with it is not taken over"
            for key, texts in given.items()
            if (name := source.fields.named(key, fields)) and key not in own
            if not (config.has_parsed and TRL.of(name))
        }
        set_ = environment(source, by_default=False)
        taken = {*own, *others, *config.overruled(), *(variables & {*set_})}
        typed = {key: texts for key, texts in given.items() if key not in taken}
        return cls(file, source, trainers, config, own, others, typed)

    def findings(self) -> list[Finding]:
        """Return all findings, in the order in which they count."""
        found = [*self._compare_trainer(), *self._find_replaced_code(), *self._read_config()]
        for call in self.trainers:
            found += [*self._read_trainer(call, values(found, self.typed)[0])]
        found += [*self._read_calls(), *self._read_data()]
        found += of_trackers(self.source, next(iter(self.trainers), None))
        return [*found, *self._find_unused_options()]

    def _compare_trainer(self) -> Iterator[Finding]:
        """Say what a trainer's class of the script changes, if it is called."""
        kinds = self.source.kinds(TRAINER)
        called = {named(call.func) for call in self.source.calls(kinds)}
        for own in sorted({kinds[one] for one in called} - {""}):
            yield self._compare(own, TRAINER, objects.methods(self.source.classes[own]))

    def _find_replaced_code(self) -> Iterator[Finding]:
        """Say which parts of TRL's own code the script sets anew."""
        found = [one.node for one in changes.of_packages(self.source) if not TRL.has(one.key)]
        found += [part for part, _ in changes.replaced(self.source, self.source.kinds(TRAINER))]
        for node in found:
            said = f"line {getattr(node, 'lineno', 0)}: {changes.text(node)}"
            yield self._lack("", said, "it replaces a part of TRL")

    def _compare(self, own: str, name: str, parts: list[str]) -> Finding:
        said = f"{self.file}: {own} is the script's own {name}"
        if parts:
            return Finding(Kind.ABSENT, said=f"{said}: not taken over: {', '.join(parts)}")
        return Finding(Kind.IDLE, said=f"{said}, and changes nothing")

    def _read_config(self) -> Iterator[Finding]:
        """Take the arguments of the config that the trainer gets; of all, if that is not clear."""
        for own in self.config.own:
            parts = objects.methods(own.node)
            others = [one for one in parts if not TRL.of(one) and one != AFTER]
            if others or not parts:
                yield self._compare(own.node.name, CONFIG, others)
        for sentence in self.config.absent:
            yield self._tell("", sentence, "give its arguments as flags")
        passed = self.config.passed
        if passed and not self.config.calls and not self.source.calls(PARSERS):
            yield self._tell("args", f"args={shown(passed[0])}", "give its arguments as flags")
        for one in self.config.said():
            if one.node is not None:
                yield from self._read_argument(one.key, one.node)
            elif ours := next((row.ours for row in TRL.of(one.key) if row.ours), ""):
                yield self._tell_unread(one.key, one.why, f"give --{ours}")
            else:  # only a run tells whether it has a value: none counts
                yield Finding(Kind.DROPPED, one.key)
                yield self._tell(one.key, one.why, one.remedy)

    def _read_argument(self, key: str, node: ast.expr) -> Iterator[Finding]:
        if not key:
            yield self._tell("", f"{CONFIG}({argument(node)})", "give its arguments as flags")
            return
        if key == "model_init_kwargs" and not is_none(node):
            for name, one in self.source.entries(node):
                yield from self._read_weights(name, one)
            return
        rows, said = TRL.of(key), f"{key}={shown(node)}"
        found = self.source.resolved(node)
        value = constant(found)
        if is_none(found):
            yield Finding(Kind.DROPPED, key)
            yield Finding(Kind.IDLE, said=f"{key}=None: the same as without it")
        elif value is not None and not is_empty(found):
            yield give(key, value)
        elif ours := next((one.ours for one in rows if one.ours), ""):
            yield self._tell_unread(key, said, f"give --{ours}")
        elif not rows:
            yield self._tell(key, said, f"{TRL.name} has no such argument, as far as known")
        elif rows[0].lost:
            yield self._lack(key, said, rows[0].note)
        else:
            yield Finding(Kind.IDLE, key, f"{said}: {rows[0].note}")

    def _read_trainer(self, call: ast.Call, given: Flags) -> Iterator[Finding]:
        """Read a trainer's arguments. `given`: what the config gives."""
        slots = dict(objects.slots(self.source, call))
        for key, node in slots.items():
            found, said = self.source.resolved(node), f"{key}={shown(node)}"
            if not key:
                yield self._tell("", f"{TRAINER}({argument(node)})", "give its arguments as flags")
            elif objects.is_nothing(found) or key in ("args", "train_dataset"):
                continue
            elif key == "model":
                yield from self._read_model(node, found)
            elif key == "reward_funcs":
                yield from self._read_rewards(node, given.get("reward_weights", ()))
            elif key == "peft_config":
                if not self._is_read_adapter(found):
                    yield self._tell_unread("use_peft", said, f"give {LORA_FLAGS}")
            elif key == "eval_dataset":
                if given.get("eval_strategy", ("no",)) != ("no",) or "eval_strategy" in self.typed:
                    yield self._lack(key, said, "give --eval_dataset FILE")
                else:
                    yield Finding(Kind.IDLE, said=f"{said}: eval_strategy is no, so it is not used")
            elif key == "processing_class" and objects.is_of_model(self.source, found, slots):
                yield Finding(
                    Kind.IDLE, said="processing_class: the tokeniser is the model's, in both"
                )
            else:
                lacking = f"{TRAINER} has it, and Rollcall has not"
                yield self._lack(key, said, objects.OTHERS.get(key, "") or lacking)

    def _read_model(self, node: ast.expr, found: ast.expr) -> Iterator[Finding]:
        if isinstance(found, ast.Call) and named(found.func) == "get_peft_model" and found.args:
            found = self.source.resolved(found.args[0])  # its adapter is read by itself
        loads: list[ast.Call] = []
        if isinstance(found, ast.Call) and named(found.func) == "from_pretrained":
            loads = [found]
        if not loads and not isinstance(constant(found), str):
            loads = objects.loads_of_models(self.source)
        for call in loads:
            arguments = dict(self.source.arguments(call))
            named_so = [arguments.pop(key) for key in objects.PATHS if key in arguments]
            first = next(iter([*call.args, *named_so]), None)
            for key, one in arguments.items():
                yield from self._read_weights(key, one)
            if first is not None and len(loads) == 1:
                found = self.source.resolved(first)
        value = constant(found)
        if isinstance(value, str):
            yield give("model_name_or_path", value)
        else:
            yield self._tell("model_name_or_path", f"model={shown(node)}", "give --pretrain")

    def _read_weights(self, key: str, node: ast.expr) -> Iterator[Finding]:
        """Take what loads the model: its type, its attention; say of anything else why not."""
        found = self.source.resolved(node)
        flag = objects.OF_WEIGHTS.get(key, "")
        if is_none(found) or flag in self.typed:
            return
        is_named = flag == "dtype" and isinstance(found, ast.Attribute)
        value = named(found) if is_named else constant(found)
        if flag and value is not None and value != "auto":
            yield give(flag, value)
        elif key in objects.NEEDLESS_WEIGHTS or value == "auto":
            yield Finding(
                Kind.IDLE, said=f"{key}={shown(node)}: the trainer places and loads the model"
            )
        else:
            why = "weights are bf16 or fp32" if key in objects.QUANTISED else ""
            why = why or "the model is as its files say"
            yield self._lack(key, f"{key}={shown(node)}" if key else shown(node), why)

    def _read_rewards(self, node: ast.expr, weights: tuple[str, ...]) -> Iterator[Finding]:
        """Say what to give for the reward functions, each with its weight."""
        if "reward_funcs" in self.typed:
            return
        found = self.source.resolved(node)
        functions = found.elts if isinstance(found, ast.List | ast.Tuple) else [found]
        functions = [self.source.resolved(one) for one in functions]
        known = [self.source.imported(plain_name(one)) for one in functions]
        if known and all(one.startswith("trl.") and reward_of(one) for one in known):
            yield give("reward_funcs", known)
            return
        yield Finding(Kind.DROPPED, "reward_weights")
        models = [value for one in functions if isinstance(value := constant(one), str)]
        if models and len(models) == len(functions) == 1 and not weights:
            yield give("reward_model_name_or_path", models[0])
            return
        specs = [self._reward(one) for one in functions]
        if len(weights) == len(specs):
            specs = [f"{spec}:{weight}" for spec, weight in zip(specs, weights, strict=True)]
        said = f"reward_funcs={shown(found)}"
        said += f", reward_weights=[{', '.join(weights)}]" if weights else ""
        remedy = f"give --reward {' '.join(specs)}"
        if any(spec.startswith(f"{self.file}:") for spec in specs):
            remedy += ". The file is imported: its training must stand below `if __name__ == …`"
        if guarded := sorted({named(one) for one in functions} & self.source.inner):
            remedy += f". No import finds {', '.join(guarded)}, below that line or in a function: "
            remedy += "move it to the top of the file"
        if weights and len(weights) != len(specs):
            remedy += f". TRL refuses {len(weights)} weights for {len(specs)} functions"
        if models:
            remedy += f". {' and '.join(models)}: serve the model, and give its URL"
        yield self._tell("reward_funcs", said, remedy)

    def _reward(self, node: ast.expr) -> str:
        """Return a reward for --reward: of the script, of a module that it imports, or none."""
        if isinstance(constant(node), str):
            return "URL"
        name, source = named(node), self.source
        if isinstance(node, ast.Attribute) and (module := source.modules.get(named(node.value))):
            return reward_of(f"{module}.{name}") or f"FILE.py:{name}"
        if name in source.functions:
            return f"{self.file}:{name}"
        if whole := source.imports.get(name, ""):
            return reward_of(whole) or f"FILE.py:{name}"
        return f"FILE.py:{name or 'NAME'}"

    def _is_read_adapter(self, found: ast.expr) -> bool:
        """Whether `_read_calls` reads an adapter, or the flags of the command say it."""
        maker = named(found.func) if isinstance(found, ast.Call) else ""
        return maker == ADAPTER or (maker == "get_peft_config" and bool(self.source.calls(PARSERS)))

    def _read_calls(self) -> Iterator[Finding]:
        """Read the calls that change the model, or the trainer once it is made."""
        source, end = self.source, next(iter(self.trainers), None)
        adapters = source.calls({**source.kinds(ADAPTER), "get_peft_model": ""})
        adapters = [one for one in adapters if source.is_used(one)]
        made = [call for call in adapters if named(call.func) != "get_peft_model"]
        open_ = [one for one in adapters if end and source.places.is_open(one, end)]
        for call in open_ or (made if len(made) > 1 else []):
            said = f"line {call.lineno}: {shown(call)}, which a run may not use,"
            yield self._tell_unread("use_peft", said, f"give {LORA_FLAGS}")
        for call in [] if open_ or len(made) > 1 else adapters:
            own, by = [*source.arguments(call)], path(call.func).split(".")[-2:]
            if by[-1] != "get_peft_model":
                own += [("", one) for one in call.args]
            elif not by[0].startswith("Fast"):
                continue  # peft's: its first arguments are read by themselves
            is_unsloth = by[-1] == "get_peft_model"
            for flag, default in objects.ADAPTER_DEFAULTS[is_unsloth].items():
                yield give(flag, default)
            if is_unsloth and by[0] != objects.WHOLE:
                yield self._tell_unread("lora_target_modules", shown(call), f"give {LORA_FLAGS}")
            for key, node in own:
                yield from self._read_lora(key, node)
        for line, key, text in objects.adapter_changes(source, made):
            said, flag = f"line {line}: {text}, set once the adapter is made,", "use_peft"
            yield self._tell_unread(objects.OF_ADAPTER.get(key, flag), said, f"give {LORA_FLAGS}")
        for call in source.calls(["add_callback"]):
            yield self._lack("", shown(call), objects.OTHERS["callbacks"])
        for call in source.calls(objects.parses_own_words(source)):
            yield self._tell("", shown(call), "give what it reads as flags")

    def _read_lora(self, key: str, node: ast.expr) -> Iterator[Finding]:
        found = self.source.resolved(node)
        value, flag = constant(found), objects.OF_ADAPTER.get(key, "")
        said = f"{ADAPTER}({key}={shown(node)})" if key else f"{ADAPTER}({argument(node)})"
        if is_none(found) or objects.is_usual(key, value):
            return
        if flag and value is not None:
            yield give(flag, value)
        elif flag or not key:
            yield self._tell_unread(flag, said, f"give {LORA_FLAGS}")
        else:
            yield self._lack(key, said, "adapters are plain LoRA")

    def _read_data(self) -> Iterator[Finding]:
        """Take the data set of the script's only load_dataset; else say what to give."""
        passed = objects.passed(self.source, self.trainers, "train_dataset")
        data = Data(self.source, bool(self.trainers), passed)
        for flag, value in data.flags.items():
            if not (flag == "dataset_config" and "dataset_name" in self.typed):
                yield give(flag, value)
        for one in data.untold:
            yield self._tell(*one)
        if data.changes:
            yield Finding(Kind.UNTOLD, said=f"{self.file}: {data.changes}")

    def _find_unused_options(self) -> Iterator[Finding]:
        """Say which options of the script's own no argument before has asked for."""
        options, used = self.source.options, self.source.fields.used
        for key, said in self.others.items():
            if not self.source.fields.named(key, used):
                yield Finding(Kind.ABSENT, said=said)
        for name, texts in self.own.items():
            if options.of(name) not in options.used:
                said = f"{name}={' '.join(texts)}: an option of the script's own: what the script "
                yield Finding(Kind.ABSENT, said=f"{said}does with it is not taken over")

    def _tell(self, flag: str, said: str, remedy: str) -> Finding:
        """Say what to give for an argument."""
        return Finding(Kind.UNTOLD, flag, f"{self.file}: {said} is not taken over: {remedy}")

    def _tell_unread(self, flag: str, said: str, remedy: str) -> Finding:
        return replace(self._tell(flag, said, remedy), kind=Kind.UNREAD)

    def _lack(self, flag: str, said: str, why: str) -> Finding:
        """Say that an argument has no counterpart."""
        return replace(self._tell(flag, said, why), kind=Kind.ABSENT)
