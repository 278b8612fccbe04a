"""What a policy that takes images changes in the flags, by the files of its directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_files import write_files
from trainer.cluster import memory_estimate
from trainer.cluster.model_size import VisionSize, read_size
from trainer.config import images, model_files
from trainer.config.config import Config
from trainer.config.job_checks import engine_faults
from trainer.config.parse import parse

ENCODER = {
    "depth": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "spatial_merge_size": 2,
}
TEXT = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "text", **TEXT)
    write_files(tmp_path / "model", model_type="qwen2_5_vl", vision_config=ENCODER, **TEXT)
    (tmp_path / "rows.jsonl").write_text('{"input": "1"}\n')
    return tmp_path


def config(root: Path, *more: str, model: str = "model") -> Config:
    flags = ["--pretrain", f"{root / model}", "--prompt_data", f"{root / 'rows.jsonl'}"]
    flags += ["--run_dir", f"{root / 'run'}", "--remote_rm_url", "math"]
    return parse([*flags, *more])


def test_a_models_files_say_whether_it_takes_images(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing, blind = config(root), config(root, model="text")
    assert seeing.sees_images
    assert seeing.runs_episodes
    assert seeing.renders_chat
    assert not any((blind.sees_images, blind.runs_episodes, blind.renders_chat))
    assert blind.images is None
    monkeypatch.setenv("HF_HUB_CACHE", str(root / "hub"))
    assert model_files.sees_images("owner/name") is None  # known after its download
    found = root / "hub" / "models--owner--name"
    write_files(found / "snapshots" / "abc", model_type="qwen2_5_vl")
    (found / "refs").mkdir()
    (found / "refs" / "main").write_text("abc\n")
    assert model_files.sees_images("owner/name") is True


def test_the_column_of_images_is_required_if_it_is_named(root: Path) -> None:
    column = config(root).images
    assert column is not None
    assert (column.key, column.most, column.required) == ("images", 0, False)
    column = config(root, "--data.image_key", "a", "--data.max_images_per_prompt", "3").images
    assert column is not None
    assert (column.key, column.most, column.required) == ("a", 3, True)


def test_flags_of_images_have_no_effect_on_a_model_of_text(root: Path) -> None:
    flags = ("--freeze_visual_encoder", "--image_max_pixels", "1000")
    warned = config(root, *flags, model="text").warnings
    assert [warning.split()[0] for warning in warned if "takes only text" in warning]
    assert not [warning for warning in config(root, *flags).warnings if "only text" in warning]


def test_a_critic_of_text_is_refused_for_a_policy_that_takes_images(root: Path) -> None:
    flags = ("--critic_pretrain", str(root / "text"), "--advantage_estimator")
    with pytest.raises(Exception, match="takes only text, and the policy takes images"):
        config(root, *flags, "gae")
    assert not list(images.faults(config(root, *flags, "rloo", "--n_samples_per_prompt", "2")))


def test_gpus_share_no_samples_with_images(root: Path) -> None:
    with pytest.raises(Exception, match="--ring_attn_size: the policy takes images"):
        config(root, "--ring_attn_size", "2", "--actor_num_gpus_per_node", "2")


def test_vllm_wants_torchvision(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.config import job_checks

    def found(name: str) -> Any:
        return None if name == "torchvision" else object()

    monkeypatch.setattr(job_checks, "find_spec", found)
    faults = engine_faults(config(root, "--rollout_engine", "vllm"))
    assert any("vLLM reads images with torchvision" in fault for fault in faults)
    assert not engine_faults(config(root, "--rollout_engine", "vllm", model="text"))


def test_the_estimate_counts_the_encoders_activations(root: Path) -> None:
    size = read_size(str(root / "model"))
    assert size is not None
    assert size.vision == VisionSize(8, 2, 16, 4)
    flags = ["--prompt_max_len", "100", "--generate_max_len", "100"]
    flags += ["--micro_train_batch_size", "1"]
    seen = memory_estimate._activations(config(root, *flags), size)
    frozen = memory_estimate._activations(config(root, *flags, "--freeze_visual_encoder"), size)
    blind = memory_estimate._activations(config(root, *flags), replace(size, vision=None))
    patches = 4 * 100  # of a prompt that is images and nothing else
    assert seen - blind == 2 * 4 * patches * (10 * 8 + 4 * 16)
    assert frozen - blind == 4 * patches * (4 * 8 + 3 * 16)
