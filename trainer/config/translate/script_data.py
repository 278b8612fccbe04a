"""Which data set a script of TRL's GRPO loads, and what it changes in the rows."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trainer.config.translate.python_arithmetic import MOST_DEPTH
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
from trainer.config.translate.script_fields import PARSERS
from trainer.config.translate.script_objects import own_fields

LOAD = "load_dataset"
LOADERS = (LOAD, "load_from_disk", "from_list", "from_dict", "from_json", "from_pandas")
FILES = ("json", "csv", "parquet", "text")
"""What load_dataset calls the kinds of files, which are named by data_files."""
CHANGES = (
    "map", "filter", "select", "take", "skip", "shard", "train_test_split", "cast", "cast_column",
    "rename_column", "rename_columns", "remove_columns", "select_columns", "add_column", "flatten",
)  # fmt: skip
"""Methods of a data set that change its rows."""
JOINS = ("concatenate_datasets", "interleave_datasets")
ROWS = "--prompt_data reads the rows as they are stored"
USELESS = ("streaming", "num_proc", "cache_dir", "token", "trust_remote_code", "keep_in_memory")
PLACES = ("path", "name", "data_dir", "data_files", "split")
"""The first arguments of load_dataset."""
KNOWN = (*PLACES, *USELESS)
SPLIT, USUAL_SPLIT = "dataset_train_split", "train"
OTHER_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
PICKS = ("get", "pop", "values", "items")
"""Methods of a data set that give one of its splits."""


class Data:
    """The flags of TRL that say the data set, and sentences on what they do not say."""

    def __init__(self, source: Source, trains: bool, passed: Sequence[ast.expr]) -> None:
        """`passed`: what the trainers get as `train_dataset`."""
        self.source = source
        self.flags: dict[str, str] = {}
        self.untold: list[tuple[str, str, str]] = []
        """A flag of TRL, what is not taken over of it, and what to give."""
        calls = source.calls([LOAD])
        ends = source.calls(source.kinds("GRPOTrainer"))
        if len(calls) == 1 and ends and source.places.is_open(calls[0], ends[0]):
            said = f"line {calls[0].lineno}: {shown(calls[0])}, which a run may not use,"
            self._tell(said, "give --prompt_data")
        elif len(calls) == 1:
            self._of_load(calls[0])
            if not any(key in ("split", "") for key, _ in self._arguments(calls[0])):
                self._of_splits(passed)
        elif calls:
            said = " and ".join(shown(call) for call in calls)
            self._tell(said, "give --prompt_data")
        elif trains:
            self._tell("train_dataset", "give --prompt_data")
        self.changes = self._changes()
        """A sentence on what the script changes in the rows; "" if nothing."""

    def _of_load(self, call: ast.Call) -> None:
        given = dict(self._arguments(call))
        values = {key: constant(self.source.resolved(one)) for key, one in given.items()}
        name = values.get("path")
        if name in FILES:
            name = values.get("data_files")
            given.pop("data_dir", None)
        if not isinstance(name, str):
            self._tell(shown(call), "give --prompt_data")
            return
        self.flags["dataset_name"] = name
        for key, flag in (("name", "dataset_config"), ("split", "dataset_train_split")):
            value = values.get(key)
            if isinstance(value, str):
                self.flags[flag] = value
            elif key in given and not is_none(given[key]):
                remedy = "behind a colon of --prompt_data" if key == "name" else "by --prompt_split"
                said = f"{LOAD}({key}={shown(given[key])})"
                self._tell(said, f"give it {remedy}")
        for key, node in given.items():
            if key not in KNOWN:
                said = f"{LOAD}({key}={shown(node)})" if key else f"{LOAD}(**{shown(node)})"
                self._tell(said, "give --prompt_data with the files themselves")

    def _tell(self, said: str, remedy: str, flag: str = "dataset_name") -> None:
        self.untold.append((flag, said, remedy))

    def _arguments(self, call: ast.Call) -> list[tuple[str, ast.expr]]:
        return [*zip(PLACES, call.args, strict=False), *self.source.arguments(call)]

    def _of_splits(self, passed: Sequence[ast.expr]) -> None:
        """Take the split of the data set that the trainers get, as in `rows["test"]`."""
        found = {self._split(one) for one in passed}
        if len(found) == 1 and (split := found.copy().pop()):
            self.flags[SPLIT] = split
        elif found - {""}:
            for one in passed:
                said = f"train_dataset={shown(one)}: its split"
                self._tell(said, "give it by --prompt_split", SPLIT)

    def _split(self, node: ast.expr) -> str | None:
        """Return the split that an expression has; "" if it says none, None if a run tells."""
        split: str | None = ""
        names = self._names()
        for _ in range(MOST_DEPTH):
            node = self.source.resolved(node)
            if isinstance(node, ast.Subscript):
                split = self._key(node.slice) if not _is_rows(node.slice) else split
                node = node.value
            elif isinstance(node, ast.Call) and named(node.func) == LOAD:
                return split
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                split = "" if node.func.attr == "train_test_split" else split
                split = None if node.func.attr in PICKS else split
                node = node.func.value
            else:
                break
        if split in (USUAL_SPLIT, None):
            return split
        parted = self.source.calls(["train_test_split"])
        if split:
            return split if plain_name(node) in names and not parted else None
        keys = {
            self._key(one.slice)
            for one in self.source.nodes
            if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load)
            if self._is_data(one.value, names) or constant(one.slice) in OTHER_SPLITS
            if not _is_rows(one.slice)
        }
        return None if keys - {USUAL_SPLIT, ""} else ""

    def _key(self, node: ast.expr) -> str | None:
        """Return the name of a split; "" if TRL's own flag has it, None if only a run tells."""
        if named(node) == SPLIT and SPLIT not in own_fields(self.source, PARSERS):
            return ""
        value = constant(self.source.resolved(node))
        return value if isinstance(value, str) else None

    def _changes(self) -> str:
        names = self._names()
        found: dict[str, None] = {}
        calls = [one for one in self.source.nodes if isinstance(one, ast.Call)]
        for call in sorted(calls, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0)):
            changes = isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES
            if named(call.func) in JOINS:
                found[named(call.func)] = None
            elif changes and self._is_data(call.func, names):
                found[f".{named(call.func)}({', '.join(map(shown, call.args))})"] = None
        if not found:
            return ""
        return (
            f"{', '.join(found)}: {ROWS}, and not as the script changes them. Write the changed "
            'rows by data.to_json("train.jsonl") and give that file, or name the columns by '
            "--input_key and --label_key"
        )

    def _names(self) -> set[str]:
        """Return the names of data sets: what loads one, or is made of one."""
        names: set[str] = set()
        built = [one for one in self.source.nodes if isinstance(one, BUILT) and one.value]
        for _ in range(len(built)):
            before = len(names)
            for one in built:
                if one.value is not None and self._is_data(one.value, names):
                    for to in targets(one):
                        parts = to.elts if isinstance(to, ast.Tuple) else [to]
                        names |= {plain_name(part) for part in parts} - {""}
            if len(names) == before:
                break
        return names

    def _is_data(self, node: ast.expr, names: set[str]) -> bool:
        """Whether an expression is a data set: its first part loads one, or has such a name."""
        while True:
            if isinstance(node, ast.Name):
                return node.id in names
            if isinstance(node, ast.Call):
                if named(node.func) in (*LOADERS, *JOINS):
                    return True
                node = node.func
            elif isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            else:
                return False


def _is_rows(node: ast.expr) -> bool:
    """Whether a subscript chooses rows, by their places."""
    return isinstance(node, ast.Slice) or isinstance(getattr(node, "value", None), int)
