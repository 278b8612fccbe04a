"""What an engine lacks is said before anything starts."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from tests.support.tiny_run import Tiny, to_argv
from trainer.__main__ import main
from trainer.config import model_files
from trainer.config.job_checks import data_faults, engine_faults, model_faults, model_warnings
from trainer.config.parse import parse, parse_all
from trainer.config.whole_job import start_faults


@pytest.fixture
def grouped(tiny: Tiny, tmp_path: Path) -> Tiny:
    """A model of 12 heads that share 4 of keys and values, and 64 positions."""
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((tiny.model / "config.json").read_text())
    shape = {"num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(config | shape))
    return replace(tiny, model=model)


def test_a_plan_leaves_out_what_it_needs_a_library_of_the_trainer_for(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rollcall plan` needs the node's own packages alone; the trainer says what it lacks."""
    for package in ("safetensors", "tokenizers"):
        monkeypatch.setitem(sys.modules, package, None)
    assert [*model_files.faults(tiny.model, tokenizer=False)] == []
    config = parse(to_argv(tiny.needed(tmp_path)))
    assert data_faults(config) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"vllm_tensor_parallel_size": 5}, "5 does not divide the 12 num_attention_heads"),
        ({"vllm_tensor_parallel_size": 3}, "3 does not divide the 4 num_key_value_heads"),
        (
            {"ring_attn_size": 5, "actor_num_nodes": 5, "colocate_all_models": True},
            "--ring_attn_size 5: --pretrain .*not divide the model's 12 heads.*1, 2, 3, 4, 6, 12",
        ),
        ({"prompt_max_len": 100}, "make 103 tokens; .* has 64 positions. Give --max_len 64"),
        (
            {"flash_attn": True, "bf16": True},
            "flash-attn is not installed here.*torch's own kernels",
        ),
        (
            {"use_liger_kernel": True, "param_dtype": "bf16"},
            "liger-kernel is not installed here.*without the flag torch does the same",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_said(
    grouped: Tiny, run_dir: Path, flags: dict[str, Any], said: str
) -> None:
    given = {"rollout_engine": "vllm", "prompt_max_len": 16, **flags}
    fault, *_ = engine_faults(grouped.config(run_dir, **given))
    assert re.search(said, fault)


LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 16,
    "factor": 3.0,
    "short_factor": [1.0],
    "long_factor": [4.0],
}


@pytest.mark.parametrize(
    ("shape", "flags", "said"),
    [
        ({"model_type": "mamba2"}, {}, "--rollout_engine hf cannot decode .*mamba2 keeps a state"),
        (
            {"model_type": "llama4_text", "attn_temperature_tuning": True, "floor_scale": 16},
            {},
            "--rollout_engine hf cannot decode .*Give --max_len 16",
        ),
        (
            {"attn_logit_softcapping": 50.0},
            {"attn_implementation": "sdpa"},
            "--attn_implementation sdpa: .*leaves out attn_logit_softcapping 50.0",
        ),
        ({"model_type": "gpt2", "n_positions": 8}, {}, "--pretrain .*a table of 8 positions"),
        ({}, {"aux_loss_coef": 0.01}, "--aux_loss_coef 0.01 .* has none. Leave it out"),
        ({"rope_parameters": LONGROPE}, {"rollout_engine": "vllm"}, "vLLM ignores the factor"),
    ],
)
def test_what_an_architecture_cannot_do_is_said(
    tiny: Tiny,
    run_dir: Path,
    tmp_path: Path,
    shape: dict[str, Any],
    flags: dict[str, Any],
    said: str,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    own = json.loads((tiny.model / "config.json").read_text()) | shape
    if "n_positions" in shape:
        del own["max_position_embeddings"]
    (model / "config.json").write_text(json.dumps(own))
    given = {"rollout_engine": "hf", "prompt_max_len": 30, "generate_max_len": 4, **flags}
    (fault,) = engine_faults(replace(tiny, model=model).config(run_dir, **given))
    assert re.search(said, fault)


@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
def test_heads_that_ranks_share_or_copy_are_right(grouped: Tiny, run_dir: Path, ranks: int) -> None:
    flags = {"rollout_engine": "vllm", "prompt_max_len": 16, "vllm_tensor_parallel_size": ranks}
    assert engine_faults(grouped.config(run_dir, **flags)) == []


def test_a_model_whose_positions_are_scaled_is_left_to_vllm(grouped: Tiny, run_dir: Path) -> None:
    path = grouped.model / "config.json"
    scaled = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    path.write_text(json.dumps(json.loads(path.read_text()) | scaled))
    config = grouped.config(run_dir, rollout_engine="vllm", prompt_max_len=100)
    assert engine_faults(config) == []


def test_without_vllm_its_engine_ends_with_64_and_says_what_to_do(
    tiny: Tiny,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    config = tiny.config(run_dir)
    flags = {n: getattr(config, n) for n in ("pretrain", "prompt_data", "run_dir", "remote_rm_url")}
    told = to_argv({**flags, "max_len": 32, "generate_max_len": 3, "rollout_engine": "vllm"})
    assert main(told) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "pip install vllm==0.29.0" in said
    assert "--rollout_engine hf" in said
    assert not run_dir.exists()


@pytest.mark.parametrize("asked", [True, False])
def test_packing_that_a_model_does_not_allow_is_named(
    grouped: Tiny, tmp_path: Path, asked: bool
) -> None:
    config = grouped.config(tmp_path, packing_samples=asked)
    assert [*model_warnings(config)] == []
    path = grouped.model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "mamba2"}))
    said = [
        f"--packing_samples: samples of --pretrain {grouped.model} are padded all the same: a "
        "layer of mamba2 has a state, which goes on from sample to sample"
    ]
    assert [*model_warnings(config)] == (said if asked else [])


def test_faults_of_flags_rewards_and_data_are_told_at_once(
    tiny: Tiny, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {
        **tiny.needed(run_dir),
        "input_key": "promt",
        "remote_rm_url": "arithmatic",
        "learning_rate": "x",
        "train_batch_size": 7,
    }
    assert main(to_argv(flags)) == ExitCode.USAGE
    told = capsys.readouterr().err
    for flag in ("--learning_rate", "--train_batch_size", "--remote_rm_url", "--prompt_data"):
        assert re.search(rf"^{flag}\b", told, re.MULTILINE), flag
    assert (
        "did you mean 'prompt'? Give --input_key prompt, or add the key. Every row needs promt"
        in told
    )


@pytest.mark.parametrize("wrong", [{"inputkey": "prompt"}, {"max_samples": "x"}])
def test_data_are_not_judged_by_a_column_that_nobody_named(
    tiny: Tiny, run_dir: Path, wrong: dict[str, Any]
) -> None:
    """The flag is at fault: whether its column is there is not known."""
    needed = {key: value for key, value in tiny.needed(run_dir).items() if key != "input_key"}
    faults = start_faults(parse_all(to_argv(needed | wrong)))
    assert faults
    assert not any("--prompt_data" in str(one) for one in faults)


def test_a_name_on_the_hub_like_a_directory_here_is_warned_of(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model").symlink_to(tiny.model)
    monkeypatch.chdir(tmp_path)
    assert "here there is data/model" in str(
        [*model_warnings(tiny.config(run_dir, pretrain="data/model-2"))]
    )
    with pytest.raises(ConfigError, match=r"--pretrain: no model there.* In data there is model"):
        tiny.config(run_dir, pretrain="data/modl")
    assert not [*model_warnings(tiny.config(run_dir, pretrain="other/modl"))]


def test_a_model_that_is_not_beside_the_users_own_files_is_refused(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "model").mkdir(parents=True)
    (tmp_path / "data" / "train.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    for wrong in ("data/modell", "~/model", "a model"):
        with pytest.raises(ConfigError, match="--pretrain: no model there"):
            tiny.config(run_dir, pretrain=wrong)
    assert tiny.config(run_dir, pretrain="other/modell").pretrain == "other/modell"


@pytest.mark.parametrize(
    ("row", "given"),
    [
        ({"question": "1+1=", "answer": "2"}, "--input_key question"),
        ({"prompt": "1+1=", "solution": "2"}, "--label_key solution"),
        ({"text": "1+1=", "answer": "2"}, "--input_key COLUMN"),
    ],
)
def test_a_missing_key_names_the_flag_and_the_column_that_it_may_be(
    tiny: Tiny, run_dir: Path, tmp_path: Path, row: dict[str, str], given: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    config = tiny.config(
        run_dir, prompt_data=rows, eval_dataset=None, input_key="prompt", label_key="answer"
    )
    (fault,) = map(str, data_faults(config))
    assert f"Give {given}, or add the key. Every row needs prompt and answer" in fault


@pytest.mark.parametrize(
    ("name", "text", "has_remedy"),
    [
        ("rows.jsonl", "not json", True),
        ("rows.jsonl", '{"prompt": 5, "answer": "2"}', True),
        ("rows.jsonl", "", False),
        ("rows.csv", "prompt,answer", False),
    ],
)
def test_what_rows_need_is_said_only_of_a_row(
    tiny: Tiny, run_dir: Path, tmp_path: Path, name: str, text: str, has_remedy: bool
) -> None:
    rows = tmp_path / name
    rows.write_text(text)
    keys = {"input_key": "prompt", "label_key": "answer"}
    (fault,) = map(
        str, data_faults(tiny.config(run_dir, prompt_data=rows, eval_dataset=None, **keys))
    )
    assert ("Every row needs prompt and answer" in fault) == has_remedy


def test_a_template_without_a_place_for_the_text_is_one_fault_of_its_flag(
    tiny: Tiny, run_dir: Path
) -> None:
    argv = to_argv(
        tiny.needed(run_dir) | {"input_template": "hello", "eval_dataset": tiny.held_out}
    )
    (fault,) = map(str, start_faults(parse_all(argv)))
    assert fault == "--input_template: has no {} (given: hello). Put {} for the prompt"


def test_a_model_here_without_a_chat_template_is_refused_before_the_run(
    tiny: Tiny, run_dir: Path
) -> None:
    assert not any("chat template" in one for one in model_faults(tiny.config(run_dir)))
    (fault,) = model_faults(tiny.config(run_dir, apply_chat_template=True))
    assert "has no chat template. Leave the flag out" in fault


def test_adapters_of_a_module_that_the_model_lacks_are_refused_by_the_names_of_its_weights(
    tiny: Tiny, run_dir: Path
) -> None:
    wrong = tiny.config(run_dir, lora_rank=2, target_modules="q_projj")
    (fault,) = model_faults(wrong)
    assert "--target_modules q_projj" in fault
    assert "did you mean q_proj?" in fault
    assert model_faults(tiny.config(run_dir, lora_rank=2, target_modules="q_proj")) == []


def test_a_learning_rate_that_nobody_uses_is_warned_of(tiny: Tiny, run_dir: Path) -> None:
    (said,) = tiny.config(run_dir, actor_learning_rate=1).warnings
    assert "--actor_learning_rate 1 is unusual" in said
    assert tiny.config(run_dir, actor_learning_rate=1e-3).warnings == ()
