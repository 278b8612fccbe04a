"""Data sets of the hub, in Hugging Face's cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from env.prepare.output import PrepareError


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
