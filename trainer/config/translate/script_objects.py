"""What the objects of a script of TRL's GRPO have here: model, adapter, and the trainer's parts."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from trainer.config.translate.python_source import (
    BUILT,
    Source,
    constant,
    is_none,
    named,
    plain_name,
    shown,
    targets,
)
from trainer.config.translate.script_flow import FUNCTIONS

SLOTS = (
    "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class",
    "reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config",
    "tools", "rollout_func", "environment_factory",
)  # fmt: skip
"""The arguments of TRL 1.16's GRPOTrainer, in their order."""
EPISODES = "episodes of several turns are environments: --environment or --agent_func_path"
QUANTISED = ("quantization_config", "load_in_8bit", "load_in_4bit")
OTHERS = {
    "processing_class": "the tokeniser is the one in the model's directory: save it there",
    "reward_processing_classes": "a reward model has its own tokeniser, from its directory",
    "callbacks": "hooks in the loop are absent; metrics.jsonl has each step",
    "optimizers": "AdamW is the only optimizer: give --lr_scheduler and --actor_learning_rate",
    "quantization_config": "weights are bf16 or fp32",
    "tools": EPISODES,
    "rollout_func": EPISODES,
    "environment_factory": EPISODES,
}
"""Arguments of the trainer that have no counterpart → why, or what to give."""
OF_FILES = ("parse_yaml_file", "parse_json_file", "parse_dict")
"""Methods of a parser that do not read the command."""
OF_WORDS = ("args", "args_filename", "args_file_flag")
"""Arguments of a parser's method that give other words than the command's."""
PATHS = ("pretrained_model_name_or_path", "model_name")
"""How from_pretrained calls its first argument; the second is unsloth's."""
OF_WEIGHTS = {
    **{"torch_dtype": "dtype", "dtype": "dtype", "attn_implementation": "attn_implementation"},
    **{"trust_remote_code": "trust_remote_code", "revision": "model_revision"},
    **{"load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"},
}
"""Arguments of from_pretrained → the flags of TRL that say them."""
NEEDLESS_WEIGHTS = ("device_map", "low_cpu_mem_usage", "use_cache", "cache_dir", "token")
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTER_DEFAULTS: Mapping[bool, Mapping[str, object]] = {
    False: {"use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0},
    True: {
        **{"use_peft": True, "lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.0},
        "lora_target_modules": LAYERS,
    },
}
"""Whether it is unsloth's get_peft_model, or the package peft → what is not TRL's default."""
WHOLE = "FastLanguageModel"
"""Its class that adapts LAYERS; others choose by more arguments."""
OF_ADAPTER = {
    **{"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"},
    **{"target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"},
    **{"use_rslora": "use_rslora", "use_dora": "use_dora"},
}
"""Arguments of LoraConfig → the flags of TRL that say them."""
USUAL = {
    **{"bias": "none", "task_type": None, "inference_mode": False, "init_lora_weights": True},
    **{"use_gradient_checkpointing": None, "random_state": None, "fan_in_fan_out": False},
}
"""Arguments of an adapter that change nothing with this value; None: with any."""


def is_nothing(node: ast.expr) -> bool:
    """Whether an expression is None, or has only that."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(map(is_none, parts))


def loads_of_models(source: Source) -> list[ast.Call]:
    """Return the calls that load a model, by the names of their classes."""
    calls = source.calls(["from_pretrained"])
    classes = [named(getattr(call.func, "value", call.func)) for call in calls]
    return [call for call, one in zip(calls, classes, strict=True) if "Model" in one or "LM" in one]


def is_usual(key: str, value: object) -> bool:
    return key in USUAL and USUAL[key] in (None, value)


def is_of_model(source: Source, found: ast.expr, slots: Mapping[str, ast.expr]) -> bool:
    """Whether a tokeniser is loaded from where the model is."""
    if not (isinstance(found, ast.Call) and named(found.func) == "from_pretrained" and found.args):
        return False
    model = source.resolved(slots.get("model", found))
    if isinstance(model, ast.Call) and model.args:
        model = source.resolved(model.args[0])
    own = source.resolved(found.args[0])
    return ast.dump(own) == ast.dump(model)


def parses_own_words(source: Source) -> list[str]:
    """Return the methods of a parser by which the script gives flags or defaults by itself."""
    names = [*OF_FILES]
    if source.calls(("HfArgumentParser", "TrlParser")):
        names += ["set_defaults", "set_defaults_with_config"]
        parses = ("parse_args_into_dataclasses", "parse_args_and_config")
        with_words = [
            call
            for call in source.calls(parses)
            if call.args or {key.arg for key in call.keywords} & {*OF_WORDS, None}
        ]
        names += sorted({named(call.func) for call in with_words})
    return names


def methods(own: ast.ClassDef) -> list[str]:
    """Return what a class defines: its methods, and its fields."""
    fields = [named(one.target) for one in own.body if isinstance(one, ast.AnnAssign)]
    return [*fields, *(one.name for one in own.body if isinstance(one, FUNCTIONS))]


def own_fields(source: Source, parsers: Collection[str]) -> dict[str, str]:
    """Return the fields of the script's own classes that a parser fills by flags → the class."""
    given = [part for call in source.calls(parsers) for part in ast.walk(call)]
    names = [plain_name(part) for part in given if isinstance(part, ast.expr)]
    classes = [source.classes[name] for name in names if name in source.classes]
    found: dict[str, str] = {}
    for own in classes:  # grows by the classes' own bases
        bases = (source.classes.get(plain_name(base)) for base in own.bases)
        classes += [base for base in bases if base is not None and base not in classes]
        fields = (plain_name(one.target) for one in own.body if isinstance(one, ast.AnnAssign))
        found |= {name: own.name for name in fields if name and name not in found}
    return found


def adapter_changes(source: Source, made: Sequence[ast.Call]) -> Iterator[tuple[int, str, str]]:
    """Yield line, attribute and text of what changes an adapter once it is made."""
    names = {
        plain_name(to)
        for one in source.nodes
        if isinstance(one, BUILT) and one.value in made
        for to in targets(one)
    } - {""}
    for one in source.nodes:
        if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load):
            if plain_name(one.value) in names:
                yield one.lineno, one.attr, ast.unparse(one)
        elif isinstance(one, ast.Call) and named(one.func) == "setattr" and _of(one) in names:
            yield one.lineno, str(constant(one.args[1])), ast.unparse(one)


def _of(call: ast.Call) -> str:
    return plain_name(call.args[0]) if len(call.args) == 3 else ""


def passed(source: Source, trainers: Sequence[ast.Call], name: str) -> list[ast.expr]:
    """Return what the trainers get as an argument."""
    return [one for call in trainers for key, one in slots(source, call) if key == name]


def slots(source: Source, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the trainer's arguments by their names, also those that are given by place."""
    for place, node in enumerate(call.args):
        is_named = place < len(SLOTS) and not isinstance(node, ast.Starred)
        yield (SLOTS[place] if is_named else "", node)
    yield from source.arguments(call)


def argument(node: ast.expr) -> str:
    """Return an argument as the call has it; of a dictionary's name, with the two stars."""
    return f"**{shown(node)}" if isinstance(node, ast.Name | ast.Call) else shown(node)
