"""No model, checkpoint or data set runs code of its own, unless a flag asks for it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint.net.port_block import PortBlock
from env.data.prompts import PromptError, ReadSettings, load_prompts
from env.prepare.__main__ import main as prepare
from env.registry import reward_function
from env.retrieval import dense
from env.retrieval.encoder import Encoder, EncoderSettings
from env.retrieval.files import IndexFault
from tests.support import hostile_files
from tests.support.hostile_files import Bomb, Mark
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import GRPO, Tiny, to_argv, train
from trainer.checkpoint import state
from trainer.config import job_checks
from trainer.config.options.rollout import SamplingSettings
from trainer.import_openrlhf import TRUST
from trainer.import_openrlhf import main as import_openrlhf
from trainer.models import pretrained, serve_reward
from trainer.models.loading import load_backbone, load_causal_lm, load_scorer
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings
from trainer.models.value_model import load_head
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.prompts import load_codec
from trainer.rollout.rollout_state import PendingRollouts
from trainer.supervised.__main__ import main as supervised
from trainer.training import run
from trainer.types import TrainingError, UnfitModelError

FLAG = "--trust_remote_code"
REWARD = RewardSettings(models=(), mixed_precision=False, micro_batch_size=4)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mark:
    """Also answers yes to whoever asks at the terminal, as a shell's `yes |` would."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 1000))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    pretrained.trust(False)
    return Mark(tmp_path / "ran")


def engine(model: str) -> HFEngine:
    sampling = SamplingSettings(max_new_tokens=3)
    return HFEngine(
        EngineSettings(
            model=model,
            add_special_tokens=True,
            prompt_max_len=8,
            sampling=sampling,
            mixed_precision=False,
            slots=2,
        )
    )


def encoder(model: str) -> Encoder:
    return Encoder(EncoderSettings(model=model, pooling="mean", query_prefix="", passage_prefix=""))


LOADS: dict[str, Callable[[str], Any]] = {
    "language model": lambda model: load_causal_lm(model, torch.float32),
    "critic": lambda model: load_backbone(model, torch.float32),
    "scorer": lambda model: load_scorer(model, torch.float32),
    "reward model": lambda model: ScalarRewardModel(model, REWARD, torch.device("cpu")),
    "engine": engine,
    "encoder": encoder,
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_a_model_that_needs_its_code_is_refused_with_the_files_that_would_run(
    tiny: Tiny, tmp_path: Path, mark: Mark, load: Callable[[str], Any]
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    with pytest.raises((UnfitModelError, IndexFault)) as caught:
        load(str(model))
    for name in hostile_files.CODE:
        assert str(model / name) in str(caught.value)
    assert f"give {FLAG}" in str(caught.value)
    assert mark.ran() == []


def test_a_tokenizer_that_needs_its_code_never_runs_it(
    tiny: Tiny, tmp_path: Path, mark: Mark
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    with pytest.raises(UnfitModelError, match=rf"own_tokenizer\.py.*give {FLAG}"):
        load_codec(str(model))
    assert mark.ran() == []


def test_a_model_of_a_known_type_is_loaded_without_the_code_that_it_brings(
    tiny: Tiny, tmp_path: Path, mark: Mark
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model", of_tokenizer=False)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    loaded = load_causal_lm(str(model), torch.float32)
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    assert mark.ran() == []


def test_the_checks_before_a_run_name_the_flag_and_the_files(
    tiny: Tiny, tmp_path: Path, mark: Mark
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    config = tiny.config(tmp_path / "run", pretrain=model)
    (fault,) = job_checks.model_faults(config)
    assert fault.startswith(f"--pretrain: {model}/config.json: the model_type 'own' is none")
    assert all(str(model / name) in fault for name in hostile_files.CODE)
    trusted = tiny.config(tmp_path / "run", pretrain=model, trust_remote_code=True)
    assert job_checks.model_faults(trusted) == []
    assert mark.ran() == []


def test_code_of_another_repository_is_named(tiny: Tiny, tmp_path: Path, mark: Mark) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "someone/else--far.Config"}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnfitModelError, match=r"far\.py of someone/else on the hub"):
        load_causal_lm(str(model), torch.float32)
    assert mark.ran() == []


def words_of(command: str, model: Path, tiny: Tiny, tmp_path: Path) -> list[str]:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "a"}\n')
    data = f"--dataset {tiny.prompts} --input_key prompt --output_key answer"
    words = {
        "sft": f"sft --pretrain {model} {data} --save_path {tmp_path}/out",
        "serve": f"--model {model} --port 0",
        "index": f"index --kind dense --model {model} --corpus {corpus} --out {tmp_path}/index",
    }
    return words[command].split()


MAINS: dict[str, Callable[[list[str]], int]] = {
    "sft": supervised,
    "serve": serve_reward.main,
    "index": prepare,
}


@pytest.mark.parametrize("command", MAINS)
def test_commands_end_with_64_and_name_flag_and_files(
    tiny: Tiny, tmp_path: Path, mark: Mark, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    assert MAINS[command](words_of(command, model, tiny, tmp_path)) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"give {FLAG}" in said
    assert str(model / "own_config.py") in said
    assert mark.ran() == []


def test_with_the_flag_a_run_trains_the_model_and_exports_its_code(
    tiny: Tiny, tmp_path: Path, mark: Mark
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    flags = {**GRPO, "pretrain": model, "trust_remote_code": True, "max_steps": 1}
    config = tiny.config(tmp_path / "run", **flags)
    train(config)
    assert {*hostile_files.CODE} <= {*mark.ran()}
    assert {*hostile_files.CODE} <= {path.name for path in config.exported.iterdir()}
    run.tell_of_code(config)
    (event,) = (e for e in read_events(config.files.journal) if e["kind"] == "remote-code")
    assert all(str(model / name) in event["sentence"] for name in hostile_files.CODE)


def test_with_the_flag_a_stage_says_which_files_run(
    tiny: Tiny, tmp_path: Path, mark: Mark, capsys: pytest.CaptureFixture[str]
) -> None:
    model = hostile_files.arm(mark, tiny.model, tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "completion": "2"}\n' * 4)
    argv = {"pretrain": model, "dataset": rows, "run_dir": tmp_path / "run", "max_steps": 1}
    words = ["sft", *to_argv({**argv, "trust_remote_code": True, "train_batch_size": 4})]
    assert supervised(words) == ExitCode.FINISHED
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(FLAG))
    events = list(read_events(RunFiles(tmp_path / "run").journal))
    assert said in [e["sentence"] for e in events if e["kind"] == "remote-code"]
    assert all(str(model / name) in said for name in hostile_files.CODE)
    assert mark.ran()


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_pickled_weights_run_no_code(
    tiny: Tiny, tmp_path: Path, mark: Mark, load: Callable[[str], Any]
) -> None:
    source = write_reward_model(tmp_path / "source", "0123456789+=")
    model = hostile_files.with_pickled_weights(mark, source, tmp_path / "model")
    with pytest.raises((UnfitModelError, IndexFault), match="hold more than tensors"):
        load(str(model))
    assert mark.ran() == []


def test_a_head_in_pickled_weights_runs_no_code(tiny: Tiny, tmp_path: Path, mark: Mark) -> None:
    model = hostile_files.with_pickled_weights(mark, tiny.model, tmp_path / "model")
    with pytest.raises(UnfitModelError, match="hold more than tensors"):
        load_head(str(model), "score", 16)
    assert mark.ran() == []


def test_a_checkpoint_runs_no_code(tmp_path: Path, mark: Mark) -> None:
    torch.save({"model": Bomb(mark)}, tmp_path / "policy.pt")
    with pytest.raises(TrainingError):
        state.read(tmp_path / "policy.pt", "cpu")
    assert mark.ran() == []


@pytest.mark.parametrize("opposite", ["0", "1"])
def test_what_libraries_read_runs_no_code_either(
    tmp_path: Path, mark: Mark, monkeypatch: pytest.MonkeyPatch, opposite: str
) -> None:
    """DeepSpeed reads its own checkpoints with weights_only=False."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", opposite)
    before = dict(os.environ)
    torch.save({"module": Bomb(mark)}, tmp_path / "states.pt")
    with pretrained.tensors_alone(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "states.pt", weights_only=False)
    assert mark.ran() == []
    assert dict(os.environ) == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stage_resumes_from_deepspeeds_checkpoint_and_runs_no_code_of_it(
    tiny: Tiny, tmp_path: Path, mark: Mark
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "completion": "2"}\n' * 8)
    flags: dict[str, Any] = {"pretrain": tiny.model, "dataset": rows, "save_path": tmp_path / "out"}
    flags |= {"train_batch_size": 4, "zero_stage": 2, "max_steps": 2, "save_steps": 1}
    first, second = tmp_path / "first", tmp_path / "second"

    def stage(**more: Any) -> str:
        words = to_argv({**flags, **more})
        with PortBlock() as port:
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            done = subprocess.run(
                [sys.executable, "-m", "trainer.supervised", "sft", *words],
                env={**os.environ, **alone, **where},
                stderr=subprocess.PIPE,
                text=True,
            )
        return done.stderr if done.returncode else ""

    assert stage(ckpt_path=first) == ""
    resume = {"ckpt_path": second, "resume_from_checkpoint": first / "checkpoint-1"}
    assert stage(**resume) == ""
    assert (second / "checkpoint-2/global_step2").is_dir()
    (states,) = (first / "checkpoint-1/global_step1").glob("mp_rank_*_model_states.pt")
    torch.save({"module": Bomb(mark)}, states)
    assert "UnpicklingError" in stage(**resume)
    assert mark.ran() == []


OWN = """import subprocess, sys, torch

OWN = {own!r}
READ = f"import torch; torch.load({{OWN!r}}, weights_only=False)"

def reward_func(queries, prompts, labels):
    exec(READ)
    subprocess.run([sys.executable, "-c", READ], check=True)
    return [0.5] * len(queries)

def loss(tokens, bounds):
    exec(READ)
    return -tokens.log_ratio * tokens.advantages

def worth(completions):
    exec(READ)
    return completions.rewards
"""


def test_a_users_own_code_reads_its_own_pickles(tiny: Tiny, tmp_path: Path, mark: Mark) -> None:
    """So do the programs that it starts."""
    torch.save({"module": Bomb(mark)}, tmp_path / "classifier.pt")
    own = tmp_path / "own.py"
    own.write_text(OWN.format(own=str(tmp_path / "classifier.pt")))
    flags = {"policy_loss_type": f"{own}:loss", "advantage_estimator": f"{own}:worth"}
    config = tiny.config(tmp_path / "run", remote_rm_url=own, max_steps=1, **flags)
    train(config, reward_function(config.reward_spec))
    assert len(mark.ran()) >= 4


def test_arrays_run_no_code(tmp_path: Path, mark: Mark) -> None:
    (tmp_path / "00000.npy").write_bytes(hostile_files.array(mark))
    with pytest.raises(IndexFault):
        dense._mapped(tmp_path)
    content = io.BytesIO()
    np.savez(content, told=np.array([Bomb(mark)], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        PendingRollouts.parse(content.getvalue())
    assert mark.ran() == []


@pytest.mark.parametrize("kind", ["script", "pickle", "card", "archive"])
def test_data_sets_run_no_code(tmp_path: Path, mark: Mark, kind: str) -> None:
    data = hostile_files.data_set(mark, kind, tmp_path / "data")
    with pytest.raises(PromptError):
        load_prompts(data, ReadSettings(input_key="prompt", label_key="answer"))
    assert mark.ran() == []


def test_openrlhfs_pickles_are_read_only_with_the_flag(
    tiny: Tiny, tmp_path: Path, mark: Mark, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_actor", "_critic"):
        step = tmp_path / "theirs" / name / "global_step3"
        step.mkdir(parents=True)
        (step.parent / "latest").write_text(step.name)
        torch.save({"module": Bomb(mark)}, step / "mp_rank_00_model_states.pt")
    words = to_argv(tiny.needed(tmp_path / "run"))
    assert import_openrlhf([str(tmp_path / "theirs"), *words]) == ExitCode.USAGE
    assert f"Give {TRUST} if you trust" in capsys.readouterr().err
    assert mark.ran() == []
    import_openrlhf([str(tmp_path / "theirs"), TRUST, *words])
    assert mark.ran() == ["pickle"]  # so this file's bombs do go off
