"""The size of a model: from its files, the hub's cache, or its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import qwen
from trainer.cluster.model_size import known_size, named_size, read_size


def test_the_size_of_a_model_comes_from_its_directory_the_cache_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = read_size(str(qwen.write_config(tmp_path / "seven", "7B")))
    assert exact is not None
    assert exact.parameters == pytest.approx(7.6e9, rel=0.01)
    monkeypatch.setenv("HF_HUB_CACHE", str(qwen.write_cache(tmp_path / "hub")))
    assert known_size(str(tmp_path / "seven")) == known_size(qwen.name_of("7B")) == exact
    named = known_size("Qwen/Qwen2.5-7B")
    assert named is not None
    assert named.by_name
    assert named.parameters == pytest.approx(exact.parameters, rel=0.05)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-2-70b-hf", 70),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5),
        ("mistralai/Mixtral-8x7B-v0.1", 56),
        ("HuggingFaceTB/SmolLM2-135M", 0.135),
        ("/models/qwen3-30b-a3b/", 30),
    ],
)
def test_a_name_says_the_parameters(name: str, billions: float) -> None:
    size = named_size(name)
    assert size is not None
    assert size.parameters == pytest.approx(billions * 1e9, rel=0.11)


@pytest.mark.parametrize("name", ["some/model", "gpt2", "/checkpoints/step_100", "v2.5-beta"])
def test_a_name_without_a_number_says_nothing(name: str) -> None:
    assert named_size(name) is None
