"""Libraries in Rust tell a failing disk in their text alone: it is not the model's fault."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from tests.support.tiny_run import Tiny
from trainer.config import label_check, model_files
from trainer.models.hub import unfit_model_errors
from trainer.types import UnfitModelError


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_disk_without_the_device_is_not_the_models_fault() -> None:
    with (
        pytest.raises(OSError, match="No such device") as caught,
        unfit_model_errors("/models/one"),
    ):
        safe_open("/dev/null", framework="np")
    assert (caught.value.errno, caught.value.filename) == (errno.ENODEV, "/models/one")


@pytest.mark.parametrize(
    "error",
    [
        OSError("Stale file handle (os error 116)"),
        SafetensorError("Error while reading: Input/output error (os error 5)"),
        Exception("Input/output error (os error 5)"),
        MemoryError("Cannot allocate memory (os error 12)"),
    ],
)
def test_the_number_in_the_text_is_that_of_an_error_of_the_system(error: Exception) -> None:
    with pytest.raises(OSError, match=r"^\[Errno") as caught, unfit_model_errors("model"):
        raise error
    assert caught.value.errno in (errno.ESTALE, errno.EIO, errno.ENOMEM)


def test_weights_that_cannot_be_opened_for_want_of_a_descriptor_are_not_missing(
    tiny: Tiny,
) -> None:
    weights = Path(tiny.model) / "model.safetensors"
    at_the_limit, told = no_free_descriptor(), unfit_model_errors("model")
    with pytest.raises(OSError, match="Too many open files"), at_the_limit, told:
        safe_open(weights, framework="np")
    at_the_limit, told = no_free_descriptor(), unfit_model_errors("model")
    with pytest.raises(OSError, match="Resource temporarily unavailable"), told, at_the_limit:
        safe_open(weights, framework="np")


def test_weights_that_are_missing_or_closed_to_the_user_are_the_users_to_put_right(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnfitModelError, match="No such file"), unfit_model_errors("model"):
        safe_open(tmp_path / "model.safetensors", framework="np")
    with pytest.raises(UnfitModelError, match="Is a directory"), unfit_model_errors("model"):
        Tokenizer.from_file(str(tmp_path))


def test_the_look_at_a_models_files_names_the_file_and_what_the_disk_says(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    weights = model / "model.safetensors"
    weights.unlink()
    weights.symlink_to("/dev/null")
    monkeypatch.setattr(Path, "is_file", lambda path: path.exists())
    with pytest.raises(OSError, match="No such device") as caught:
        list(model_files.faults(model, tokenizer=True))
    assert caught.value.filename == str(weights)


def test_a_tokeniser_that_the_disk_does_not_give_is_not_called_damaged(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str) -> None:
        raise Exception("Input/output error (os error 5)")

    monkeypatch.setattr(Tokenizer, "from_file", failing)
    with pytest.raises(OSError, match="Input/output error") as caught:
        label_check.without_tokens(tiny.config(run_dir), tiny.prompts, [])
    assert caught.value.filename == str(Path(tiny.model) / "tokenizer.json")
