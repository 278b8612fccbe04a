"""Fetches models and data sets of the hub into Hugging Face's cache.

huggingface_hub's lock makes two processes share one download, and an interrupted download
continues. A directory is used as it is, without a request.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from contract.files.os_errors import with_errno
from env.model_code import MORE_THAN_TENSORS
from trainer.config.data_sets import TRAIN
from trainer.types import TrainingError, UnfitModelError

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
EXOTIC = ("*.onnx", "*.gguf", "*.h5", "*.msgpack", "*.ot", "*.tflite", "original/*", "onnx/*")
"""Weights in formats that the trainer does not read."""
PICKLED = ("*.bin", "*.pt", "*.pth")
"""Pickled weights, needed only if there are no safetensors."""
SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
"""Files of configuration, tokeniser and code."""
SECONDS_BETWEEN_LINES = 10.0


class HubError(Exception):
    """A name cannot be fetched; the message gives reason and remedy."""


class HubUnreachableError(HubError):
    """A name is not in the cache, and the hub does not answer."""


def is_name(text: str) -> bool:
    """Return whether `text` can be a name on the hub, and is not a path on this disk."""
    return bool(REPOSITORY.fullmatch(text)) and not Path(text).exists()


def fetch_all(names: Sequence[str]) -> dict[str, str]:
    """Return model → its directory on this node. Raises HubError."""
    return {name: fetch(name) for name in names}


def fetch(name: str, kind: str = "model", only: Sequence[str] | None = None) -> str:
    """Return the directory of repository `name` here; download what is missing.

    `kind`: model or dataset; `only`: patterns of the files to fetch. Raises HubError.
    """
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.errors import LocalEntryNotFoundError as NotHere

    try:
        return _download(name, kind, only)
    except GatedRepoError:
        sentence = f"{name} is gated: accept its terms, and give your token as HF_TOKEN"
        raise HubError(sentence) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise HubError(
            f"{name} is not a directory here and not a public {kind} on the hub: check the "
            "spelling, or give HF_TOKEN if it is private"
        ) from None
    except (NotHere, ConnectionError):
        raise HubUnreachableError(_offline(name, kind)) from None
    except OSError as error:
        raise HubError(f"{name} cannot be fetched: {error.strerror or error}") from error


def _download(name: str, kind: str, only: Sequence[str] | None) -> str:
    from huggingface_hub import snapshot_download

    def snapshot(*ignore: str) -> str:
        found: str = snapshot_download(
            name,
            repo_type=kind,
            allow_patterns=None if only is None else list(only),
            ignore_patterns=list(ignore),
            tqdm_class=_lines(name),
        )
        return found

    if kind == "dataset" or only is not None:
        return snapshot()
    directory = snapshot(*EXOTIC, *PICKLED)
    if any(Path(directory).glob("*.safetensors")):
        return directory
    return snapshot(*EXOTIC)


def rows(name: str, into: Path, split: str = TRAIN) -> Path:
    """Return a directory with one split of a data set. Raises HubError.

    `name`: owner/name, or owner/name:configuration.
    """
    of_split = "" if split == TRAIN else f"@{re.sub(r'[^a-zA-Z0-9_.-]', '_', split)}"
    saved = into / (name.replace("/", "--").replace(":", "+") + of_split)
    if (saved / "state.json").exists():
        return saved
    repository, _, configuration = name.partition(":")
    directory = fetch(repository, "dataset")
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        load_dataset(directory, configuration or None, split=split).save_to_disk(saved)
    except (DatasetGenerationError, ValueError, OSError) as error:
        raise HubError(f"{name} has no readable split '{split}': {error}") from error
    return saved


def _offline(name: str, kind: str) -> str:
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    why = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} does not answer"
    option = " --repo-type dataset" if kind == "dataset" else ""
    return (
        f"{name} is not a directory here and not whole in the cache {constants.HF_HUB_CACHE}, and "
        f"{why}: give a directory that all nodes see, or run `hf download{option} {name}` on each "
        "node where there is a network"
    )


def _lines(name: str) -> Any:
    """Return a class of progress bars for logs, which print a line every few seconds."""
    from tqdm import tqdm

    class Lines(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._spoke_at = time.monotonic()
            # huggingface_hub passes a name, an option that tqdm does not have.
            options.pop("name", None)
            super().__init__(*args, **options | {"disable": False, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            if self.disable:  # closed, perhaps long after the download, by Python's collector
                return
            now = time.monotonic()
            if self.unit == "B" and now - self._spoke_at > SECONDS_BETWEEN_LINES:
                self._spoke_at = now
                total = f" of {self.total / 1e9:.2f}" if self.total else ""
                print(f"{name}: {self.n / 1e9:.2f}{total} GB", flush=True)

    return Lines


FILE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, AssertionError, UnpicklingError),
    ImportError,  # of a package that reads a format of weights
)
"""Errors that loading raises for files, beside those of libraries."""
MISSHAPEN = "ignore_mismatched_sizes"
"""Text of transformers' error for weights whose shapes differ from config.json."""
ALL_TYPES = " Model type should be one of"
"""What begins the list of all types in transformers' error for a model of another kind."""


@contextmanager
def unfit_model_errors(model: str) -> Iterator[None]:
    """Raise UnfitModelError if loading files of `model` in the block shows a fault of the files.

    An error of the disk or of the memory is raised unchanged.
    """
    try:
        with with_errno(Path(model)):
            yield
    except TrainingError:
        raise
    except Exception as error:
        if not _is_of_the_files(error):
            raise
        said = " ".join(str(error).split()).partition(ALL_TYPES)[0]
        if isinstance(error, UnpicklingError):  # its own remedy is to run what the file says
            said = MORE_THAN_TENSORS
        raise UnfitModelError(
            f"{model} cannot be loaded: {type(error).__name__}: {said}"
        ) from error


def _is_of_the_files(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno is None  # transformers raises it without a number for a missing file
    if isinstance(error, RuntimeError):
        return MISSHAPEN in str(error)
    from huggingface_hub.errors import StrictDataclassError

    # Rust libraries raise their own errors; tokenizers raises a plain Exception.
    from_rust = type(error) is Exception or type(error).__module__.startswith("safetensors")
    return from_rust or isinstance(error, (*FILE_ERRORS, StrictDataclassError))
