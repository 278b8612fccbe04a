"""Prepared data: nothing leaks, the same command gives the same bytes, torn files are mended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from env.data.prompts import PromptStream, ReadSettings
from env.data.rows import PromptError
from env.prepare.__main__ import main
from env.prepare.arithmetic import ALPHABET, Arithmetic, draw
from env.prepare.gsm8k import read_gsm8k
from env.prepare.output import PrepareError
from tests.support.repository import ROOT

EXCERPT = ROOT / "env" / "prepare" / "gsm8k_excerpt"
TINY = ["--hidden-size", "16", "--layers", "1", "--heads", "2"]
SUMS = ["arithmetic", "--max-operand", "19", "--eval-size", "30", *TINY]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepare") / "sums"
    assert main([*SUMS, "--out", str(out)]) == 0
    return out


LIGHT = """
import sys
sys.modules.update(dict.fromkeys(("tqdm", "transformers", "tokenizers")))  # importing them fails
from env.prepare.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_where_only_the_nodes_own_packages_are_installed_data_are_made_and_a_model_is_not(
    tmp_path: Path,
) -> None:
    def light(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIGHT, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = light("gsm8k", "--source", str(EXCERPT), "--out", str(tmp_path / "gsm8k"))
    assert done.returncode == 0, done.stderr
    done = light(*SUMS, "--out", str(tmp_path / "sums"))
    assert (done.returncode, len(done.stderr.splitlines())) == (os.EX_USAGE, 1), done.stderr
    assert "is not installed here" in done.stderr
    assert "pip install 'rollcall-rlhf[trainer]'" in done.stderr


def test_pairs_are_of_training_sums_and_only_the_better_answer_is_right(tmp_path: Path) -> None:
    assert main([*SUMS, "--pairs-size", "900", "--out", str(tmp_path)]) == 0
    right = {row["prompt"]: row["answer"] for row in rows(tmp_path / "train.jsonl")}
    pairs = rows(tmp_path / "pairs.jsonl")
    assert len(pairs) == 900
    assert {pair["prompt"] for pair in pairs} == right.keys()
    for pair in pairs:
        assert pair["chosen"] == right[pair["prompt"]]
        assert pair["rejected"] != pair["chosen"]
        assert pair["rejected"]
        assert set(pair["rejected"]) <= set(ALPHABET)


def test_without_a_number_of_pairs_there_are_none(prepared: Path) -> None:
    assert not (prepared / "pairs.jsonl").exists()


@given(
    max_operand=st.integers(1, 40),
    train_size=st.integers(1, 500),
    eval_size=st.integers(1, 200),
    seed=st.integers(0, 9),
)
def test_no_held_out_sum_is_trained_on_in_either_order(
    max_operand: int, train_size: int, eval_size: int, seed: int
) -> None:
    assume(eval_size < (max_operand + 1) * (max_operand + 2) // 2)
    train, warmup, held_out = draw(
        Arithmetic(max_operand=max_operand, train_size=train_size, eval_size=eval_size, seed=seed)
    )
    hidden = {frozenset((s.a, s.b)) for s in held_out}
    assert len(held_out) == len(hidden) == eval_size
    assert not hidden & {frozenset((s.a, s.b)) for s in train}
    assert set(warmup) <= set(train)
    assert 0 < len(train) == len(set(train)) <= train_size


def test_the_files_hold_sums_with_their_answers(prepared: Path) -> None:
    train = rows(prepared / "train.jsonl")
    for row in train + rows(prepared / "eval.jsonl"):
        a, b = row["prompt"].removesuffix("=").split("+")
        assert row["answer"] == str(int(a) + int(b))
    solved = {(row["prompt"], row["answer"]) for row in train}
    assert {(r["prompt"], r["completion"]) for r in rows(prepared / "warmup.jsonl")} <= solved
    stream = PromptStream(prepared / "train.jsonl", ReadSettings("prompt", "answer"))
    assert len(stream) == len(train)


def test_the_model_loads_as_any_causal_language_model(prepared: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared / "model")
    model = AutoModelForCausalLM.from_pretrained(prepared / "model")
    batch = tokenizer(["12+7=", "1+1="], padding=True, return_tensors="pt")
    assert tokenizer.decode(batch["input_ids"][1]) == "<pad>1+1="
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    longer = model.generate(**batch, max_new_tokens=3, do_sample=False)
    assert longer.shape[0] == 2


def test_the_default_models_have_at_most_a_million_parameters() -> None:
    from transformers import AutoModelForCausalLM

    from env.prepare.__main__ import SHAPES
    from env.prepare.model import tiny_config

    for shape in SHAPES.values():
        model = AutoModelForCausalLM.from_config(tiny_config(shape, vocabulary=258))
        assert model.num_parameters() < 1_000_000


def test_the_same_arguments_give_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert main([*SUMS, "--out", str(tmp_path / "again")]) == 0
    assert contents(tmp_path / "again") == contents(prepared)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_there_is_kept_what_is_torn_is_made_again(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(prepared)
    written = (prepared / "train.jsonl").stat().st_mtime_ns
    assert main([*SUMS, "--out", str(prepared)]) == 0
    assert "already there, kept" in capsys.readouterr().out
    assert (prepared / "train.jsonl").stat().st_mtime_ns == written

    (prepared / "train.jsonl").write_bytes(before["train.jsonl"].replace(b"1", b"2"))
    assert main([*SUMS, "--out", str(prepared)]) == 0
    assert contents(prepared) == before
    (prepared / "model" / "config.json").unlink()
    assert main([*SUMS, "--out", str(prepared)]) == 0
    assert contents(prepared) == before


def test_what_a_killed_run_left_is_removed_and_a_run_at_work_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "env.prepare", *SUMS, "--out", str(tmp_path), "--force"]
    deadline = time.monotonic() + 60
    with subprocess.Popen(command, cwd=ROOT) as other:
        while not (unfinished := list(tmp_path.glob(".prepare-*"))):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        other.send_signal(signal.SIGSTOP)
        try:
            assert main([*SUMS, "--out", str(tmp_path)]) == 0
            assert list(tmp_path.glob(".prepare-*")) == unfinished
        finally:
            other.kill()
    assert main([*SUMS, "--out", str(tmp_path), "--force"]) == 0
    assert not list(tmp_path.glob(".prepare-*"))


def test_other_arguments_need_force(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(prepared)
    other = [*SUMS, "--seed", "5", "--out", str(prepared)]
    assert main(other) == 64
    message = capsys.readouterr().err
    assert "seed 0 (now 5)" in message
    assert "--force" in message
    assert contents(prepared) == before

    assert main([*other, "--force"]) == 0
    assert contents(prepared)["train.jsonl"] != before["train.jsonl"]
    assert main([*SUMS, "--out", str(prepared), "--force"]) == 0
    assert contents(prepared) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["arithmetic", "--max-operand", "9", "--eval-size", "55"],
            "operands up to 9 give 55 pairs",
        ),
        (["arithmetic", "--eval-size", "-1"], "'-1' is not a whole number from 1"),
        (["arithmetic", "--hidden-size", "30", "--heads", "4"], "multiple of 2 x --heads (4)"),
        (["gsm8k", "--source", "nowhere"], "nowhere: no train split of GSM8K"),
        (["gsm8k", "--source", str(EXCERPT), "--template", "none"], "wants {} where"),
        (["sums"], "TASK: sums is unknown: give one of arithmetic"),
    ],
)
def test_wrong_usage_is_one_line_and_64(tmp_path: Path, arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "env.prepare", *arguments, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 64
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unwritable_place_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([*SUMS, "--out", str(tmp_path / "file")]) == 64
    assert "file: not writable" in capsys.readouterr().err


def test_gsm8k_is_the_same_from_every_layout(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {
        name: Dataset.from_list(rows(EXCERPT / f"{name}.jsonl")) for name in ("train", "test")
    }
    DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    for name, split in splits.items():
        shards = 2 if name == "train" else 1
        for n in range(shards):
            shard = split.shard(shards, n, contiguous=True)
            shard.to_parquet(
                str(tmp_path / "hub" / "main" / f"{name}-{n:05}-of-{shards:05}.parquet")
            )
    expected = read_gsm8k(EXCERPT)
    assert (len(expected.train), len(expected.test)) == (16, 6)
    assert read_gsm8k(tmp_path / "saved") == expected
    assert read_gsm8k(tmp_path / "hub") == expected
    assert read_gsm8k(tmp_path / "hub" / "main").digest == expected.digest


def test_gsm8k_becomes_prompts_and_a_model_only_if_one_is_asked_for(tmp_path: Path) -> None:
    gsm8k = ["gsm8k", "--source", str(EXCERPT), "--out", str(tmp_path / "out")]
    assert main(gsm8k) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["eval.jsonl", "prepared.json", "train.jsonl", "warmup.jsonl"]
    assert main([*gsm8k, "--tiny-model", *TINY]) == 64, "made with other arguments"


def test_without_a_source_gsm8k_is_the_hub_s(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "env.prepare", "gsm8k", "--out", str(tmp_path / "out")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=offline)
    assert done.returncode == 64
    assert "openai/gsm8k cannot be fetched (HF_HUB_OFFLINE is set" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_source_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.jsonl").mkdir()
    (tmp_path / "test.jsonl").mkdir()
    assert main(["math", "--source", str(tmp_path), "--out", str(tmp_path / "out")]) == 64
    assert "train.jsonl: not readable: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["gsm8k", "math", "nq", "mathv60k"])
def test_no_source_is_written_over(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    shutil.copytree(EXCERPT, source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    command = [task, "--source", str(source), "--out", f"{tmp_path}/other/../source"]
    (tmp_path / "other").mkdir()
    assert main(command) == 64
    assert "--out is the directory of --source" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_the_model_of_gsm8k_reads_any_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    out = tmp_path / "out"
    gsm8k = ["gsm8k", "--source", str(EXCERPT), "--out", str(out), "--tiny-model", *TINY]
    assert main(gsm8k) == 0
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    for row in rows(out / "train.jsonl"):
        assert row["answer"].lstrip("-").isdecimal()
        assert "####" in row["prompt"]
    for row in [*rows(out / "warmup.jsonl"), {"prompt": "é€\n\t", "completion": "  ½ 日本"}]:
        text = row["prompt"] + row["completion"]
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens) == text
        assert len(tokens) == len(text.encode())
        assert "<<" not in row["completion"]
    assert main([*gsm8k, "--max-samples", "3"]) == 64


def test_a_solution_without_a_number_is_named_by_its_line(tmp_path: Path) -> None:
    for split in ("train", "test"):
        text = (EXCERPT / f"{split}.jsonl").read_text()
        (tmp_path / f"{split}.jsonl").write_text(text + '{"question": "?", "answer": "many"}\n')
    with pytest.raises(PromptError, match=r"train\.jsonl:17: no number after ####"):
        read_gsm8k(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"question": "?", "answer": null}\n')
    with pytest.raises(PromptError, match=r"train\.jsonl:1: 'question' or 'answer' is not text"):
        read_gsm8k(tmp_path)
    with pytest.raises(PrepareError, match="no train split"):
        read_gsm8k(tmp_path / "none")
    (tmp_path / "train.jsonl").write_text("\n")
    (tmp_path / "test.jsonl").write_text((EXCERPT / "test.jsonl").read_text())
    with pytest.raises(PrepareError, match="the split train of GSM8K has no problems"):
        read_gsm8k(tmp_path)
