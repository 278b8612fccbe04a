"""Rows of a data set on disk: JSON Lines, Parquet, or what `datasets` saved. No hub, no network."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from env.data.directories import UnreadableDirectoryError, files_of
from env.images import git_lfs

VIDEOS = ("videos", "video")
IMAGES = ("images", "image", *VIDEOS)
"""Columns that are read besides what is asked for, so that nobody trains text without them."""
CALLS = ("tool_calls", "function_call")
"""Keys of a message that calls tools."""
TRAIN = "train"
"""The split that is read if none is named."""
FORMATS = (
    "a .jsonl file, a .parquet file, a directory of such, or one that datasets' save_to_disk wrote"
)
FROM_CSV = ". pandas.read_csv(FILE).to_json('train.jsonl', orient='records', lines=True) makes one"


class PromptError(ValueError):
    """Data that cannot be used; the message names file, line and what would be right."""


class RowError(PromptError):
    """A row that is no object, or has something else than its keys need."""


class MissingKeyError(RowError):
    """A row that lacks a key."""

    def __init__(self, sentence: str, key: str, present: Sequence[str]) -> None:
        super().__init__(sentence)
        self.key, self.present = key, present
        """The row's own keys."""


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """File and line (or row) for a message, counted from 1."""
    fields: Mapping[str, Any]

    def value(self, key: str) -> Any:
        """What the row has under `key`, with dots for nested ones. Raises PromptError."""
        column = column_of(key, self.fields)
        value = self.fields[column] if column is not None else None
        holder = column or ""
        for name in key[len(holder) :].split(".")[1:]:
            inner = value if isinstance(value, Mapping) else {}
            if name not in inner:
                raise PromptError(_missing(self.where, key, inner, f"'{holder}' has", holder))
            value, holder = inner[name], f"{holder}.{name}"
        return value


def column_of(key: str, present: Iterable[str]) -> str | None:
    """The column that has `key`: of its name, or of the first names of its dotted path."""
    names, present = key.split("."), set(present)
    prefixes = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((prefix for prefix in prefixes if prefix in present), None)


def read_rows(
    path: Path, keys: Sequence[str], *, whole: bool = False, split: str = TRAIN
) -> Iterator[Row]:
    """The rows of `path`, each with at least `keys`, whose dots are for nested ones.

    They have the columns of IMAGES too, where there are any; with `whole`, every column. `split`:
    of a directory that has several. Raises PromptError.
    """
    if path.is_dir() and _is_saved(path):
        yield from _saved_rows(_split_directory(path, split), keys, whole=whole)
    elif path.is_dir():
        for file in _files(path, split):
            yield from read_rows(file, keys, whole=whole)
    elif not path.exists():
        raise PromptError(f"{path}: no such file; wanted is {FORMATS}")
    elif _is_pointer(path):
        raise PromptError(f"{path} {git_lfs.SAID}")
    elif path.suffix == ".parquet":
        yield from _parquet_rows(path, keys, whole=whole)
    elif path.suffix in {".jsonl", ".json"}:
        yield from _json_rows(path, keys)
    else:
        made = {".csv": FROM_CSV, ".gz": f". `gunzip {path.name}` unpacks it"}.get(path.suffix, "")
        raise PromptError(f"{path}: unknown kind of file; wanted is {FORMATS}{made}")


def _is_saved(directory: Path) -> bool:
    """Return whether datasets' save_to_disk wrote a directory."""
    return any((directory / name).exists() for name in ("state.json", "dataset_dict.json"))


def _files(directory: Path, split: str) -> Sequence[Path]:
    try:
        return files_of(directory, split)
    except UnreadableDirectoryError as error:
        raise PromptError(f"{directory}: {error}") from error


def _is_pointer(path: Path) -> bool:
    try:
        return git_lfs.is_pointer(path)
    except OSError as error:
        raise PromptError(f"{path}: {error.strerror}") from error


def _json_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            if path.suffix == ".json" and (rows := _listed(path, file)) is not None:
                for number, fields in enumerate(rows, 1):
                    yield _checked(f"{path}, row {number}", fields, keys, halves=True)
                return
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield _json_row(f"{path}:{number}", line.rstrip(b"\r\n"), keys)
    except OSError as error:
        raise PromptError(f"{path}: {error.strerror}") from error


def _listed(path: Path, file: BinaryIO) -> list[Any] | None:
    """Return the rows of a file that is one JSON list; None for JSON Lines. Raises PromptError."""
    begins = next((line for line in file if not line.isspace()), b"").lstrip(b"\xef\xbb\xbf \t")
    file.seek(0)
    if not begins.startswith(b"["):
        return None
    rows: list[Any] = _parsed(str(path), file.read())
    return rows


def _json_row(where: str, line: bytes, keys: Sequence[str]) -> Row:
    return _checked(where, _parsed(where, line), keys, halves=b"\\ud" in line.lower())


def _parsed(where: str, text: bytes) -> Any:
    """Return a JSON value. Raises RowError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        fault = f"not JSON: {error.msg} at {line}column {error.colno}"
        raise RowError(f"{where}: {fault}") from error
    except UnicodeDecodeError as error:
        raise RowError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError:
        raise RowError(f"{where}: not JSON: it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise RowError(f"{where}: not JSON: {error}") from error


def _checked(where: str, fields: Any, keys: Sequence[str], *, halves: bool) -> Row:
    """Return the row of an object with `keys`. Raises PromptError.

    `halves`: whether its texts may have halves of characters.
    """
    if not isinstance(fields, dict):
        raise RowError(f"{where}: a JSON {type(fields).__name__}, where an object is wanted")
    _require(keys, fields, where)
    if halves:
        refuse_halves(where, keys, fields)
    return Row(where, fields)


def refuse_halves(where: str, keys: Sequence[str], fields: Mapping[str, Any]) -> None:
    """Raise PromptError for half of a surrogate pair: no tokeniser takes it, and no server.

    Texts have it that were cut inside an emoji.
    """
    for key in keys:
        column = column_of(key, fields) or key
        try:
            json.dumps(fields[column], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start].encode("unicode_escape").decode()
            raise PromptError(
                f"{where}: '{column}' is not Unicode: {half} is incomplete. Remove it"
            ) from None


def _parquet_rows(path: Path, keys: Sequence[str], *, whole: bool) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            columns = _columns(keys, file.schema_arrow.names, str(path), whole=whole)
            batches = file.iter_batches(columns=columns, batch_size=1024)
            yield from _arrow_rows(path, batches)
    except (ArrowException, OSError) as error:
        raise PromptError(f"{path}: not readable as Parquet: {error}") from error


def _saved_rows(path: Path, keys: Sequence[str], *, whole: bool) -> Iterator[Row]:
    from datasets import load_from_disk

    if pointer := next(filter(_is_pointer, sorted(path.glob("*.arrow"))), None):
        raise PromptError(f"{pointer} {git_lfs.SAID}")
    try:
        data = load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise PromptError(f"{path}: not readable as a saved data set: {error}") from error
    # As arrow has them: datasets itself would decode images.
    columns = _columns(keys, data.column_names, str(path), whole=whole)
    yield from _arrow_rows(path, data.select_columns(columns).with_format("arrow").iter(1024))


def _split_directory(path: Path, split: str) -> Path:
    """Where the rows lie: `path` itself, or its directory of a split."""
    if (path / "state.json").exists():
        return path
    try:
        splits = json.loads((path / "dataset_dict.json").read_text())["splits"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PromptError(f"{path}/dataset_dict.json: not readable: {error}") from error
    if split in splits:
        return path / split
    choices = ", ".join(str(path / one) for one in splits)
    raise PromptError(f"{path}: has no split '{split}'; name one of its splits: {choices}")


def _arrow_rows(path: Path, batches: Iterable[Any]) -> Iterator[Row]:
    """`batches`: arrow's record batches, or tables."""
    number = 0
    for batch in batches:
        kinds = dict(zip(batch.schema.names, batch.schema.types, strict=True))
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            fault = f"not UTF-8: {error.reason} at byte {error.start} of a text"
            raise PromptError(f"{path}, row {number + 1} or later: {fault}") from error
        for fields in rows:
            number += 1
            where = f"{path}, row {number}"
            try:
                read = {name: _read(kinds[name], fields[name]) for name in kinds}
            except json.JSONDecodeError as error:
                raise PromptError(f"{where}: a JSON column holds no JSON: {error.msg}") from error
            yield Row(where, read)


def _read(kind: Any, value: Any) -> Any:
    """`value`, of arrow's type `kind`, with what JSON texts in it say.

    arrow itself gives the text: where `datasets` saves messages whose keys differ, or a label that
    is an object in one row and a number in the next, each of them is one such text.
    """
    import pyarrow

    if value is None:
        return None
    if isinstance(kind, pyarrow.JsonType):
        return json.loads(value)
    if pyarrow.types.is_struct(kind):
        return {field.name: _read(field.type, value[field.name]) for field in kind}
    is_list = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    if any(test(kind) for test in is_list):
        return [_read(kind.value_type, one) for one in value]
    return value


def _columns(keys: Sequence[str], present: Sequence[str], where: str, *, whole: bool) -> list[str]:
    """Those that are read. Raises PromptError."""
    _require(keys, present, where)
    wanted = {column_of(key, present) for key in keys}
    return [name for name in present if whole or name in wanted or name in IMAGES]


def _require(keys: Sequence[str], present: Iterable[str], where: str) -> None:
    present = list(present)
    for key in keys:
        if column_of(key, present) is None:
            raise MissingKeyError(_missing(where, key, present, "its keys"), key, present)


def _missing(
    where: str, key: str, present: Iterable[str], whose: str, holder: str | None = None
) -> str:
    """Return what is said of a missing key. `holder`: the path of the object that lacks it."""
    present = list(present)
    whole = present if holder is None else [f"{holder}.{name}" for name in present]
    near = difflib.get_close_matches(key, whole, n=1)
    advice = f"; did you mean '{near[0]}'?" if near else ""
    have = ", ".join(f"'{name}'" for name in present) or "none"
    return f"{where}: the key '{key}' is missing; {whose}: {have}{advice}"


def chat_of_text(text: str) -> list[dict[str, Any]] | None:
    """Return the messages that a JSON text holds, as OpenRLHF-M writes them.

    None for any other text.
    """
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if is_chat(value) else None


def without_gaps(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without the keys, apart from their content, that have no value.

    In Parquet each message has the keys of all others. Chat templates ask whether a key is there.
    The content of tool calls may be missing, as null is.
    """
    return [
        {
            **({} if "content" in turn else {"content": None}),
            **{n: value for n, value in turn.items() if value is not None or n == "content"},
        }
        for turn in messages
    ]


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def is_message(value: Any) -> bool:
    """Return whether a value has a role and a content; tool calls may do without the latter."""
    return isinstance(value, Mapping) and bool(
        "role" in value
        and (value.get("content") is not None or any(value.get(name) for name in CALLS))
    )
