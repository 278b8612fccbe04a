"""Files that only a load finds to be wrong: the user's to put right, and no other try is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from contract.exit_codes import ExitCode
from env.data.prompts import PromptError
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny, train
from trainer.config.options.rollout import SamplingSettings
from trainer.models.hub import unfit_model_errors
from trainer.models.loading import load_backbone, load_causal_lm, load_scorer
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.prompts import load_tokenizer
from trainer.training import run
from trainer.types import Request, UnfitModelError


def lose_a_weight(model: Path) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})


def widen(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))


def spoil_the_tokeniser(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "1.0"}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose_a_weight, " lacks 1 of its weights: model.norm.weight"),
        (widen, " cannot be loaded: "),
        (spoil_the_tokeniser, "/tokenizer.json is damaged: "),
    ],
)
def test_a_model_that_cannot_be_loaded_is_the_users_to_put_right(
    tiny: Tiny, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    damage(model)
    flags = {"advantage_estimator": "reinforce", "init_kl_coef": 0}
    with pytest.raises((UnfitModelError, PromptError)) as caught:
        train(tiny.config(tmp_path / "run", pretrain=model, **flags))
    assert str(caught.value).startswith(f"{model}{said}")
    assert run.exit_code(caught.value) is ExitCode.USAGE


@pytest.mark.parametrize(
    ("damage", "said"),
    [(lose_a_weight, " lacks 1 of its weights: norm.weight"), (widen, " cannot be loaded: ")],
)
def test_so_is_a_critic_that_cannot_be_loaded(
    tiny: Tiny, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    model = tmp_path / "critic"
    shutil.copytree(tiny.model, model)
    damage(model)
    flags = {"advantage_estimator": "gae", "init_kl_coef": 0}
    with pytest.raises(UnfitModelError) as caught:
        train(tiny.config(tmp_path / "run", critic_pretrain=model, **flags))
    assert str(caught.value).startswith(f"{model}{said}")
    assert run.exit_code(caught.value) is ExitCode.USAGE


def add_a_layer(model: Path) -> None:
    """Weights of a second layer, which config.json does not have."""
    tensors = load_file(model / "model.safetensors")
    more = {
        name.replace("layers.0", "layers.1"): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.0" in name
    }
    save_file(tensors | more, model / "model.safetensors", metadata={"format": "pt"})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the loading says; transformers has its own words."""
    return [one.message for one in caplog.records if one.name == "trainer.models.loading"]


@pytest.mark.parametrize("load", [load_causal_lm, load_backbone, load_scorer])
def test_weights_that_the_model_has_no_place_for_are_named(
    tiny: Tiny,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    load: Callable[[str, torch.dtype], Any],
) -> None:
    model = shutil.copytree(tiny.model, tmp_path / "model")
    load(str(model), torch.float32)
    assert told(caplog) == []
    add_a_layer(model)
    load(str(model), torch.float32)
    (warning,) = told(caplog)
    assert warning.startswith(f"{model}: 12 of its tensors have no place in the model")
    assert "left out: model.layers.1.input_layernorm.weight, model.layers.1." in warning
    assert warning.endswith(", …")


def test_a_reward_models_unused_weights_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_reward_model(tmp_path / "model", "01")
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    ScalarRewardModel(str(model), settings, torch.device("cpu"))
    assert told(caplog) == []
    add_a_layer(model)
    ScalarRewardModel(str(model), settings, torch.device("cpu"))
    (warning,) = told(caplog)
    assert "12 of its tensors have no place in the model" in warning


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("score", "has no trained score.weight"),
        ("self_attn", "has no trained model.layers.0.self_attn.k_proj.bias, "),
    ],
)
def test_a_reward_model_that_lacks_weights_is_the_users_to_put_right(
    tmp_path: Path, lost: str, said: str
) -> None:
    model = write_reward_model(tmp_path / "model", "01")
    file = model / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if lost not in name}
    save_file(kept, file, metadata={"format": "pt"})
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    with pytest.raises(UnfitModelError) as caught:
        ScalarRewardModel(str(model), settings, torch.device("cpu"))
    assert said in str(caught.value)
    assert str(caught.value).endswith("(7 of its weights)") is (lost == "self_attn")


def test_the_head_of_a_language_model_is_no_loss_to_a_model_without_one(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    language = AutoModelForCausalLM.from_pretrained(tiny.model, tie_word_embeddings=False)
    language.save_pretrained(tmp_path)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    load_backbone(str(tmp_path), torch.float32)
    load_scorer(str(tmp_path), torch.float32)
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_hidden_layers": "two"}, "'num_hidden_layers' expected int, got str"),
        ({"num_hidden_layers": -1}, "`num_hidden_layers` (-1) must be equal to"),
        ({"pad_token_id": 999}, "Padding_idx must be within num_embeddings"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "requires optimum"),
        ({"model_type": "t5"}, "for this kind of AutoModel: AutoModelForCausalLM."),
    ],
)
def test_a_config_that_transformers_refuses_is_one_sentence(
    tiny: Tiny, tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    model = shutil.copytree(tiny.model, tmp_path / "model")
    own = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(own | config))
    with pytest.raises(UnfitModelError) as caught:
        load_causal_lm(str(model), torch.float32)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


def test_pickled_weights_that_are_no_tensors_are_not_read_and_nobody_is_told_to(
    tiny: Tiny, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny.model, tmp_path / "model")
    (model / "model.safetensors").unlink()
    torch.save({"a": Path.cwd}, model / "pytorch_model.bin")
    with pytest.raises(UnfitModelError) as caught:
        load_causal_lm(str(model), torch.float32)
    assert "the weights hold more than tensors, which is not read" in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("kind", ["qwen2", "of-its-own"])
def test_code_that_a_model_brings_along_is_never_run(
    kind: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kind that transformers knows, its own code is taken; another is refused."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, ran = shutil.copytree(tiny.model, tmp_path / "model"), tmp_path / "ran"
    (model / "code.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    classes = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M", "AutoTokenizer": "code.T"}
    for name in ("config.json", "tokenizer_config.json"):
        row = json.loads((model / name).read_text())
        own = {"auto_map": classes} | ({"model_type": kind} if kind == "of-its-own" else {})
        (model / name).write_text(json.dumps(row | own))
    with suppress(UnfitModelError):
        load_causal_lm(str(model), torch.float32)
        assert kind == "qwen2"
    with suppress(Exception):
        load_tokenizer(str(model))
    assert not ran.exists()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError(), RuntimeError()])
def test_an_error_of_the_machines_is_none_of_the_models(error: Exception) -> None:
    with pytest.raises(type(error)), unfit_model_errors("model"):
        raise error


def test_a_prompt_without_a_token_that_only_the_engine_finds_is_the_users(tiny: Tiny) -> None:
    settings = EngineSettings(
        model=str(tiny.model),
        add_special_tokens=True,
        prompt_max_len=8,
        sampling=SamplingSettings(max_new_tokens=2),
        mixed_precision=False,
        slots=1,
    )
    with pytest.raises(UnfitModelError, match="the prompt '' has no tokens"):
        HFEngine(settings).generate([Request("", (0,))], SamplingSettings(max_new_tokens=2))
