"""Several data sets by flags: what is read, and every fault of them at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from contract.options import ConfigError
from tests.support.tiny_run import Tiny, to_argv
from trainer.config.job_checks import data_faults
from trainer.config.parse import parse
from trainer.rollout import prompts


def write(path: Path, *answers: str) -> Path:
    rows = (json.dumps({"prompt": f"{answer}+0=", "answer": answer}) + "\n" for answer in answers)
    path.write_text("".join(rows))
    return path


def test_several_sets_are_read_with_their_shares(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", *map(str, range(9)))
    second = write(tmp_path / "b.jsonl", "20", "21")
    both = f"{first}, {second}"
    config = tiny.config(run_dir, prompt_data=both, eval_dataset=both)
    loaded = prompts.load(config)
    assert len(loaded.stream) == 11
    assert [prompt.label for prompt in loaded.held_out] == [*map(str, range(9)), "20", "21"]
    assert [prompt.index for prompt in loaded.held_out] == list(range(11))
    mix = prompts.load(tiny.config(run_dir, prompt_data=both, prompt_data_probs="1,9")).stream
    labels = [prompt.label for prompt in mix.prompts]
    assert labels.count("20") + labels.count("21") > 3 * len(labels) / 4
    assert set(labels) == {*map(str, range(9)), "20", "21"}


def test_the_flags_of_a_run_read_back_are_the_same(tiny: Tiny, run_dir: Path) -> None:
    both = f"{tiny.prompts},owner/name:main"
    config = tiny.config(run_dir, prompt_data=both, prompt_data_probs="0.5,0.5")
    assert config.prompt_data is not None
    assert config.prompt_data.names == (str(tiny.prompts), "owner/name:main")
    assert str(config.prompt_data) == both


def test_a_path_with_a_comma_is_one_set(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    odd = write(tmp_path / "a,b.jsonl", "1")
    config = tiny.config(run_dir, prompt_data=odd)
    assert config.prompt_data is not None
    assert config.prompt_data.paths == (odd,)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ("0.5,0.3,0.2", "names 2 data sets, and here is another number of shares: 3"),
        ("0.5", "names 2 data sets, and here is another number of shares: 1"),
        ("0.5,-0.5", "must be numbers above 0"),
        ("0,0", "must be numbers above 0"),
        ("1,0", "must be numbers above 0"),
        ("1,nan", "must be numbers above 0"),
        ("half,half", "must be numbers above 0"),
        ("0.5,", "must be numbers above 0"),
    ],
)
def test_shares_that_do_not_fit_are_a_fault(
    tiny: Tiny, run_dir: Path, shares: str, said: str
) -> None:
    both = f"{tiny.prompts},{tiny.held_out}"
    with pytest.raises(ConfigError) as error:
        tiny.config(run_dir, prompt_data=both, prompt_data_probs=shares)
    (fault,) = error.value.faults
    assert fault.path == "--prompt_data_probs"
    assert said in str(fault)


def test_all_faults_of_several_sets_come_at_once(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(ConfigError) as error:
        tiny.config(
            run_dir,
            prompt_data=f"/nowhere.jsonl,{tiny.prompts},/gone.jsonl",
            prompt_data_probs="1,2",
            eval_dataset=f"{tiny.held_out},/lost.jsonl",
        )
    said = [(fault.path, fault.value) for fault in error.value.faults]
    assert said == [
        ("--prompt_data", "/nowhere.jsonl"),
        ("--prompt_data", "/gone.jsonl"),
        ("--prompt_data_probs", "1,2"),
        ("--eval_dataset", "/lost.jsonl"),
    ]


def test_the_share_of_one_set_has_no_effect_and_a_set_without_a_name_is_a_fault(
    tiny: Tiny, run_dir: Path
) -> None:
    alone = prompts.load(tiny.config(run_dir)).stream.prompts
    assert prompts.load(tiny.config(run_dir, prompt_data_probs="1.0")).stream.prompts == alone
    with pytest.raises(ConfigError, match="names 1 data sets, and here is another number of"):
        tiny.config(run_dir, prompt_data_probs="0.5,0.5")
    with pytest.raises(ConfigError, match="--prompt_data: must be data sets separated by commas"):
        tiny.config(run_dir, prompt_data=f"{tiny.prompts},,{tiny.held_out}")


def test_each_set_is_looked_into_and_scored(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "1+1="}\n')
    words = write(tmp_path / "words.jsonl", "two", "three")
    config = tiny.config(run_dir, prompt_data=f"{tiny.prompts},{broken},{words}")
    first, second = map(str, data_faults(config))
    assert first.startswith(f"--prompt_data: {broken}:1: the key 'answer' is missing")
    assert f"can score none of the first 2 rows of {words}" in second


def test_a_split_is_read_from_a_directory_and_has_no_effect_on_files(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    row = {"prompt": "1+1=", "answer": "2"}
    splits = {"train": Dataset.from_list([row]), "hard": Dataset.from_list([row] * 3)}
    DatasetDict(splits).save_to_disk(saved)
    flags = {"prompt_data": saved, "prompt_split": "hard", "eval_dataset": saved}
    config = tiny.config(run_dir, **flags)
    assert config.warnings == ()
    assert data_faults(config) == []
    loaded = prompts.load(config)
    assert (len(loaded.stream), len(loaded.held_out)) == (3, 1)
    wrong = tiny.config(run_dir, **flags, eval_split="dev")
    (fault,) = map(str, data_faults(wrong))
    assert f"--eval_dataset: {saved}: has no split 'dev'; name one of its splits" in fault
    files = tiny.config(run_dir, prompt_split="test", eval_split="test").warnings
    assert [warning.split()[0] for warning in files] == ["--prompt_split", "--eval_split"]


def test_openrlhf_s_dotted_spellings_say_the_same(tiny: Tiny, run_dir: Path) -> None:
    base = {n: getattr(tiny.config(run_dir), n) for n in ("pretrain", "run_dir", "remote_rm_url")}
    dotted = ["--data.prompt_dataset", f"{tiny.prompts},{tiny.held_out}"]
    config = parse([*to_argv(base), *dotted, "--data.prompt_probs", "0.9,0.1"])
    assert config.prompt_data_probs is not None
    assert config.prompt_data_probs.numbers == (0.9, 0.1)
