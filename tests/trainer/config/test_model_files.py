"""What the files of a model say before it is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from env import model_code
from tests.support.lfs_pointer import POINTER
from tests.support.tiny_run import Tiny
from tests.support.tiny_run import faults_of as faults_of_flags
from trainer.config import model_files


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer.model"])
def test_a_pointer_of_git_lfs_is_named(tiny: Tiny, tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    assert [*model_files.faults(model, tokenizer=True)] == []
    (model / name).write_text(POINTER)
    (fault,) = model_files.faults(model, tokenizer=True)
    assert fault.startswith(f"{model / name} is a Git LFS pointer")
    assert "git lfs pull" in fault


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.model, tmp_path / "model"))


def faults_of(model: Path, **how: Any) -> list[str]:
    return [*model_files.faults(model, tokenizer=True, **how)]


def split(model: Path, file: str = "model-00001-of-00001.safetensors") -> tuple[Path, list[str]]:
    """Write an index in place of the single file. Returns the file and its tensors."""
    (model / "model.safetensors").rename(model / file)
    names = sorted(load_file(model / file))
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, file)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model / file, names


def test_a_file_that_lacks_what_the_index_names_is_a_fault(model: Path) -> None:
    file, names = split(model)
    assert faults_of(model) == []
    tensors = load_file(file)
    save_file({name: tensors[name] for name in names[2:]}, file, metadata={"format": "pt"})
    (fault,) = faults_of(model)
    lacking = f"{file} lacks 2 tensors that the index names: {names[0]}, {names[1]}. "
    assert fault.startswith(lacking)
    file.unlink()
    (fault,) = faults_of(model)
    assert fault.startswith(f"{file} is missing, and the index names it")


@pytest.mark.parametrize("name", ["a" * 300, "ä" * 200, "a/" * 2500, "a\0b", "\ud800", ["a"], None])
def test_an_index_that_names_no_files_is_a_fault_and_so_is_code_of_no_file(
    model: Path, name: Any
) -> None:
    index = model / "model.safetensors.index.json"
    split(model)
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    (fault,) = faults_of(model)
    assert fault.startswith(f"{index} is damaged: its weight_map names no files")
    config = json.loads((model / "config.json").read_text())
    config["model_type"] = "ä" * 90
    (model / "config.json").write_text(json.dumps(config))
    assert any("'ä" in one for one in faults_of(model))
    config["auto_map"] = {"AutoConfig": f"{name}.C"}
    (model / "config.json").write_text(json.dumps(config))
    assert model_code.code_of(model)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
def test_quantised_weights_are_refused_where_they_are_to_be_trained(
    model: Path, method: str
) -> None:
    config = json.loads((model / "config.json").read_text())
    quantised = config | {"quantization_config": {"quant_method": method}}
    (model / "config.json").write_text(json.dumps(quantised))
    assert faults_of(model) == []
    (fault,) = faults_of(model, trained=True)
    assert f"its weights are quantised ({method}), and such weights cannot be trained" in fault


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_config_that_transformers_cannot_read_is_damaged(model: Path, encoding: str) -> None:
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text, encoding=encoding)
    (fault,) = faults_of(model)
    assert fault.startswith(f"{model / 'config.json'} is damaged: ")


def test_an_adapter_is_no_whole_model(model: Path) -> None:
    (model / "config.json").rename(model / "adapter_config.json")
    fault = faults_of_flags(pretrain=model)["--pretrain"]
    assert "It is an adapter of peft: merge it into its model" in fault
