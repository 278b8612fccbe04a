"""What a Python script says of TRL's GRPO: it is read, and never run.

Each argument is taken over, or a sentence says that it is not, and what to give instead.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from trainer.config.translate import script_objects as objects
from trainer.config.translate.python_source import (
    Source,
    constant,
    is_empty,
    is_none,
    named,
    plain_name,
    shown,
)
from trainer.config.translate.rows import Command
from trainer.config.translate.script_classes import AFTER
from trainer.config.translate.script_config import CONFIG, PARSERS, Configs, Said, is_read_elsewhere
from trainer.config.translate.script_data import Data
from trainer.config.translate.trl import TRL, reward_of

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
    script = _Script(command.program, given)
    return replace(
        command,
        strange=tuple(strange),
        given={**script.given, **script.typed},
        exported=tuple(dict.fromkeys((*command.exported, *objects.environment(script.source)))),
        untold=tuple(dict.fromkeys(script.untold)),
        unread=script.unread,
        absent=tuple(dict.fromkeys((*command.absent, *script.absent))),
        idle=tuple(dict.fromkeys((*command.idle, *script.idle))),
    )


class _Script:
    """What a script gives by constants, and a sentence on each argument that is none."""

    def __init__(self, file: str, typed: Mapping[str, tuple[str, ...]]) -> None:
        self.file = file
        self.source = Source(file, typed)
        self.typed = dict(typed)
        """The command's flags that count more than the script."""
        self.own: dict[str, tuple[str, ...]] = {}
        """Those that the script's own options take."""
        self.given: dict[str, tuple[str, ...]] = {}
        self.untold: list[str] = []
        self.unread: dict[str, str] = {}
        self.absent: list[str] = []
        self.idle: list[str] = []
        self.trainers = self.source.calls(self.source.kinds(TRAINER))
        self._of_own_trainer()
        self._of_configs()
        for call in self.trainers:
            self._of_trainer(call)
        self._of_calls()
        self._of_data()
        options = self.source.options
        self.absent += [
            f"{name}={' '.join(texts)}: an option of the script's own: what the script does with "
            "it is not taken over"
            for name, texts in self.own.items()
            if options.of(name) not in options.used
        ]

    def _of_own_trainer(self) -> None:
        """Say what a trainer's class of the script changes, if it is called."""
        kinds = self.source.kinds(TRAINER)
        called = {named(call.func) for call in self.source.calls(kinds)}
        for own in sorted({kinds[one] for one in called} - {""}):
            self._of_class(own, TRAINER, objects.methods(self.source.classes[own]))

    def _of_class(self, own: str, name: str, parts: list[str]) -> None:
        said = f"{self.file}: {own} is the script's own {name}"
        if parts:
            self.absent.append(f"{said}: not taken over: {', '.join(parts)}")
        else:
            self.idle.append(f"{said}, and changes nothing")

    def _of_own_flags(self, config: Configs) -> None:
        """Take the script's own options out of the flags that count as TRL's."""
        fields = objects.own_fields(self.source, PARSERS)
        for name in [*self.typed]:
            option, value = self.source.options.of(name), " ".join(self.typed[name])
            of = fields.get(name, "")
            if option or is_read_elsewhere(self.source):
                self.own[name] = self.typed.pop(name)
            elif of and not (config.has_parsed and TRL.of(name)):
                del self.typed[name]
                self.absent.append(
                    f"{name}={value}: a field of the script's own {of}, not of "
                    f"{TRL.name}: what the script does with it is not taken over"
                )

    def _of_configs(self) -> None:
        """Take the arguments of the config that the trainer gets; of all, if that is not clear."""
        passed = [one for call in self.trainers for key, one in self._slots(call) if key == "args"]
        config = Configs(self.source, self.trainers, passed)
        self._of_own_flags(config)
        for name in config.overruled():
            self.typed.pop(name, None)
        for own in config.own:
            parts = objects.methods(own.node)
            others = [one for one in parts if not TRL.of(one) and one != AFTER]
            if others or not parts:
                self._of_class(own.node.name, CONFIG, others)
        for sentence in config.absent:
            self._tell("", sentence, "give its arguments as flags")
        if passed and not config.calls and not self.source.calls(PARSERS):
            self._tell("args", f"args={shown(passed[0])}", "give its arguments as flags")
        for one in config.said():
            if one.node is None:
                self._undecided(one)
            else:
                self._of_config(one.key, one.node)

    def _undecided(self, one: Said) -> None:
        """Say that only a run tells whether an argument has a value: none counts."""
        ours = next((row.ours for row in TRL.of(one.key) if row.ours), "")
        if ours:
            self._tell_unread(one.key, one.why, f"give --{ours}")
        else:
            self.given.pop(one.key, None)
            self._tell(one.key, one.why, one.remedy)

    def _of_config(self, key: str, node: ast.expr) -> None:
        if not key:
            self._tell("", f"{CONFIG}({_argument(node)})", "give its arguments as flags")
            return
        if key == "model_init_kwargs" and not is_none(node):
            for name, one in self.source.entries(node):
                self._of_weights(name, one)
            return
        rows = TRL.of(key)
        found = self.source.resolved(node)
        value = constant(found)
        if is_none(found):
            self.given.pop(key, None)
            self.idle.append(f"{key}=None: the same as without it")
        elif value is not None and not is_empty(found):
            self._give(key, value)
        elif ours := next((one.ours for one in rows if one.ours), ""):
            self._tell_unread(key, f"{key}={shown(node)}", f"give --{ours}")
        elif not rows:
            why = f"{TRL.name} has no such argument, as far as known"
            self._tell(key, f"{key}={shown(node)}", why)
        elif rows[0].lost:
            self._lack(key, f"{key}={shown(node)}", rows[0].note)
        elif key not in self.typed:
            self.idle.append(f"{key}={shown(node)}: {rows[0].note}")

    def _slots(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Yield the trainer's arguments by their names, also those that are given by place."""
        for place, node in enumerate(call.args):
            is_named = place < len(objects.SLOTS) and not isinstance(node, ast.Starred)
            yield (objects.SLOTS[place] if is_named else "", node)
        yield from self.source.arguments(call)

    def _of_trainer(self, call: ast.Call) -> None:
        slots = dict(self._slots(call))
        for key, node in slots.items():
            found = self.source.resolved(node)
            if not key:
                self._tell("", f"{TRAINER}({_argument(node)})", "give its arguments as flags")
            elif objects.is_nothing(found) or key in ("args", "train_dataset"):
                continue
            elif key == "model":
                self._of_model(node, found)
            elif key == "reward_funcs":
                self._of_rewards(node)
            elif key == "peft_config":
                self._of_adapter(node, found)
            elif key == "eval_dataset":
                self._of_evaluation(node)
            elif key == "processing_class" and objects.is_of_model(self.source, found, slots):
                self.idle.append("processing_class: the tokeniser is the model's, in both")
            elif remedy := objects.OTHERS.get(key, ""):
                self._lack(key, f"{key}={shown(node)}", remedy)
            else:
                self._lack(key, f"{key}={shown(node)}", f"{TRAINER} has it, and Rollcall has not")

    def _of_model(self, node: ast.expr, found: ast.expr) -> None:
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
                self._of_weights(key, one)
            if first is not None and len(loads) == 1:
                found = self.source.resolved(first)
        value = constant(found)
        if isinstance(value, str):
            self._give("model_name_or_path", value)
        else:
            self._tell("model_name_or_path", f"model={shown(node)}", "give --pretrain")

    def _of_weights(self, key: str, node: ast.expr) -> None:
        """Take what loads the model: its type, its attention; say of anything else why not."""
        found = self.source.resolved(node)
        flag = objects.OF_WEIGHTS.get(key, "")
        if is_none(found) or flag in self.typed:
            return
        is_named = flag == "dtype" and isinstance(found, ast.Attribute)
        value = named(found) if is_named else constant(found)
        if flag and value is not None and value != "auto":
            self._give(flag, value)
        elif key in objects.NEEDLESS_WEIGHTS or value == "auto":
            self.idle.append(f"{key}={shown(node)}: the trainer places and loads the model")
        else:
            why = "weights are bf16 or fp32" if key in objects.QUANTISED else ""
            why = why or "the model is as its files say"
            self._lack(key, f"{key}={shown(node)}" if key else shown(node), why)

    def _of_rewards(self, node: ast.expr) -> None:
        """Say what to give for the reward functions, each with its weight."""
        if "reward_funcs" in self.typed:
            return
        found = self.source.resolved(node)
        functions = found.elts if isinstance(found, ast.List | ast.Tuple) else [found]
        functions = [self.source.resolved(one) for one in functions]
        known = [self.source.imports.get(plain_name(one), "") for one in functions]
        if known and all(one.startswith("trl.") and reward_of(one) for one in known):
            self._give("reward_funcs", known)
            return
        weights = self.given.pop("reward_weights", ())
        models = [value for one in functions if isinstance(value := constant(one), str)]
        if models and len(models) == len(functions) == 1 and not weights:
            self._give("reward_model_name_or_path", models[0])
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
        if models:
            remedy += f". {' and '.join(models)}: serve the model, and give its URL"
        self._tell("reward_funcs", said, remedy)

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

    def _of_adapter(self, node: ast.expr, found: ast.expr) -> None:
        if isinstance(found, ast.Call) and named(found.func) == ADAPTER:
            return  # _of_calls reads it, however it is given
        by_flags = isinstance(found, ast.Call) and named(found.func) == "get_peft_config"
        if by_flags and self.source.calls(PARSERS):
            return  # the flags of the command say it
        self._tell("use_peft", f"peft_config={shown(node)}", f"give {LORA_FLAGS}")

    def _of_evaluation(self, node: ast.expr) -> None:
        strategy = self.given.get("eval_strategy", ("no",))
        if strategy == ("no",) and "eval_strategy" not in self.typed:
            self.idle.append(f"eval_dataset={shown(node)}: eval_strategy is no, so it is not used")
        else:
            self._lack("eval_dataset", f"eval_dataset={shown(node)}", "give --eval_dataset FILE")

    def _of_calls(self) -> None:
        """Read the calls that change the model, or the trainer once it is made."""
        source, end = self.source, next(iter(self.trainers), None)
        adapters = source.calls({**source.kinds(ADAPTER), "get_peft_model": ""})
        adapters = [one for one in adapters if source.is_used(one)]
        made = [call for call in adapters if named(call.func) != "get_peft_model"]
        open_ = [one for one in adapters if end and source.places.is_open(one, end)]
        for call in open_ or (made if len(made) > 1 else []):
            said = f"line {call.lineno}: {shown(call)}, which a run may not use,"
            self._tell_unread("use_peft", said, f"give {LORA_FLAGS}")
        for call in [] if open_ or len(made) > 1 else adapters:
            own = [one for one in source.arguments(call) if one[0] != "peft_config"]
            if named(call.func) == "get_peft_model" and not own:
                continue
            for flag, default in objects.ADAPTER_DEFAULTS.items():
                self._give(flag, default)
            if named(call.func) != "get_peft_model":
                own += [("", one) for one in call.args]
            for key, node in own:
                self._of_lora(key, node)
        for line, key, text in objects.adapter_changes(source, made):
            said = f"line {line}: {text}, set once the adapter is made,"
            self._tell_unread(objects.OF_ADAPTER.get(key, "use_peft"), said, f"give {LORA_FLAGS}")
        for call in source.calls(["add_callback"]):
            self._lack("", shown(call), objects.OTHERS["callbacks"])
        for call in source.calls(objects.parses_own_words(source)):
            self._tell("", shown(call), "give what it reads as flags")

    def _of_lora(self, key: str, node: ast.expr) -> None:
        found = self.source.resolved(node)
        value, flag = constant(found), objects.OF_ADAPTER.get(key, "")
        said = f"{ADAPTER}({key}={shown(node)})" if key else f"{ADAPTER}({_argument(node)})"
        if is_none(found) or objects.is_usual(key, value):
            return
        if flag and value is not None:
            self._give(flag, value)
        elif flag or not key:
            self._tell_unread(flag, said, f"give {LORA_FLAGS}")
        else:
            self._lack(key, said, "adapters are plain LoRA")

    def _of_data(self) -> None:
        """Take the data set of the script's only load_dataset; else say what to give."""
        data = Data(self.source, bool(self.trainers))
        if "dataset_name" in self.typed:
            data.flags.pop("dataset_config", None)
        for flag, value in data.flags.items():
            self._give(flag, value)
        for said, remedy in data.untold:
            self._tell("dataset_name", said, remedy)
        if data.changes:
            self.untold.append(f"{self.file}: {data.changes}")

    def _give(self, flag: str, value: object) -> None:
        values = value if isinstance(value, list | tuple) else (value,)
        self.unread.pop(flag, None)
        self.given[flag] = tuple(
            str(one).lower() if isinstance(one, bool) else str(one) for one in values
        )

    def _tell(self, flag: str, said: str, remedy: str) -> None:
        """Say what to give for an argument, unless the command has its flag."""
        if not flag or flag not in self.typed:
            self.untold.append(f"{self.file}: {said} is not taken over: {remedy}")

    def _tell_unread(self, flag: str, said: str, remedy: str) -> None:
        """Say what to give for a flag whose value cannot be read: no other value counts."""
        self._tell(flag, said, remedy)
        if flag and flag not in self.typed:
            self.given.pop(flag, None)
            self.unread[flag] = self.untold[-1]

    def _lack(self, flag: str, said: str, why: str) -> None:
        """Say that an argument has no counterpart, unless the command has its flag."""
        if flag not in self.typed:
            self.absent.append(f"{self.file}: {said} is not taken over: {why}")


def _argument(node: ast.expr) -> str:
    """Return an argument as the call has it; of a dictionary's name, with the two stars."""
    return f"**{shown(node)}" if isinstance(node, ast.Name | ast.Call) else shown(node)
