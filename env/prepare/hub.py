"""Where a task's data come from: a directory, or the hub, in Hugging Face's cache."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from env.prepare.output import PrepareError


def source_of(arguments: argparse.Namespace, repository: str, patterns: Sequence[str]) -> Path:
    """Return --source, or the directory of a data set of the hub.

    Raises PrepareError if --out is the same directory: its files would be written over.
    """
    if arguments.source is None:
        return fetch(repository, patterns)
    source: Path = arguments.source
    if source.resolve() == arguments.out.resolve():
        raise PrepareError(f"{source}: --out is the directory of --source; give another --out")
    return source


def fetch(repository: str, patterns: Sequence[str]) -> Path:
    """The directory with the files of a data set; a download that broke off continues.

    Raises PrepareError if the hub is out of reach and the cache lacks the files.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        found = snapshot_download(repository, repo_type="dataset", allow_patterns=list(patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT}"
        only = " ".join(f"--include '{pattern}'" for pattern in patterns)
        raise PrepareError(
            f"{repository} cannot be fetched ({why}: {_first_line(error)}); give --source DIR with "
            f"the files, or run `hf download --repo-type dataset {repository} {only}` where there "
            "is a network"
        ) from error
    return Path(found)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
