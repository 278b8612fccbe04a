"""`rollcall translate` with the input of strangers: files, sums, secrets, and what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.translate import MODEL, TRL, VERL, flags, run

CONFIG = """
model_name_or_path: m/m
dataset_name: o/d
reward_funcs: [accuracy_reward, my.rewards.short]
learning_rate: 1.0e-6
use_vllm: true
run_name: null
env: {TOKENIZERS_PARALLELISM: "false", WANDB_PROJECT: mine}
report_to: wandb
num_processes: 4
"""


SCRIPT = """\
import trl
from trl import GRPOTrainer
args = trl.GRPOConfig(learning_rate=2e-6, num_generations=4, bf16=True, max_steps=2 * 3, seed=None)
GRPOTrainer(model="m/m", args=args, reward_funcs=lambda completions: 1.0).train()
"""


OF_NOTEBOOK = "is a notebook's command, and no Python. Leave out the lines that begin with ! or %"
VERSION = f"is not Python {sys.version_info.major}.{sys.version_info.minor}"
NO_PYTHON = {
    "!pip install trl": f": !pip {OF_NOTEBOOK}",
    "%cd /work": f": %cd {OF_NOTEBOOK}",
    "  x = 1": f" {VERSION}: unexpected indent",
}


def test_the_constants_of_a_script_of_trl_s_trainer_are_read_and_typed_flags_count_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    typed = ["--learning_rate", "3e-6", "--dataset_name", "o/d"]
    code, out, err = run(capsys, "python", str(script), *typed)
    made = flags(out)
    assert code == 1, err
    assert made["--actor_learning_rate"] == ["3e-6"]
    assert made["--n_samples_per_prompt"] == ["4"]
    assert made["--pretrain"] == ["m/m"]
    assert made["--max_steps"] == ["6"]
    assert f"{script}: of what the script sets by itself, only constants" in err
    script.write_text("print()\n")
    code, out, err = run(capsys, "python", str(script), *typed)
    assert (code, out) == (64, "")
    assert f"{script}: neither its flags nor its text have what TRL's GRPO has" in err
    assert f"`rollcall up python {script} --learning_rate 3e-6 --dataset_name o/d`" in err
    assert run(capsys, "--from", "trl", "--", "python", str(script), *typed)[0] == 1
    for line, why in NO_PYTHON.items():
        for file in (script, tmp_path / "my_grpo.py"):
            file.write_text(f"import trl\n{line}\n")
            code, out, err = run(capsys, "python", str(file), *typed)
            assert (code, out, err) == (64, "", f"rollcall translate: {file} line 2{why}\n")
    (of_grpo,) = [run(capsys, "python", "away.py", *typed, "--num_generations", "4")]
    assert flags(of_grpo[1])["--n_samples_per_prompt"] == ["4"]


WHOLE_SCRIPT = """\
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from my.rewards import form

MODEL = "m/m"

def short(completions, **kwargs):
    return [1.0 for _ in completions]

lora = LoraConfig(r=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
args = GRPOConfig(output_dir="o", reward_weights=[1.0, 0.5], learning_rate=rate(), max_steps=40)
data = load_dataset("o/d", "main", split="train")
trainer = GRPOTrainer(model=MODEL, reward_funcs=[short, form], args=args, train_dataset=data,
                      peft_config=lora)
"""


def test_what_a_script_gives_by_objects_is_read_or_named_with_its_flag(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WHOLE_SCRIPT)
    code, out, err = run(capsys, str(script))
    assert (code, out, err) == run(capsys, "python3", str(script))
    made, needed = flags(out), err.partition("# still to give:")[2].partition("# added")[0]
    assert code == 1
    assert made["--pretrain"] == ["m/m"]
    assert made["--prompt_data"] == ["o/d:main"]
    assert (made["--lora_rank"], made["--lora_alpha"]) == (["32"], ["8"])
    assert made["--target_modules"] == ["q_proj", "v_proj"]
    assert made["--max_steps"] == ["40"]
    assert "learning_rate=rate() is not taken over: give --actor_learning_rate" in needed
    rewards = f"give --reward {script}:short:1.0 my/rewards.py:form:0.5. The file is imported"
    assert (
        f"reward_funcs=[short, form], reward_weights=[1.0, 0.5] is not taken over: {rewards}"
        in (needed)
    )
    assert "is required" not in needed
    changed = WHOLE_SCRIPT.replace('"o/d"', "name()").replace("peft_config=lora", "peft_config=x()")
    script.write_text(changed)
    _, out, err = run(capsys, str(script), "--reward_funcs", "accuracy_reward")
    assert "peft_config=x() is not taken over: give --lora_rank, --lora_alpha" in err
    assert "is not taken over: give --prompt_data" in err
    assert "reward_funcs=[" not in err
    assert flags(out)["--reward"] == ["math-verify:1"]


@pytest.mark.parametrize(
    "words", [["bash", "{}", "m/m", "4"], ["{}", "m/m", "4"], ["--json", "sh", "{}", "m/m", "4"]]
)
def test_words_behind_a_script_are_its_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("trl grpo --model_name_or_path $1 --num_generations $2\n")
    _, out, _ = run(capsys, *(word.format(script) for word in words))
    found = json.loads(out)["flags"] if "--json" in words else out.split()
    assert found[found.index("--pretrain") + 1] == "m/m"
    assert found[found.index("--n_samples_per_prompt") + 1] == "4"
    code, _, err = run(capsys, str(script), "--jsn")
    assert code == 64
    assert "did you mean --json?" in err


def test_trl_s_config_file_is_read_and_typed_flags_count_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "grpo.yaml").write_text(CONFIG)
    command = ["trl", "grpo", "--config", f"{tmp_path}/grpo.yaml", "--learning_rate", "2e-6"]
    code, out, err = run(capsys, "--", *command)
    made = flags(out)
    assert code == 0, err
    assert made["--pretrain"] == ["m/m"]
    assert made["--reward"] == ["math-verify:1", "my/rewards.py:short:1"]
    assert made["--actor_learning_rate"] == ["2e-6"]
    assert made["--rollout_engine"] == ["vllm"]
    assert made["--actor_num_gpus_per_node"] == ["4"]
    assert "TOKENIZERS_PARALLELISM: set in the script" in err
    assert made["--wandb_project"] == ["mine"]
    script = tmp_path / "run.sh"
    for value, expected in (("own", "own"), ("$(name)", "${WANDB_PROJECT}")):
        script.write_text(f"export WANDB_PROJECT={value}\n{TRL} --report_to wandb\n")
        assert flags(run(capsys, str(script))[1])["--wandb_project"] == [expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory. It has flags of the command: copy it to here"),
        ("- a\n", "give a YAML file of NAME: VALUE"),
        ("a: [", "is not YAML in line 1"),
    ],
)
def test_a_config_file_that_cannot_be_read_ends_with_64(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "grpo.yaml"
    if text is not None:
        file.write_text(text)
    code, out, err = run(capsys, "--", "trl", "grpo", "--config", str(file))
    assert (code, out) == (64, "")
    assert err.startswith(f"rollcall translate: --config {file}: {said}")


@pytest.mark.parametrize(
    ("word", "lost"),
    [
        ("--config-path=config", ""),
        ("--config-name=ppo_trainer", ""),
        ("--config-name=ppo_megatron_trainer.yaml", "Megatron's kinds of parallelism are absent"),
        ("--config-name=mine", "the file is not read: give its keys that differ"),
    ],
)
def test_hydra_s_own_files(capsys: pytest.CaptureFixture[str], word: str, lost: str) -> None:
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, word)
    assert code == (1 if lost else 0)
    assert lost in err
    assert "belongs to no flag" not in err


OWN_OF_VERL = """
hydra: {searchpath: ["file://verl/trainer/config"]}
defaults: [ppo_trainer, base, _self_]
trainer: {total_epochs: 3, n_gpus_per_node: 4}
actor_rollout_ref: {model: {path: m/m}, rollout: {n: "${group}"}}
group: 5
algorithm: {adv_estimator: "${oc.env:NAME}"}
"""


@pytest.mark.parametrize("form", ["--config-name={} --config-path={}", "-cn {} -cp {}"])
def test_a_file_of_verl_s_own_is_read_as_hydra_puts_it_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    (tmp_path / "mine.yaml").write_text(OWN_OF_VERL)
    base = "trainer: {total_epochs: 9}\ndata: {train_batch_size: 64}\n"
    (tmp_path / "base.yaml").write_text(base)
    words = form.format("mine", tmp_path).split()
    _, out, err = run(capsys, "--", *VERL.split(), *words, "trainer.n_gpus_per_node=2")
    made = flags(out)
    assert made["--pretrain"] == ["m/m"]
    assert made["--num_episodes"] == ["3"]
    assert made["--actor_num_gpus_per_node"] == ["2"]
    assert made["--rollout_batch_size"] == ["64"]
    assert made["--n_samples_per_prompt"] == ["5"]
    assert "algorithm.adv_estimator=${oc.env:NAME}: Hydra resolves it: give its value" in err
    assert "not read" not in err


def test_a_directory_s_own_ppo_trainer_is_read_in_the_place_of_verl_s(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "ppo_trainer.yaml").write_text("trainer: {total_epochs: 3}\n")
    _, out, _ = run(capsys, "--", *VERL.split(), MODEL, f"--config-path={tmp_path}")
    assert flags(out)["--num_episodes"] == ["3"]
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, f"--config-path={tmp_path}/no")
    assert (code, "--config-name=ppo_trainer: the file is not read" in err) == (1, True)
    (tmp_path / "ppo_trainer.yaml").write_text("trainer: {\n")
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, f"--config-path={tmp_path}")
    assert (code, "ppo_trainer.yaml is not YAML in line 2: the file is not read" in err) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("word", "code", "words"),
    [
        ("actor.optim.clip_grad=0.3", 0, "--actor.max_norm 0.3"),
        ("actor.grad_clip=0.3", 0, "grad_clip=0.3: without effect in verl 0.9, which has optim"),
        ("actor.optim.num_cycles=2 actor_rollout_ref.actor.optim.lr_scheduler_type=cosine", 1,
         "num_cycles=2: a cosine falls once"),
        ("actor.fsdp_config.model_dtype=bf16", 0, "the optimizer's weights are fp32 here"),
        ("actor.fsdp_config.mixed_precision.param_dtype=fp32", 0, "--param_dtype fp32"),
        ("rollout.response_length=33", 1, "response_length=33: a reply has at most data.max"),
        ("rollout.dtype=float16", 1, "dtype=float16: the engines have the policy's"),
        ("rollout.agent.num_workers=4", 0, ""),
        ("actor.use_kl_loss=Ture", 1, "use_kl_loss=Ture: its value cannot be read"),
        ("rollout.n=2 algorithm.use_kl_in_reward=flase", 1, "flase: its value cannot be read"),
        ("rollout.n=2 algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=Flase", 1,
         "Flase: its value cannot be"),
        ("rollout.n=2 trainer.resume_mode=resume_path trainer.resume_from_path=x/global_step_3", 1,
         "resume_mode=resume_path: verl's checkpoints are not read here: give --pretrain"),
        ("rollout.n=2 data.gen_batch_size=1536", 0, "verl draws so many prompts at once"),
        ("rollout.n=2 trainer.use_v1=False data.gen_batch_size=1536", 1, "--rollout_batch_size"),
    ],
)  # fmt: skip
def test_a_key_of_verl_that_changes_the_run_is_printed_or_named(
    capsys: pytest.CaptureFixture[str], word: str, code: int, words: str
) -> None:
    given = ("actor_rollout_ref." + word).split()
    found, out, err = run(capsys, "--", *VERL.split(), MODEL, *given)
    assert words in out + err
    assert found == code


@pytest.mark.parametrize("defaults", [None, "[{model: big}]", "[mine]", "[other]"])
def test_a_file_of_verl_s_that_is_not_read_is_said_once_and_nothing_is_called_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, defaults: str | None
) -> None:
    if defaults:
        (tmp_path / "mine.yaml").write_text(f"defaults: {defaults}\n")
    words = ["--config-name", "mine", "--config-path", str(tmp_path)]
    code, _, err = run(capsys, "--", *VERL.split()[:3], *words)
    assert code == 1
    assert err.count("--config-name=mine: the file is not read") == 1
    assert "--cfg job --resolve` prints all keys" in err
    assert ("is required" in err, "belongs to no flag" in err) == (False, False)


def test_one_gpu_for_a_layer_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    word = "actor_rollout_ref.rollout.expert_parallel_size"
    assert run(capsys, "--", *VERL.split(), MODEL, f"{word}=1")[0] == 0
    assert run(capsys, "--", *VERL.split(), MODEL, f"{word}=2")[0] == 1


@pytest.mark.parametrize(
    "owner", ["actor_rollout_ref.actor", "actor_rollout_ref.actor.fsdp_config", "critic.fsdp"]
)
def test_verl_s_gpus_of_a_sequence_are_ours(capsys: pytest.CaptureFixture[str], owner: str) -> None:
    word = f"{owner}.ulysses_sequence_parallel_size"
    beside = "actor_rollout_ref.ref.ulysses_sequence_parallel_size=4"
    code, out, err = run(capsys, "--", *VERL.split(), MODEL, f"{word}=4", beside)
    assert (code, flags(out)["--ring_attn_size"]) == (0, ["4"]), err


OVERLONG = [
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
]


@pytest.mark.parametrize("prefix", OVERLONG)
@pytest.mark.parametrize("switch", ["True", "False"])
def test_dapo_s_penalty_is_taken_over_if_it_is_on(
    capsys: pytest.CaptureFixture[str], prefix: str, switch: str
) -> None:
    given = {"enable": switch, "len": "128", "penalty_factor": "0.5", "log": "False"}
    words = [f"{prefix}.{name}={value}" for name, value in given.items()]
    code, out, err = run(
        capsys, "--", *VERL.split(), MODEL, *words, "reward_model.reward_manager=dapo"
    )
    assert code == 0, err
    expected = (["128"], ["0.5"]) if switch == "True" else (None, None)
    made = flags(out)
    assert (made.get("--overlong_buffer_len"), made.get("--overlong_penalty_factor")) == expected


@pytest.mark.parametrize(
    ("files", "reward", "factor"),
    [
        ("data/dapo-math-17k.parquet", "math-verify", "0.5"),
        ("data/aime-2024.parquet", "math-verify", "0.5"),
        ("data/math/train.parquet", "math", "1.0"),
        ("\"['gsm8k/train.parquet', 'math/train.parquet']\"", None, "1.0"),
    ],
)
def test_dapo_s_data_have_no_boxes_and_its_reward_is_minus_1_or_1(
    capsys: pytest.CaptureFixture[str], files: str, reward: str | None, factor: str
) -> None:
    given = {"enable": "True", "len": "128", "penalty_factor": "1.0"}
    words = [f"reward_model.overlong_buffer.{name}={value}" for name, value in given.items()]
    command = [*VERL.split(), MODEL, f"data.train_files={files}", *words]
    _, out, err = run(capsys, "--", *[word for word in command if "gsm8k.parquet" not in word])
    made = flags(out)
    assert made.get("--remote_rm_url") == (reward and [reward])
    assert made["--overlong_penalty_factor"] == [factor]
    assert (f"the reward is {reward}, by the path's name" in err) == (reward is not None)
    assert ("overlong_buffer.penalty_factor=1.0: it is 0.5 here" in err) == (factor == "0.5")


def test_keys_that_are_a_part_of_the_reward_are_not_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = ["custom_reward_function.path=my.py", "custom_reward_function.name=score"]
    model = ["reward_model.enable=True", "reward_model.model.path=m/rm"]
    for words, flag in ((own, "--remote_rm_url my.py:score"), (model, "--reward_pretrain m/rm")):
        for given in (words, words[::-1]):
            _, out, err = run(capsys, "--", *VERL.split(), MODEL, *given)
            assert flag in out
            assert "reward_function" not in err
            assert "reward_model.enable" not in err
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, model[0])
    assert (code, "reward_model.enable=True: give the reward model's path" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        ([*VERL.split(), MODEL, "trainer.nnodes=16"], "15"),
        ([*VERL.split(), MODEL, "trainer.nnodes=$NODES"], None),
        (["trl", "grpo", "--model_name_or_path", "m", "--num_processes", "4"], "0"),
        (["python3", "-m", "openrlhf.cli.train_ppo_ray", "--colocate_all_models"], "0"),
    ],
)
def test_the_command_says_how_many_workers_the_head_waits_for(
    capsys: pytest.CaptureFixture[str], words: list[str], workers: str | None
) -> None:
    _, out, _ = run(capsys, "--", *words)
    begin = "" if workers is None else f"EXPECTED_WORKERS={workers} "
    assert out.startswith(f"{begin}rollcall up -- ")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("reward_model.reward_manager=mine", "--remote_rm_url is the reward"),
        ("reward.reward_manager.name=mine", "--remote_rm_url is the reward"),
        ("reward_model.sandbox_fusion.url=http://a/run", "code is run by the reward `code`"),
        ("critic.model.lora.rank=8", "--lora_rank is for policy and critic"),
    ],
)
def test_no_pattern_of_needless_keys_hides_what_is_lost(
    capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, word)
    assert code == 1
    assert f"{word}: {said}" in err.partition("# defaults")[0]


def test_a_sum_of_the_script_is_a_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"prompt=$((1024 * 2))\n{VERL} {MODEL} data.max_prompt_length=${{prompt}}\n")
    _, out, _ = run(capsys, str(script))
    assert flags(out)["--prompt_max_len"] == ["2048"]
    script.write_text(f"{VERL} {MODEL} data.max_prompt_length=$((N * 2))\n")
    assert "give the number, as in --set N=NUMBER" in run(capsys, str(script))[2]
    _, out, _ = run(capsys, "--set", "N=3", str(script))
    assert flags(out)["--prompt_max_len"] == ["6"]


def test_a_key_of_w_and_b_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--pretrain m/m --prompt_data o/d --reward gsm8k --use_wandb 0123abcd"
    _, out, err = run(capsys, "--", *command.split())
    assert "0123abcd" not in out + err
    assert flags(out)["--use_wandb"] == ["yes"]
    assert "--use_wandb: give the key by WANDB_API_KEY on the head" in err


def test_a_flag_without_its_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--", *TRL.replace(" m/m", "").split())
    assert code == 1
    assert "model_name_or_path: needs a value" in err
    assert "--pretrain" not in flags(out)


def test_a_sentence_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "--", *TRL.split(), "--per_device_train_batch_size", "x")
    assert err.count("per_device_train_batch_size=x: its value cannot be read") == 1


def test_a_generation_that_is_no_multiple_of_the_group_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "--", *TRL.split(), "--per_device_train_batch_size", "2")
    assert code == 1
    assert "2 completions are not a multiple of num_generations 8" in err


@pytest.mark.parametrize(
    ("name", "code"), [("adamw_torch", 0), ("adafactor", 1), ("adamw_8bit", 1)]
)
def test_another_optimizer_is_lost(
    capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    found, _, err = run(capsys, "--", *TRL.split(), "--optim", name)
    assert found == code
    assert ("AdamW is the only optimizer" in err) == bool(code)


def test_a_whole_command_in_quotes_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--", f"{VERL} {MODEL}") == run(capsys, "--", *VERL.split(), MODEL)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give one of both"),
        (["x.sh", "--", "a"], "give one of both"),
        (["missing.sh"], "missing.sh: No such file or directory"),
        (["--", "ls", "-l"], "there is no command of a trainer"),
        (["--", "trl", "sft", "--x", "1"], "trl sft is not a command of PPO or GRPO. Run it as it"),
        (["--", "trl", "reward", "--x", "1"], "write the flags of `rollcall rm`"),
        (["--", "trl", "dpo", "--x", "1"], "by `rollcall up -- trl dpo …` (docs/recipes/trl.md)"),
        (["--", "trl", "sft", "--x", "1"], "--output_dir are --pretrain, --dataset and --save_p"),
        (["--", "python", "-m", "openrlhf.cli.train_rm"], "train_rm is not a command of PPO"),
        (["--", "python", "-m", "verl.experimental.fully_async_policy.fully_async_main", "a.b=1"],
         "fully_async_main is another program than verl's main_ppo, and has keys of its own. "
         "Generation beside the training is --async_train here"),
        (["--", "python", "-m", "recipe.spin.main_spin", "a.b=1"],
         "keys of its own. As far as known, no flag of Rollcall does what it adds. Run it as it"),
        (["--from", "openrlhf", "--", *VERL.split(), MODEL],
         "main_ppo seems to be a command of verl, not of OpenRLHF. Give --from verl, or leave"),
        (["--from", "verl", "--", *TRL.split()], "a command of TRL, not of verl. Give --from trl"),
        (["--from", "openrlhf", "--", *TRL.split()[2:]], "of TRL, not of OpenRLHF. Give"),
        (["--from", "trl", "--", "python", "-m", "openrlhf.cli.train_ppo_ray", "--max_len", "8"],
         "a command of OpenRLHF, not of TRL. Give --from openrlhf"),
        (["--from", "trl", "--", "python", "main_ppo.py", "data.train_batch_size=8"],
         "main_ppo.py seems to be a command of verl, not of TRL. Give --from verl"),
        (["--from", "verl", "--", "trl", "sft", "--x", "1"], "trl sft is not a command of PPO"),
        (["--from", "verl", "--", "python", "-m", "openrlhf.cli.train_rm", "--x", "1"],
         "train_rm is not a command of PPO"),
        (["--set", "1=2", "x.sh"], "give NAME=VALUE"),
        (["grpo.yaml"], "give trl grpo --config grpo.yaml"),
        (["trl", "grop", "--x", "1"], "trl has no command grop: did you mean grpo?"),
        (["--form", "verl"], "unknown argument --form"),
        (["a.sh", "--argument", "--model"],
         "expected one argument: give one that begins with a hyphen behind =, as in --argument=--"),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_64(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (64, "")
    assert said in err


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    rollcall = Path(sys.executable).with_name("rollcall")
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1; {{ sleep 1; '{rollcall}' translate -- {VERL} 2>&3; }} | true"],
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stdout


BRANCHES = f"""DEVICE=${{DEVICE:-gpu}}
if [ "$DEVICE" = npu ]; then batch=16; else batch=1024; fi
{VERL} {MODEL} data.train_batch_size=$batch actor_rollout_ref.actor.ppo_mini_batch_size=16
"""


def test_the_branch_that_bash_takes_is_translated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(BRANCHES)
    for words, size in (([], "1024"), (["--set", "DEVICE=npu"], "16")):
        code, out, err = run(capsys, *words, str(script))
        assert code == 0, err
        assert flags(out)["--rollout_batch_size"] == [size]


def test_a_value_that_only_a_run_of_the_script_tells_is_to_be_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(BRANCHES.partition("\n")[2])
    code, _, err = run(capsys, str(script))
    assert code == 1
    assert 'batch: give it by --set batch=VALUE. Line 1: it depends on `[ "$DEVICE" = npu ]`' in err
    assert "(or give --set DEVICE=VALUE)" in err
    for given in ("batch=64", "DEVICE=gpu"):
        assert run(capsys, "--set", given, str(script))[0] == 0


@pytest.mark.parametrize("key", ["actor_rollout_ref.actor.use_kl_loss", "trainer.experiment_name"])
def test_an_unknown_value_is_asked_for_also_where_a_switch_or_a_name_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"X=$(python x)\n{VERL} {MODEL} {key}=$X\n")
    code, _, err = run(capsys, str(script))
    assert code == 1
    assert "X: give it by --set X=VALUE" in err


def test_a_number_that_only_a_program_tells_is_to_be_given_by_its_flag(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{VERL} {MODEL} trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)\n")
    code, _, err = run(capsys, str(script))
    assert code == 1
    needed = err.partition("# still to give:")[2]
    assert "--actor_num_gpus_per_node: trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)" in needed


def test_a_switch_from_outside_is_not_taken_as_off(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"{VERL} {MODEL} actor_rollout_ref.actor.use_kl_loss=$KL\n")
    code, _, err = run(capsys, str(script))
    assert code == 1
    assert "use_kl_loss=${KL}: give the value, as in --set KL=…" in err


def test_arguments_of_the_script_can_be_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(
        f'[ $# -lt 1 ] && exit 1\n{VERL} {MODEL} trainer.total_epochs=$1 "${{@:2}}"\n'
    )
    code, _, err = run(capsys, str(script))
    assert code == 64
    assert "The script ends at line 1" in err
    code, out, err = run(capsys, "--argument", "3", str(script))
    assert code == 0, err
    assert flags(out)["--num_episodes"] == ["3"]


def test_words_and_keys_with_brackets_are_read_as_bash_reads_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(
        "declare -A BATCH=([Qwen2.5-7B]=256 [Qwen2.5-32B]=64)\nLOGGERS=([console] [x,y])\n"
        f"{VERL} {MODEL} data.train_batch_size=${{BATCH[Qwen2.5-7B]}} "
        '"trainer.logger=${LOGGERS[0]}"'
    )
    code, out, err = run(capsys, str(script))
    assert code == 0, err
    assert flags(out)["--rollout_batch_size"] == ["256"]


def test_a_script_that_bash_could_not_read_is_refused_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"{VERL} {MODEL} \\\n'unclosed\n")
    code, out, err = run(capsys, str(script))
    assert (code, out) == (64, "")
    assert "line 2: " in err
    assert "give the trainer's command alone, after --" in err


def test_the_shell_gets_its_own_pieces_as_the_script_wrote_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f'{VERL} {MODEL} trainer.experiment_name="a\\"b $(date "+%Y")"\n')
    _, out, _ = run(capsys, str(script))
    assert '"a\\"b $(date "+%Y")"' in out


@pytest.mark.parametrize(
    "form",
    [
        "export E=7\nbash -c 'L=2; {command} trainer.total_epochs=$E' name",
        "bash -c '{command} trainer.total_epochs=$1' name 7",
        'E=7\nssh host "{command} trainer.total_epochs=$E"',
        "bash <<EOF\nE=7\n{command} trainer.total_epochs=\\$E\nEOF",
        "sbatch <<'EOF'\n#!/bin/bash\nE=7\n{command} trainer.total_epochs=$E\nEOF",
        "E=7\ndocker exec c bash -c 'E=8' && srun bash -c \"{command} trainer.total_epochs=$E\"",
        "E=3\ndocker exec c bash -c '{command} trainer.total_epochs=${{E:-7}}'",
    ],
)
def test_a_command_of_an_inner_shell_gets_what_that_shell_knows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(form.format(command=f"{VERL} {MODEL}") + "\n")
    code, out, err = run(capsys, str(script))
    assert code == 0, err
    assert flags(out)["--num_episodes"] == ["7"]


@pytest.mark.parametrize("call", ["launch $LR", 'launch "$LR"'])
def test_the_variable_behind_a_function_s_argument_is_asked_for_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, call: str
) -> None:
    script = tmp_path / "run.sh"
    rate = "actor_rollout_ref.actor.optim.lr=$lr"
    script.write_text(
        f"LR=$(cat lr.txt)\nlaunch() {{\n  local lr=$1\n  {VERL} {MODEL} {rate}\n}}\n"
        f"for seed in 1 2; do\n  {call}\ndone\n"
    )
    _, _, err = run(capsys, str(script))
    assert "Line 1: `$(cat lr.txt)` is known only when the script runs" in err
    named = "LR: give it by --set LR=VALUE." if '"' in call else "(or give --set LR=VALUE)"
    assert named in err
    assert ("--set lr" in err) == ('"' not in call)  # how many words $LR is, is not known
    assert "--argument" not in err
    _, out, _ = run(capsys, "--set", "LR=3e-6", str(script))
    assert flags(out)["--actor_learning_rate"] == ["3e-6"]
