"""Files that only a load finds to be wrong: the user's to put right, and no other try is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from contract.exit_codes import ExitCode
from env.data.prompts import PromptError
from tests.support.tiny_run import Tiny, train
from trainer.config.options.rollout import SamplingSettings
from trainer.models.hub import unfit_model_errors
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
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
