"""`rollcall translate` with Python scripts of TRL's trainers, as their users write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.translate import flags, run

OBJECTS = """\
import os
from dataclasses import dataclass
import rewards as own
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import GRPOConfig as Config, GRPOTrainer

os.environ["NCCL_DEBUG"] = "INFO"
more = {"beta": 0.04, **dict(top_p=0.9)}
changed = dict(temperature=0.5)
changed.update(epsilon=0.3)

class Mine(GRPOTrainer):
    def compute_loss(self, *args): ...

model = AutoModelForCausalLM.from_pretrained(
    "m/m", torch_dtype=torch.bfloat16, revision="old", rope_scaling=own.rope())
rows = load_dataset("o/d", split="train")
rows = rows.map(own.to_chat)
config = Config("o", invented=3, gradient_checkpointing_kwargs=own.kinds(), **more, **changed)
config.max_steps = 40
trainer = Mine(model, own.score, config, rows, callbacks=[Stop()], tools=[own.search],
               quantization_config=BitsAndBytesConfig(load_in_4bit=True), rollout_func=None,
               processing_class=AutoTokenizer.from_pretrained("m/m"), optimizers=(None, None))
trainer.add_callback(Log)
"""


SENTENCES = {
    "lost": [
        "Mine is the script's own GRPOTrainer: not taken over: compute_loss",
        "invented: TRL 1.16 has no such flag",
        "model_revision=old: give a directory with that revision",
        "rope_scaling=own.rope() is not taken over: the model is as its files say",
        "callbacks=[Stop()] is not taken over: hooks in the loop are absent",
        "trainer.add_callback(Log) is not taken over: hooks in the loop are absent",
        "tools=[own.search] is not taken over: episodes of several turns are environments",
        "quantization_config=BitsAndBytesConfig(load_in_4bit=True) is not taken over",
    ],
    "needed": [
        "GRPOConfig(**changed) is not taken over: give its arguments as flags",
        "reward_funcs=own.score is not taken over: give --reward rewards.py:score",
        ".map(own.to_chat): --prompt_data reads the rows as they are stored",
    ],
    "first": ["NCCL_DEBUG: set in the script"],
    "notes": [
        "gradient_checkpointing_kwargs=own.kinds(): it is so here",
        "processing_class: the tokeniser is the model's, in both",
    ],
}


def test_no_argument_of_a_script_is_lost_without_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OBJECTS)
    code, out, _ = run(capsys, "--json", str(script))
    row = json.loads(out)
    assert code == 1
    told = {title: "\n".join(row[title]) for title in SENTENCES}
    for title, sentences in SENTENCES.items():
        assert [one for one in sentences if one not in told[title]] == [], told
    assert "optimizers" not in "".join(told.values())
    made = flags(run(capsys, str(script))[1])
    names = ("--pretrain", "--init_kl_coef", "--top_p", "--max_steps", "--temperature")
    assert [made.get(name) for name in names] == [["m/m"], ["0.04"], ["0.9"], ["40"], None]


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ("SFT", "(docs/recipes/trl.md), or write the flags of `rollcall sft` (docs/supervised.md)"),
        ("KTO", "(docs/recipes/trl.md)\n"),
    ],
)
@pytest.mark.parametrize("own", [[], ["--from", "trl"], ["--from", "verl"]])
def test_a_script_of_another_trainer_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trainer: str, said: str, own: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"from trl import {trainer}Trainer as T\nT(model='m/m').train()\n")
    code, out, err = run(capsys, *own, "--", "python", str(script))
    assert (code, out) == (64, "")
    assert f"{script} builds a {trainer}Trainer, and only GRPOTrainer is translated" in err
    assert f"`rollcall up python {script}` {said}" in err


UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward
model, tokenizer = FastLanguageModel.from_pretrained(model_name="u/m", fast_inference=True)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules=["q_proj"])
args = GRPOConfig(output_dir="o", eval_strategy="steps")
GRPOTrainer(model=model, reward_funcs=[accuracy_reward], args=args, eval_dataset=held_out())
"""


def test_a_model_that_a_package_of_adapters_loads_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNSLOTH)
    _, out, err = run(capsys, str(script))
    made = flags(out)
    assert (made["--pretrain"], made["--lora_rank"]) == (["u/m"], ["32"])
    assert (made["--reward"], made["--label_key"]) == (["math-verify:1"], ["solution"])
    assert "fast_inference=True is not taken over" in err
    assert "eval_dataset=held_out() is not taken over: give --eval_dataset FILE" in err


BATCHES = """\
import os
from trl import GRPOConfig, GRPOTrainer
ACCUMULATED = 2**3
args = GRPOConfig(num_generations=64 // 4, learning_rate=1e-6 * 2, {})
GRPOTrainer(model="m/" + "m", args=args, reward_funcs="r/m")
"""
COMPUTED = ("--micro_train_batch_size", "--rollout_batch_size", "--train_batch_size")


@pytest.mark.parametrize(
    ("batches", "expected", "said"),
    [
        ("per_device_train_batch_size=1 * 16, gradient_accumulation_steps=ACCUMULATED // 2",
         [["16"], ["4"], ["64"]], ""),
        ("per_device_train_batch_size=16, gradient_accumulation_steps=int(os.environ['GA'])",
         [["16"], None, None], "gradient_accumulation_steps=int(os.environ['GA']) is not taken "
         "over: give --train_batch_size. Left out for it: --rollout_batch_size. "
         "Or give --gradient_accumulation_steps VALUE behind the script"),
        ("per_device_train_batch_size=own.size()", [None, None, None],
         "per_device_train_batch_size=own.size() is not taken over: give --micro_train_batch_size. "
         "Left out for it: --rollout_batch_size, --train_batch_size"),
        ("per_device_train_batch_size=10**10**10", [None, None, None], "=10 ** 10 ** 10 is not"),
        ("per_device_train_batch_size=8 // 0", [None, None, None], "=8 // 0 is not taken over"),
    ],
)  # fmt: skip
def test_arithmetic_of_a_script_is_computed_and_nothing_from_a_value_that_is_not_known(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    batches: str,
    expected: list[list[str] | None],
    said: str,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BATCHES.format(batches))
    _, out, err = run(capsys, str(script))
    made = flags(out)
    assert [made.get(name) for name in COMPUTED] == expected, err
    assert (made["--n_samples_per_prompt"], made["--pretrain"]) == (["16"], ["m/m"])
    assert (made["--actor_learning_rate"], made["--save_steps"]) == (["2e-06"], ["500"])
    assert said in err
    assert ("batch_size=" in err or "steps=" in err) == bool(said)


def test_a_rank_that_is_not_known_is_not_that_of_the_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    lora = "GRPOTrainer(model='m/m', peft_config=LoraConfig(r=rank()))"
    script.write_text(f"from trl import GRPOTrainer\nfrom peft import LoraConfig\n{lora}\n")
    _, out, err = run(capsys, str(script))
    assert "--lora_rank" not in flags(out)
    assert "LoraConfig(r=rank()) is not taken over: give --lora_rank, --lora_alpha" in err


def test_what_is_computed_from_an_open_variable_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("trl grpo --num_generations 4 --gradient_accumulation_steps $GA\n")
    _, out, err = run(capsys, str(script))
    assert not {"--train_batch_size", "--rollout_batch_size"} & {*flags(out)}
    which = "gradient_accumulation_steps=${GA} is known only where it runs"
    assert f"--rollout_batch_size: left out, since {which}" in err
