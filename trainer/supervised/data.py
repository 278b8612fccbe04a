"""Rows → data sets with the columns that TRL's trainers read."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Json, List, Value

from contract.options import ConfigError
from env.data.prompts import PromptError
from env.data.rows import Row, chat_of_text, is_chat, read_rows, without_gaps
from env.data.template_messages import fitted
from env.episodes.codec import TextCodec
from trainer.config.data_sets import is_hub_name
from trainer.models import hub
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import MARGIN, columns, data_faults, datasets_of, misfit
from trainer.supervised.stages import PreferenceStageFlags, RewardFlags, SFTFlags

Record = dict[str, Any]
"""A row with TRL's names: prompt, completion, messages, text, chosen, rejected, margin."""
ANSWERS = ("completion", "chosen", "rejected")
FIRST = ("prompt", "text", "chosen", "rejected")
"""Columns that begin a text; the answers only where there is no prompt."""
FORMAT = 2
"""Of kept rows; messages of 1 had the keys of all others."""


def load(flags: StageFlags, names: str, into: Path | None) -> Dataset:
    """Return the rows of the data sets that a flag names.

    `into`: a directory of all ranks, where the first one keeps the rows: then the others, and later
    attempts, need not read them again. None: the rows are in memory. Raises PromptError and
    HubError.
    """
    if into is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _made(_columns(flags, names, Path(temporary)))
    kept = into / _name(flags, names)
    if not (kept / "state.json").exists():
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        _made(_columns(flags, names, into)).save_to_disk(partial)
        with suppress(OSError):  # another rank was first
            partial.rename(kept)
        shutil.rmtree(partial, ignore_errors=True)
    return Dataset.load_from_disk(str(kept))


def where(flags: StageFlags, names: str, number: int) -> str:
    """Return the place of a row, counted from 0 over all data sets that a flag names."""
    with tempfile.TemporaryDirectory() as temporary:
        into = flags.run_dir / "data" if flags.run_dir else Path(temporary)
        rows = (row for name in datasets_of(names) for row in _rows(flags, name, into))
        return next(islice(rows, number, None)).where


def refused(rows: Dataset, tokenizer: Any) -> tuple[int, str] | None:
    """Return the number of the first row that the chat template refuses, and why; None if none."""
    for number, row in enumerate(rows):
        for chat in filter(is_chat, _rendered(row)):
            try:
                tokenizer.apply_chat_template(chat, tokenize=False)
            except Exception as error:  # a template may fail in any way
                return number, " ".join(str(error).split())
    return None


def _rendered(row: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what TRL renders of a row."""
    if "messages" in row:
        yield row["messages"]
    answers = [row[name] for name in ANSWERS if name in row]
    if "prompt" in row:
        yield row["prompt"]
        yield from (row["prompt"] + answer for answer in answers)
    else:
        both = zip(*answers, strict=False)
        yield [turn for turn, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        yield from answers


def _made(columns: Mapping[str, list[Any]]) -> Dataset:
    """Return a data set of these columns, of which each has values of one kind.

    Messages are kept as JSON. As arrow's own type each message would have the keys of all others,
    and each tool call the arguments of all others, with None.
    """
    types = {"a text": Value("string"), "a number": Value("float64"), "messages": List(Json())}
    kinds = {name: types[_kind(values[0])] for name, values in columns.items()}
    return Dataset.from_dict(dict(columns), features=Features(kinds))


def fitting(rows: Dataset, tokenizer: Any) -> Dataset:
    """Return rows as TRL is to tokenise them.

    Texts begin without BOS where the tokeniser writes it. The chat template can read tool calls.
    """
    codec = TextCodec(tokenizer)
    for name in rows.column_names:
        if isinstance(rows[0][name], list) and any(map(_calls, rows[name])):
            template = tokenizer.get_chat_template()
            rows = _replaced(rows, name, [fitted(chat, template) for chat in rows[name]])
    first = [name for name in FIRST if name in rows.column_names and isinstance(rows[0][name], str)]
    for name in ["prompt"] if "prompt" in first else first:
        texts = list(map(codec.without_first, rows[name]))
        if texts != rows[name][:]:
            rows = _replaced(rows, name, texts)
    return rows


def _calls(chat: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a chat has tool calls."""
    return any("tool_calls" in turn or turn.get("content") is None for turn in chat)


def _replaced(rows: Dataset, name: str, values: list[Any]) -> Dataset:
    """Return rows with other values in a column."""
    return _made({one: values if one == name else rows[one][:] for one in rows.column_names})


def _name(flags: StageFlags, names: str) -> str:
    """Return a name for the rows that these flags make of these files, as they are now."""
    files = [file for name in datasets_of(names) for file in _files(name)]
    stats = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    shape = (flags.apply_chat_template, flags.input_template, flags.max_samples)
    made = (type(flags).__name__, names, columns(flags), shape, _kind_of_example(flags), stats)
    return f"rows-{hashlib.sha256(repr((FORMAT, made)).encode()).hexdigest()[:16]}"


def _kind_of_example(flags: StageFlags) -> object:
    return (flags.multiturn, flags.pretrain_mode) if isinstance(flags, SFTFlags) else None


def _files(name: str) -> list[Path]:
    """Return the files of a data set on this disk."""
    path = Path(name)
    found = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in found if file.is_file())


def _columns(flags: StageFlags, names: str, into: Path) -> dict[str, list[Any]]:
    """Return the values of each of TRL's columns. `into`: where rows of the hub's are kept."""
    records = [record for name in datasets_of(names) for record in _records(flags, name, into)]
    if not records:
        raise PromptError(f"{names}: holds no rows")
    first = {name: _kind(value) for name, value in records[0].items()}
    for number, record in enumerate(records, 1):
        if (kinds := {name: _kind(value) for name, value in record.items()}) != first:
            raise PromptError(
                f"{names}: row {number} has {_said(kinds)}, and the first row has {_said(first)}. "
                "Make all rows alike"
            )
    return {name: [record[name] for record in records] for name in first}


def _rows(flags: StageFlags, name: str, into: Path) -> Iterator[Row]:
    path = hub.rows(name, into) if is_hub_name(name) else Path(name)
    if path != Path(name) and (faults := list(data_faults(flags, "--dataset", str(path)))):
        raise ConfigError(faults)
    return islice(read_rows(path, list(columns(flags).values())), flags.max_samples)


def _records(flags: StageFlags, name: str, into: Path) -> Iterator[Record]:
    make = _maker(flags)
    for row in _rows(flags, name, into):
        values = {flag: row.value(column) for flag, column in columns(flags).items()}
        record = make(row, values)
        answers = [record[name] for name in ANSWERS if name in record]
        if why := misfit(record.get("prompt"), answers):
            raise PromptError(f"{row.where}: {why}")
        yield record


def _maker(flags: StageFlags) -> Callable[[Row, Mapping[str, Any]], Record]:
    """Return what makes TRL's record of a row and its values by flag."""
    if isinstance(flags, SFTFlags):
        return lambda row, values: _example(flags, row, values)
    assert isinstance(flags, PreferenceStageFlags)
    return lambda row, values: _pair(flags, row, values)


def _example(flags: SFTFlags, row: Row, values: Mapping[str, Any]) -> Record:
    prompt = _turns(flags, row, "user", values["--input_key"])
    if flags.answers_apart:
        answer = _turns(flags, row, "assistant", values["--output_key"], answers=True)
        if flags.multiturn:
            return {"messages": _with_assistant(flags, row, prompt + answer)}
        return {"prompt": prompt, "completion": answer}
    if isinstance(prompt, str):
        if not flags.pretrain_mode:
            raise PromptError(f"{row.where}: has no answer: '{flags.input_key}' is a text")
        return {"text": prompt}
    if flags.multiturn or flags.pretrain_mode:
        return {"messages": _with_assistant(flags, row, prompt)}
    if len(prompt) < 2 or prompt[-1]["role"] != "assistant":
        raise PromptError(f"{row.where}: the last message must be the assistant's, after a prompt")
    return {"prompt": prompt[:-1], "completion": prompt[-1:]}


def _with_assistant(flags: SFTFlags, row: Row, turns: Any) -> Any:
    """Return the turns. Raises PromptError if those of the assistant are trained, and none is."""
    if not flags.pretrain_mode and all(turn["role"] != "assistant" for turn in turns):
        raise PromptError(
            f"{row.where}: has no turn of the assistant, and --multiturn trains those"
        )
    return turns


def _pair(flags: PreferenceStageFlags, row: Row, values: Mapping[str, Any]) -> Record:
    record: Record = {}
    if "--prompt_key" in values:
        record["prompt"] = _turns(flags, row, "user", values["--prompt_key"])
    for name in ("chosen", "rejected"):
        answer = values[f"--{name}_key"]
        record[name] = _turns(flags, row, "assistant", answer, answers=True)
    if isinstance(flags, RewardFlags) and flags.margin_loss:
        margin = values["--margin_loss"]
        if (
            isinstance(margin, bool)
            or not isinstance(margin, int | float)
            or not math.isfinite(margin)
        ):
            raise PromptError(f"{row.where}: '{MARGIN}' holds {margin}, where a number is wanted")
        record["margin"] = float(margin)
    return record


def _turns(flags: StageFlags, row: Row, role: str, said: Any, *, answers: bool = False) -> Any:
    """Return a text, or a list of messages. The chat template makes a text one message.

    `answers`: the text is what the model is to say, which no template for prompts changes.
    """
    if isinstance(said, str) and (messages := chat_of_text(said)) is not None:
        said = messages
    if isinstance(said, str):
        if flags.apply_chat_template:
            return [{"role": role, "content": said}]
        template = None if answers else flags.input_template
        return template.replace("{}", said) if template else said
    if not is_chat(said):
        raise PromptError(f"{row.where}: {said!r:.60} is neither a text nor a list of messages")
    return without_gaps(said)


def _kind(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return "a number"
    return "a text" if isinstance(value, str) else "messages"


def _said(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{kind} as {name}" for name, kind in kinds.items())
