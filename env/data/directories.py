"""The files of a data set in a directory, as `hf download --local-dir` or `git clone` leave them.

The package datasets finds them, as for a data set of the hub: by the configurations in README.md,
else by the names of files and folders.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SHARD = re.compile(r"(?P<name>.*)-\d{5}-of-(?P<count>\d{5})(?P<rest>.*)")
"""The name of one of several files of a split."""
GLOB = re.compile(r"[*?\[]")
"""What datasets takes for a pattern, also in the path of the directory itself."""
Files = Mapping[str, Sequence[Path]]
"""Split → its files."""


class UnreadableDirectoryError(ValueError):
    """A directory that is not a data set; the message says why, without its name."""


def files_of(directory: Path, split: str) -> Sequence[Path]:
    """Return the files of a split, in order. Raises UnreadableDirectoryError."""
    splits = _splits(directory.absolute())
    if split not in splits:
        raise UnreadableDirectoryError(
            f"has no split '{split}'; name one of its splits, or its files: {_listed(splits)}"
        )
    files = splits[split]
    if missing := next(_missing(files), None):
        raise UnreadableDirectoryError(f"{missing}. Run `hf download` again: it continues")
    return files


def _splits(directory: Path) -> Files:
    from datasets import get_dataset_config_names, get_dataset_default_config_name

    if sign := GLOB.search(str(directory.resolve())):
        raise UnreadableDirectoryError(
            f"has {sign[0]} in its path, which the package datasets takes for a pattern. Give its "
            "files, several with commas, or rename it"
        )
    logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)  # no README.md is needed
    try:
        names = get_dataset_config_names(str(directory))
        default = get_dataset_default_config_name(str(directory))
        if default is not None or not names:
            return _unmixed(directory, _files(directory, default))
        each = {name: _files(directory, name) for name in names}
    except UnreadableDirectoryError:
        raise
    except Exception as error:  # datasets has many kinds, also for a broken README.md
        why = " ".join(str(error).split())
        raise UnreadableDirectoryError(
            f"holds no saved data set, and no .jsonl or .parquet files of one: {why}"
        ) from error
    choices = "; ".join(f"{name}: {_place(directory, files)}" for name, files in each.items())
    raise UnreadableDirectoryError(
        f"has {len(each)} configurations. Give the directory or the files of one: {choices}"
    )


def _files(directory: Path, configuration: str | None) -> Files:
    from datasets import load_dataset_builder

    with (
        tempfile.TemporaryDirectory() as unused
    ):  # nothing is built, and the cache may be read-only
        builder = load_dataset_builder(str(directory), configuration, cache_dir=unused)
    found = builder.config.data_files or {}
    return {str(split): [Path(file) for file in files] for split, files in found.items()}


def _unmixed(directory: Path, splits: Files) -> Files:
    """Raise UnreadableDirectoryError for a split that lies in several folders.

    Without configurations in README.md, datasets takes the files of all of them for one split.
    """
    if "config_name:" in _text(directory / "README.md"):
        return splits
    for split, files in splits.items():
        if len(folders := sorted({str(file.parent) for file in files})) > 1:
            raise UnreadableDirectoryError(
                f"has files of the split '{split}' in several folders, which may be several data "
                f"sets. Give one, or several with commas: {', '.join(folders)}"
            )
    return splits


def _missing(files: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence for each set of shards that is incomplete."""
    shards = filter(None, (SHARD.fullmatch(str(file)) for file in files))
    for (name, count, rest), number in Counter(shard.groups() for shard in shards).items():
        if number < int(count):
            yield f"has {number} of the {int(count)} files {name}-*-of-{count}{rest}"


def _place(directory: Path, splits: Files) -> str:
    """Return the folder of a configuration if it has one of its own, else its files."""
    files = [file for some in splits.values() for file in some]
    folders = {file.relative_to(directory).parts[0] for file in files if file.parent != directory}
    if len(folders) == 1 and len({file.parent for file in files}) == 1:
        return str(files[0].parent)
    return ",".join(map(str, files))


def _listed(splits: Files) -> str:
    return "; ".join(f"{split}: {','.join(map(str, files))}" for split, files in splits.items())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
