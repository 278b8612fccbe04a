"""Which command a run has: its recipe, the job's words, and what the file of --config says."""

from __future__ import annotations

import hashlib
import json
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir

CONFIG = "--config"


def fingerprint(settings: Settings) -> str:
    """Return the fingerprint of the job's command: of its words, and of the files of its --config.

    It is `WORDS-FILES`; `WORDS` alone without such files, or if one of them cannot be read now.
    Comments and the order of keys do not count.
    """
    words = _digest([settings.recipe, *settings.job])
    try:
        files = [
            _flags(working_dir.content(settings.runtime_env, path), path)
            for path in _config_files(settings.job)
        ]
    except (OSError, LookupError, zipfile.BadZipFile):
        return words
    return f"{words}-{_digest(files)}" if files else words


def is_same(one: str | None, other: str | None) -> bool:
    """Pure: whether two fingerprints are of the same command.

    The words decide if one fingerprint has no files, as those of earlier versions have none.
    """
    if one is None or other is None:
        return False
    (words, _, files), (other_words, _, other_files) = one.partition("-"), other.partition("-")
    return words == other_words and (files == other_files or not files or not other_files)


def has_same_words(one: str, other: str) -> bool:
    """Pure: whether two fingerprints differ in the files of --config at most."""
    return one.partition("-")[0] == other.partition("-")[0]


def _config_files(words: Sequence[str]) -> Iterator[Path]:
    """Yield the files that the words name by --config."""
    for word, following in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        if name == CONFIG and (path := value if equals else following):
            yield Path(path)


def _flags(content: bytes, path: Path) -> Any:
    """Return the flags of a file; the text of a file that cannot be parsed."""
    text = content.decode(errors="replace")
    try:
        flags = tomllib.loads(text) if path.suffix == ".toml" else yaml_text.parsed(text)
        json.dumps(flags, sort_keys=True, default=str)
    except (ValueError, TypeError, RecursionError):
        return text
    return flags


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
