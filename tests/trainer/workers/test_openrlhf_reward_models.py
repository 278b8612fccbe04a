"""Reward models as OpenRLHF saves them: a backbone, and a head that config.json names."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from env.types import RewardRequest
from tests.support.learners import settings
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import CriticObjective
from trainer.config.options.algorithm import LossSettings
from trainer.models import value_model
from trainer.models.settings import RewardSettings
from trainer.types import TrainingError
from trainer.workers.critic import CriticActor
from trainer.workers.reward import RewardActor

REQUESTS = [RewardRequest(f"1+1={answer}", "1+1=") for answer in ("2", "11111", "", "203")]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reward_model(tmp_path_factory.mktemp("judge"), "0123456789+=")


def write_safetensors(tensors: dict[str, Tensor], out: Path) -> None:
    save_file(tensors, out / "model.safetensors", {"format": "pt"})


def write_pickled(tensors: dict[str, Tensor], out: Path) -> None:
    torch.save(tensors, out / "pytorch_model.bin")


def write_pickled_parts(tensors: dict[str, Tensor], out: Path) -> None:
    names = sorted(tensors)
    files: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, out / file)
        files |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": files}
    (out / "pytorch_model.bin.index.json").write_text(json.dumps(index))


WRITERS = {
    "safetensors": write_safetensors,
    "pickled": write_pickled,
    "parts": write_pickled_parts,
}


def written(judge: Path, out: Path, head: str, form: str = "safetensors", **said: Any) -> Path:
    """The same model in OpenRLHF's layout; `said`: more of its config.json."""
    shutil.copytree(judge, out, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(judge / "model.safetensors")
    tensors[f"{head}.weight"] = tensors.pop("score.weight")
    WRITERS[form](tensors, out)
    config = json.loads((out / "config.json").read_text())
    for name in ("id2label", "label2id", "num_labels"):
        config.pop(name, None)
    theirs = {"architectures": ["RewardModel"], "normalize_reward": False, "mean": 0.1, "std": 2.0}
    (out / "config.json").write_text(json.dumps(config | theirs | said))
    return out


def rewards(model: Path, **flags: Any) -> list[float]:
    actor = RewardActor(
        RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4, **flags)
    )
    return [score.reward for (score,) in actor.score(REQUESTS)]


def critic(tiny: Tiny, model: Path, flag: str = "score") -> CriticActor:
    known = replace(settings(tiny).model, model=str(model))
    objective = CriticObjective(LossSettings(value_clip=0.5), value_head_prefix=flag)
    return CriticActor(replace(settings(tiny), model=known), objective)


def head_of(actor: CriticActor) -> Tensor:
    return actor._model.value_head.weight.detach()


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("head", ["score", "value_head"])
def test_it_judges_as_the_same_model_of_transformers_does(
    judge: Path, tmp_path: Path, head: str, form: str
) -> None:
    theirs = written(judge, tmp_path / "theirs", head, form, value_head_prefix=head)
    assert rewards(theirs) == rewards(judge)
    assert len(set(rewards(theirs))) == len(REQUESTS)


@pytest.mark.parametrize("form", WRITERS)
def test_a_critic_starts_from_its_head_and_hands_it_on_under_its_name(
    tiny: Tiny, judge: Path, tmp_path: Path, form: str
) -> None:
    trained = load_file(judge / "model.safetensors")["score.weight"]
    theirs = written(judge, tmp_path / "theirs", "value", form, value_head_prefix="value")
    actor = critic(tiny, theirs)
    assert torch.equal(head_of(actor), trained)
    actor.export(tmp_path / "exported")
    assert list(load_file(tmp_path / "exported" / value_model.HEAD_FILE)) == ["value.weight"]
    assert torch.equal(head_of(critic(tiny, tmp_path / "exported")), trained)


def test_a_model_that_does_not_say_its_head_s_name_has_it_from_the_flag(
    tiny: Tiny, judge: Path, tmp_path: Path
) -> None:
    theirs = written(judge, tmp_path / "theirs", "value_head")
    assert rewards(theirs, value_head_prefix="value_head") == rewards(judge)
    trained = load_file(judge / "model.safetensors")["score.weight"]
    assert torch.equal(head_of(critic(tiny, theirs, "value_head")), trained)
    assert not torch.equal(head_of(critic(tiny, theirs)), trained), "a fresh one"
    with pytest.raises(TrainingError, match=r"has no trained score\.weight"):
        rewards(theirs)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"architectures": ["LLMForSequenceRegression"]},
        {"architectures": ["Qwen2ForCausalLM"], "value_head_prefix": "score"},
    ],
)
def test_it_is_no_fault_before_anything_starts(
    tiny: Tiny, run_dir: Path, judge: Path, tmp_path: Path, said: dict[str, Any]
) -> None:
    theirs = written(judge, tmp_path / "theirs", "score", **said)
    flags = {"remote_rm_url": None, "reward_pretrain": theirs, "value_head_prefix": "score"}
    config = tiny.config(run_dir, **flags, advantage_estimator="rloo", critic_learning_rate=None)
    assert not config.warnings, "the head's name has a use without a critic"
