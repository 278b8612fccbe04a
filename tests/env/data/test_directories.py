"""Data sets in directories, as `hf download --local-dir` and `git clone` leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import Table, parquet

from env.data.prompts import PromptError, ReadSettings, load_prompts
from tests.support.lfs_pointer import POINTER

TWO_CONFIGURATIONS = """\
---
license: mit
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
---
# Rows
"""
DEFAULT = TWO_CONFIGURATIONS.replace("config_name: main", "config_name: main\n  default: true")


@pytest.fixture
def downloaded(tmp_path: Path) -> Path:
    """What the command leaves beside the data."""
    for name in (".gitattributes", ".cache/huggingface/.gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("*")
    rest = tmp_path / ".cache/huggingface/download/data/train-00000-of-00001.parquet"
    rest.parent.mkdir(parents=True)
    rest.with_name(f"{rest.name}.metadata").write_text("a\nb\n1.0\n")
    rest.with_name(f"{rest.name}.lock").touch()
    return tmp_path


def write(directory: Path, *names: str) -> None:
    """Write files of two rows each, which have the name of their file."""
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"input": f"{name} {number}", "label": str(number)} for number in (1, 2)]
        if path.suffix == ".parquet":
            parquet.write_table(Table.from_pylist(rows), path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def texts(directory: Path, split: str = "train") -> list[str]:
    return [p.text for p in load_prompts(directory, ReadSettings(label_key="label", split=split))]


def of(*names: str) -> list[str]:
    return [f"{name} {number}" for name in names for number in (1, 2)]


SHARDS = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        ((*SHARDS, "data/test-00000-of-00001.parquet"), "train", SHARDS),
        (("train/0000.parquet", "test/0000.parquet"), "test", ["test/0000.parquet"]),
        (("train.jsonl", "test.jsonl"), "train", ["train.jsonl"]),
        (("data/train_sft-00000-of-00001.parquet",), "train_sft", None),
        (("rows.parquet",), "train", None),
    ],
)
def test_a_split_is_read_from_its_files(
    downloaded: Path, names: tuple[str, ...], split: str, read: list[str] | None
) -> None:
    write(downloaded, *names)
    assert texts(downloaded, split) == of(*(read or names))


def test_the_default_configuration_of_the_readme_is_read(downloaded: Path) -> None:
    write(downloaded, *(f"{one}/train-00000-of-00001.parquet" for one in ("main", "socratic")))
    write(downloaded, "main/test-00000-of-00001.parquet")
    (downloaded / "README.md").write_text(DEFAULT)
    assert texts(downloaded) == of("main/train-00000-of-00001.parquet")
    (downloaded / "README.md").write_text(TWO_CONFIGURATIONS)
    with pytest.raises(PromptError, match="has 2 configurations") as caught:
        texts(downloaded)
    assert f"main: {downloaded}/main; socratic: {downloaded}/socratic" in str(caught.value)
    assert texts(downloaded / "main") == of("main/train-00000-of-00001.parquet")


def test_folders_that_may_be_several_data_sets_are_not_mixed(downloaded: Path) -> None:
    write(downloaded, *(f"{one}/train-00000-of-00001.parquet" for one in ("main", "other")))
    with pytest.raises(
        PromptError, match=f"several folders.*{downloaded}/main, {downloaded}/other"
    ):
        texts(downloaded)


def test_a_missing_split_names_the_others(downloaded: Path) -> None:
    write(downloaded, "data/train_sft-00000-of-00001.parquet")
    with pytest.raises(PromptError, match=r"has no split 'train'.* train_sft: .*00001\.parquet"):
        texts(downloaded)


def test_an_interrupted_download_is_not_trained_on(downloaded: Path) -> None:
    write(downloaded, SHARDS[0])
    with pytest.raises(PromptError, match=r"has 1 of the 2 files .*data/train-.*hf download"):
        texts(downloaded)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "data/train.parquet"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_pointer_of_git_lfs_is_named(downloaded: Path, name: str, whole: bool) -> None:
    (downloaded / name).parent.mkdir(exist_ok=True)
    (downloaded / name).write_text(POINTER)
    with pytest.raises(PromptError, match=f"{name} is a Git LFS pointer.*git lfs pull"):
        texts(downloaded if whole else downloaded / name)


def test_a_saved_data_set_of_pointers_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    (tmp_path / "a.arrow").write_text(POINTER)
    with pytest.raises(PromptError, match=r"a\.arrow is a Git LFS pointer"):
        texts(tmp_path)


@pytest.mark.parametrize("name", ["lr[1e-5]", "all*", "what?"])
def test_a_path_that_datasets_takes_for_a_pattern_is_refused_and_its_file_is_read(
    tmp_path: Path, name: str
) -> None:
    """With a star, the files of a directory beside it would be read, too."""
    write(tmp_path / name, "train.jsonl")
    with pytest.raises(PromptError, match="takes for a pattern"):
        texts(tmp_path / name)
    assert texts(tmp_path / name / "train.jsonl") == of("train.jsonl")


def test_a_directory_without_data_is_named(downloaded: Path) -> None:
    (downloaded / "README.md").write_text("# Nothing")
    with pytest.raises(PromptError, match="holds no saved data set, and no"):
        texts(downloaded)
