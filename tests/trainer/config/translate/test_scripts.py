"""`rollcall translate` with Python scripts of TRL's trainers, as their users write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.translate import TRL, flags, run

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
    script.write_text(UNSLOTH.replace("\nargs", "\ndef accuracy_reward(): ...\nargs"))
    _, out, err = run(capsys, str(script))
    assert "--reward" not in flags(out)
    assert f"give --reward {script}:accuracy_reward" in err


BATCHES = """\
import os
from trl import GRPOConfig, GRPOTrainer
ACCUMULATED = 2**3
NAME = "m"
args = GRPOConfig(num_generations=64 // 4, learning_rate=1e-6 * 2, {},
                  lr_scheduler_type=SchedulerType.COSINE)
GRPOTrainer(model=f"m/{{NAME}}", args=args, reward_funcs=os.path.join("r", "m"))
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
    assert (made["--lr_scheduler"], made["--reward_pretrain"]) == (["cosine"], ["r/m"])
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


OWN_FLAGS = """\
from dataclasses import dataclass
from trl import GRPOConfig, GRPOTrainer, TrlParser

@dataclass
class Base:
    reward_scale: float = 1.0

@dataclass
class ScriptArgs(Base):
    dataset_name: str = ""

own, args = TrlParser((ScriptArgs, GRPOConfig)).parse_args_and_config()
GRPOTrainer(model="m/m", args=args, reward_funcs="r/m")
"""
DEEPSPEED_FILE = """\
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: nvme,
                   zero3_init_flag: true, gradient_accumulation_steps: 4}
mixed_precision: bf16
num_machines: 2
num_processes: 16
fp8_config: {backend: TE}
"""
FSDP_FILE = """\
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_offload_params: true}
num_processes: 8
"""
LAYOUT = ("--actor_num_nodes", "--actor_num_gpus_per_node", "--zero_stage", "--adam_offload")


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        (DEEPSPEED_FILE, [], [["2"], ["8"], ["3"], []]),
        (DEEPSPEED_FILE, ["--num_processes", "4"], [["2"], ["2"], ["3"], []]),
        (FSDP_FILE, [], [None, ["8"], ["2"], []]),
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", [], [None, ["4"], ["0"], None]),
        ("distributed_type: DEEPSPEED\n", [], [None, None, ["2"], None]),
        ("distributed_type: TP\n", [], [None, None, None, None]),
    ],
)
def test_accelerate_s_file_is_read_and_typed_flags_count_more(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    typed: list[str],
    expected: list[list[str] | None],
) -> None:
    file, script, config = (tmp_path / name for name in ("ds.yaml", "own.py", "t2.yaml"))
    file.write_text(text)
    script.write_text(OWN_FLAGS)
    config.write_text("dataset_name: o/d\nreward_scale: 2.0\n")
    launch = ["accelerate", "launch", "--config_file", str(file), *typed]
    _, out, err = run(capsys, "--", *launch, str(script), "--config", str(config))
    made = flags(out)
    assert [made.get(name) for name in LAYOUT] == expected, err
    assert "reward_scale=2.0: a field of the script's own Base, not of TRL 1.16" in err
    assert "no such flag" not in err
    assert ("processes: none are named" in err) == ("num_processes" not in text)
    if text == DEEPSPEED_FILE:
        assert "offload_param_device=nvme: weights stay on the GPUs" in err
        assert f"{file}: fp8_config=" in err
        assert f"{file}: mixed_precision=bf16: TRL's own flags decide" in err
        assert f"{file}: zero3_init_flag: it is so here" in err
    assert ("distributed_type=TP is not taken over: give --zero_stage" in err) == ("TP" in text)
    file.write_text("a: [")
    code, out, err = run(capsys, "--", *launch, str(script))
    assert (code, out) == (64, "")
    assert err.startswith(f"rollcall translate: --config_file {file}: is not YAML in line 1")


def test_deepspeed_s_own_file_is_read_and_one_that_is_not_here_counts_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    file.write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": "auto"}}))
    _, out, err = run(capsys, "--", *TRL.split(), "--deepspeed", str(file))
    made = flags(out)
    assert (made["--zero_stage"], made["--adam_offload"]) == (["3"], []), err
    _, out, err = run(capsys, "--", *TRL.split(), "--deepspeed", "away/zero2.json")
    assert flags(out)["--zero_stage"] == ["2"]
    assert "deepspeed=away/zero2.json: the file is not here, so its name alone counts" in err


PARSED = """\
import argparse
from trl import GRPOConfig, GRPOTrainer

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--lr", "--learning-rate", type=float, default=1e-6)
    parser.add_argument("-g", "--gens-per-prompt", dest="gens", type=int, default=8)
    parser.add_argument("--beta", type=float)
    parser.add_argument("--no-checks", action="store_false", dest="checks")
    parser.add_argument("--top-p", type=float, default=os.environ.get("TOP_P"))
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--tag", default="p")
    return parser.parse_args()

def main(args):
    print(vars(args))
    args.temperature = schedule(args.temperature)
    config = GRPOConfig("o", learning_rate=args.lr, num_generations=args.gens, beta=args.beta,
                        per_device_train_batch_size=args.gens * 2, top_p=args.top_p,
                        gradient_checkpointing=args.checks, temperature=args.temperature)
    GRPOTrainer(args.model, "r/m", config).train()

main(parse_args())
"""


@pytest.mark.parametrize(
    ("typed", "has"),
    [
        ((), {"--actor_learning_rate": "1e-06", "--n_samples_per_prompt": "8"}),
        (("--lr", "2e-5"), {"--actor_learning_rate": "2e-05", "--n_samples_per_prompt": "8"}),
        (
            ("--gens-per-prompt", "4", "--lr=3e-5"),
            {"--n_samples_per_prompt": "4", "--train_batch_size": "8"},
        ),
    ],
)
def test_an_option_of_argparse_has_what_is_typed_or_its_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: Sequence[str], has: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARSED)
    _, out, err = run(capsys, str(script), *typed)
    ours = flags(out)
    assert {name: " ".join(ours.get(name, [])) for name in has} == has
    for left in ("top_p=args.top_p", "temperature=args.temperature", "model=args.model"):
        assert f"{left} is not taken over" in err
    assert "beta=None: the same as without it" in err
    assert "lr: TRL" not in err
    assert "--gradient_checkpointing" in out


@pytest.mark.parametrize(
    "line",
    ["parser.set_defaults(**own)", "setattr(args, name, 1)", "vars(args).update(own)",
     "parser.parse_args(own)"],
)  # fmt: skip
def test_no_option_is_read_where_the_script_may_set_any(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{PARSED}{line}\n")
    _, out, err = run(capsys, str(script))
    assert "learning_rate=args.lr is not taken over" in err
    assert "--actor_learning_rate" not in out


def test_an_option_that_only_the_script_uses_is_its_own_and_no_flag_of_trl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARSED)
    _, out, err = run(capsys, str(script), "--tag", "mine", "--no-checks")
    assert "tag=mine: an option of the script's own: what the script does with it" in err
    assert "tag: TRL" not in err
    assert "no-checks" not in err
    assert "--gradient_checkpointing" not in out
