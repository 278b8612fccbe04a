"""What a Python script says of TRL's GRPO: it is read, and never run."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trainer.config.translate.rows import Command
from trainer.config.translate.trl import TRL, reward_of

OF_GRPO = {"num_generations", "max_completion_length", "reward_funcs", "steps_per_generation"}
"""Flags that no other trainer of TRL's has."""
CONFIG, TRAINER, ADAPTER, DATA = "GRPOConfig", "GRPOTrainer", "LoraConfig", "load_dataset"
ADAPTER_DEFAULTS = {"use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""Those of the package peft, which are not those of TRL's flags."""
OF_ADAPTER = {
    **{"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"},
    **{"target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"},
    **{"use_rslora": "use_rslora", "use_dora": "use_dora"},
}
"""Arguments of LoraConfig → the flags of TRL that say them."""
FILES = ("json", "csv", "parquet", "text")
"""What load_dataset calls the kinds of files, which are named by data_files."""
LORA_FLAGS = "--lora_rank, --lora_alpha and --target_modules"
MOST_SHOWN = 60
"""Characters of an argument in a sentence."""


def is_grpo(script: str, flags: Collection[str]) -> bool:
    """Return whether a script's flags, or its text if it is here, are those of TRL's GRPO."""
    if OF_GRPO & set(flags):
        return True
    return bool(_calls(_tree(script), CONFIG) or _calls(_tree(script), TRAINER))


def with_script(command: Command) -> Command:
    """Return the command with the constants that its own script gives; typed flags count more."""
    if not command.program.endswith(".py") or not is_grpo(command.program, ()):
        return command
    script = _Script(command.program, command.given)
    return replace(command, given={**script.given, **command.given}, untold=tuple(script.untold))


class _Script:
    """What a script gives by constants, and a sentence on each argument that is none."""

    def __init__(self, file: str, typed: Collection[str]) -> None:
        self.file, self.typed = file, typed
        self.tree = _tree(file)
        self.given: dict[str, tuple[str, ...]] = {}
        self.untold: list[str] = []
        for call in _calls(self.tree, CONFIG):
            for key, node in _arguments(call):
                self._of_config(key, node)
        for call in _calls(self.tree, TRAINER):
            self._of_trainer(dict(_arguments(call)))
        self._of_data()

    def _of_config(self, key: str, node: ast.expr) -> None:
        value = _constant(self._resolved(node))
        rows = TRL.of(key)
        if value is not None and rows:
            self._give(key, value)
        elif not (isinstance(node, ast.Constant) and node.value is None):
            for row in [one for one in rows if one.ours or one.lost][:1]:
                remedy = f"give --{row.ours}" if row.ours else row.note
                self._tell(key, f"{key}={_shown(node)}", remedy)

    def _of_trainer(self, arguments: Mapping[str, ast.expr]) -> None:
        for key, node in arguments.items():
            found = self._resolved(node)
            if key == "model":
                self._of_model(node, found)
            elif key == "reward_funcs":
                self._of_rewards(node)
            elif key == "peft_config":
                self._of_adapter(node, found)

    def _of_model(self, node: ast.expr, found: ast.expr) -> None:
        if isinstance(found, ast.Call) and _name(found.func) == "from_pretrained" and found.args:
            found = self._resolved(found.args[0])
        value = _constant(found)
        if isinstance(value, str):
            self._give("model_name_or_path", value)
        else:
            self._tell("model_name_or_path", f"model={_shown(node)}", "give --pretrain")

    def _of_rewards(self, node: ast.expr) -> None:
        """Say what to give for the reward functions, each with its weight."""
        if "reward_funcs" in self.typed:
            return
        found = self._resolved(node)
        functions = found.elts if isinstance(found, ast.List | ast.Tuple) else [found]
        weights = self.given.pop("reward_weights", ())
        specs = [self._reward(one) for one in functions]
        if len(weights) == len(specs):
            specs = [f"{spec}:{weight}" for spec, weight in zip(specs, weights, strict=True)]
        shown = f"reward_funcs={_shown(found)}"
        shown += f", reward_weights=[{', '.join(weights)}]" if weights else ""
        remedy = f"give --reward {' '.join(specs)}"
        if any(spec.startswith(f"{self.file}:") for spec in specs):
            remedy += ". The file is imported: its training must stand below `if __name__ == …`"
        self._tell("reward_funcs", shown, remedy)

    def _reward(self, node: ast.expr) -> str:
        """Return a reward for --reward: of the script, of a module that it imports, or none."""
        name = _name(node)
        for one in ast.walk(self.tree):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name:
                return f"{self.file}:{name}"
            if isinstance(one, ast.ImportFrom) and one.module:
                for alias in one.names:
                    if (alias.asname or alias.name) == name:
                        return reward_of(f"{one.module}.{alias.name}") or f"FILE.py:{name}"
        return f"FILE.py:{name or 'NAME'}"

    def _of_adapter(self, node: ast.expr, found: ast.expr) -> None:
        if isinstance(found, ast.Constant) and found.value is None:
            return
        if not isinstance(found, ast.Call) or _name(found.func) != ADAPTER:
            self._tell("use_peft", f"peft_config={_shown(node)}", f"give {LORA_FLAGS}")
            return
        for flag, default in ADAPTER_DEFAULTS.items():
            self._give(flag, default)
        for key, one in _arguments(found):
            if flag := OF_ADAPTER.get(key, ""):
                value = _constant(self._resolved(one))
                if value is not None:
                    self._give(flag, value)
                elif not isinstance(one, ast.Constant):
                    self._tell(flag, f"{ADAPTER}({key}={_shown(one)})", f"give {LORA_FLAGS}")

    def _of_data(self) -> None:
        """Take the data set of the script's only load_dataset; else say what to give."""
        calls = _calls(self.tree, DATA)
        if not calls:
            if _calls(self.tree, TRAINER):
                self._tell("dataset_name", "train_dataset", "give --prompt_data")
            return
        words = [_constant(self._resolved(one)) for one in calls[0].args]
        named = {key: _constant(self._resolved(one)) for key, one in _arguments(calls[0])}
        name = words[0] if words else named.get("path")
        if name in FILES:
            name = named.get("data_files")
        if len(calls) > 1 or not isinstance(name, str):
            shown = " and ".join(_shown(call) for call in calls)
            self._tell("dataset_name", shown, "give --prompt_data")
            return
        self._give("dataset_name", name)
        config = words[1] if len(words) > 1 else named.get("name")
        if isinstance(config, str):
            self._give("dataset_config", config)
        if isinstance(split := named.get("split"), str):
            self._give("dataset_train_split", split)

    def _give(self, flag: str, value: object) -> None:
        if flag == "dataset_config" and "dataset_name" in self.typed:
            return
        values = value if isinstance(value, list | tuple) else (value,)
        self.given[flag] = tuple(
            str(one).lower() if isinstance(one, bool) else str(one) for one in values
        )

    def _tell(self, flag: str, shown: str, remedy: str) -> None:
        """Say what to give for an argument, unless the command has its flag."""
        if flag not in self.typed:
            self.untold.append(f"{self.file}: {shown} is not taken over: {remedy}")

    def _resolved(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for, if the script assigns it once; else the node itself."""
        if not isinstance(node, ast.Name):
            return node
        values = [
            one.value
            for one in ast.walk(self.tree)
            if isinstance(one, ast.Assign) and any(_name(to) == node.id for to in one.targets)
        ]
        return values[0] if len(values) == 1 else node


def _tree(script: str) -> ast.Module:
    """Return a script's syntax; that of an empty one if it is not here, or is no Python."""
    try:
        return ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _calls(tree: ast.Module, name: str) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if _name(call.func) == name]


def _arguments(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    yield from ((one.arg, one.value) for one in call.keywords if one.arg)


def _name(node: ast.expr) -> str:
    """Return the last name of `a.b.c`; "" of another expression."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _constant(node: ast.expr) -> object:
    """Return a number, a text, a switch, or a list of them; None of another expression."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    scalars = value if isinstance(value, list | tuple) else [value]
    return value if all(isinstance(one, str | int | float) for one in scalars) else None


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
