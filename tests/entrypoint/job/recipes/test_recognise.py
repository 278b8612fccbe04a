"""Which recipe runs a submitted job: told by its words."""

from __future__ import annotations

import shlex

import pytest

from contract.launch.shell_wrapping import unwrapped
from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.recognise import recipe_of, settings_for
from tests.support.repository import DATA


def submitted(file: str) -> list[str]:
    """The words of the guide's `ray job submit`, with its `tee` if it has one."""
    text = (DATA / file).read_text()
    return shlex.split(text[text.index("ray job submit") :].replace("\\\n", " "))


GUIDES = {
    "verl-multinode.txt": "verl",
    "guide_scripts/verl-manual.sh": "verl",
    "guide_scripts/search-r1.sh": "search-r1",
    "guide_scripts/openrlhf-four-nodes.sh": "openrlhf",
}
PPO = "-m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m"


@pytest.mark.parametrize("file", GUIDES)
def test_a_guides_command_has_its_own_recipe(file: str) -> None:
    assert recipe_of(submitted(file)) == GUIDES[file]


@pytest.mark.parametrize(
    ("job", "recipe"),
    [
        (f"python3 {PPO}", "openrlhf"),
        (f"NCCL_DEBUG=INFO /opt/rl/bin/python -u {PPO}", "openrlhf"),
        ("python3 openrlhf.cli.train_ppo_ray --bf16", "openrlhf"),
        ("openrlhf.cli.train_rm --bf16", "openrlhf"),
        ("torchrun torchrun --nnodes 2 -m openrlhf.cli.train_dpo --bf16", "openrlhf"),
        ("deepspeed --module openrlhf.cli.train_sft --bf16", "openrlhf"),
        ("accelerate launch -m openrlhf.cli.train_sft --bf16", "openrlhf"),
        ("/opt/verl/bin/python -m verl.trainer.main_ppo trainer.nnodes=2", "verl"),
        ("A=b python3 -W ignore -m verl.trainer.main_ppo retriever.topk=3", "search-r1"),
        ("python3 -m verl.trainer.main_ppo max_turns=4", "search-r1"),
        ("python3 -m verl.trainer.main_ppo_format max_turns=4", "search-r1"),
        ("python3 -m verl.trainer.main_ppo x.max_turns=4", "verl"),
        ("python3 -m a_tool.trainer.main_ppo +actor_rollout_ref.x=1 trainer.nnodes=2", "verl"),
        ("python3 -m recipe.prime.main_prime actor_rollout_ref.x=1 trainer.nnodes=2", "verl"),
        ("python3 -m verl.trainer.main_eval actor_rollout_ref.x=1 trainer.nnodes=2", "command"),
        ("python3 -m a.main trainer.nnodes=2", "command"),
        ("A=b /opt/x/bin/trl sft", "trl"),
        ("accelerate launch --config_file ds.yaml /x/bin/trl grpo --config grpo.yaml", "trl"),
        ("A=b torchrun --nproc_per_node 8 trl sft --output_dir o", "trl"),
        ("torchrun trl vllm-serve", "torchrun"),
        ("uv run python -m verl.trainer.main_ppo trainer.nnodes=2", "verl"),
        ("python3 -m verl.experimental.one_step_off_policy.main_ppo rollout.nnodes=1", "verl"),
        (
            "ray job submit -- python3 -m verl.experimental.fully_async_policy.fully_async_main",
            "verl",
        ),
        ("python3 -m recipe.dapo.main_dapo trainer.nnodes=2", "verl"),
        (
            "A=b /bin/uv run --extra gpu -- python3 -m verl.trainer.main_ppo do_search=1",
            "search-r1",
        ),
        (f"ray job submit -- uv run --no-sync python {PPO}", "openrlhf"),
        (f"nohup time -p python3 -u {PPO} &", "openrlhf"),
        (f"env A=b exec /usr/bin/python3.11 {PPO}", "openrlhf"),
        ("conda run -n verl --no-capture-output python -m verl.trainer.main_ppo a.b=1", "verl"),
        ("conda run -p /opt/x torchrun --nproc-per-node 8 train.py", "torchrun"),
        ("poetry run accelerate launch -m trl.scripts.grpo --output_dir o", "trl"),
        ("uv -v run --frozen --all-packages -m verl.trainer.main_ppo a.b=1", "verl"),
        ("uv run --python 3.11 trl grpo --model_name_or_path m", "trl"),
        ("ray job submit --no-wait -- torchrun train.py", "torchrun"),
        ("ray job submit --address http://h:8265 python3 -m verl.trainer.main_ppo a.b=1", "verl"),
        ("python -m torch.distributed.run --nproc_per_node 8 train.py", "torchrun"),
        ("PYTHONUNBUFFERED=1 python -m accelerate.commands.launch train.py", "torchrun"),
        ("nice -n 5 stdbuf -oL deepspeed train.py", "torchrun"),
        ("composer -n 8 train.py", "torchrun"),
        ("colossalai run --nproc_per_node 8 train.py", "torchrun"),
        ("uv run llamafactory-cli train a.yaml", "torchrun"),
        ("conda run -n x axolotl train a.yaml", "torchrun"),
        ("nohup NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo", "torchrun"),
        ("NPROC_PER_NODE=8 swift sft --model m", "torchrun"),
        ("swift sft --model m", "command"),
        ("tune run --nproc_per_node 8 full_finetune_distributed --config c", "torchrun"),
        ("tune run lora_finetune_single_device --config c", "command"),
        ("mpirun -np 8 python train.py", "command"),
    ],
)
def test_a_command_line_of_a_trainer_is_known(job: str, recipe: str) -> None:
    assert recipe_of(job.split()) == recipe
    assert recipe_of(job.split(), "command") == "command", "ROLLCALL_RECIPE says otherwise"


@pytest.mark.parametrize(
    ("job", "dropped"),
    [
        ("env X=1 torchrun train.py", ""),
        ("exec env X=1 Y=2 torchrun train.py", ""),
        ("command torchrun train.py", ""),
        ("env X=1 nohup torchrun train.py", "nohup"),
        ("nice -n 5 env X=1 torchrun train.py", "nice -n 5"),
    ],
)
def test_a_wrapper_whose_whole_effect_the_job_has_is_not_said_to_have_none(
    job: str, dropped: str
) -> None:
    found = unwrapped(job.split())
    assert " ".join(found.dropped) == dropped
    assert found.command == ["torchrun", "train.py"]
    assert found.variables.get("X") == ("1" if "X=1" in job else None)


@pytest.mark.parametrize(
    "words",
    [
        ("echo", "-m", "verl.trainer.main_ppo"),
        ("bash", "-c", "python3 -m verl.trainer.main_ppo"),
        ("python3", "-c", "openrlhf.cli.train_sft"),
        ("python3", "train.py", "-m", "verl.trainer.main_ppo"),
        ("python3", "verl.trainer.main_ppo"),
        ("python3", "-m", "verl.trainer.main_ppo_of_ours"),
        ("python3", "-m", "verl.model_merger", "merge"),
        ("python3", "-m", "verl.trainer.main_eval", "data.path=a"),
        ("python3", "-m", "ours.trainer.main_ppo", "a.b=1"),
        ("python3", "-m", "openrlhf.cli.lora_combiner", "--bf16"),
        ("python3", "-m"),
        ("uv", "run", "train.py"),
        ("uv", "run", "python", "train.py"),
        ("uv", "pip", "install", "python", "-m", "verl.trainer.main_ppo"),
        ("A=b",),
        ("env", "-u", "A", "torchrun", "train.py"),
        ("conda", "install", "torchrun"),
        ("poetry", "run", "pytest"),
        ("nohup",),
    ],
)
def test_a_command_that_merely_resembles_is_any_program(words: tuple[str, ...]) -> None:
    assert recipe_of(words) == "command"


def test_rollcall_recipe_counts_if_it_knows_the_command() -> None:
    main_ppo = ("python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=8")
    assert recipe_of(main_ppo, "search-r1") == "search-r1"
    assert recipe_of((*main_ppo, "max_turns=4"), "verl") == "verl"
    assert recipe_of(("accelerate", "launch", "train.py"), "trl") == "trl"
    assert recipe_of(("torchrun", "train.py", "openrlhf.cli.train_sft")) == "torchrun"
    assert recipe_of(("deepspeed", "--module", "openrlhf.cli.train_sft"), "torchrun") == "torchrun"
    for other in ("verl", "builtin", "supervised", "torchrun"):
        assert recipe_of(("python", "prepare.py"), other) == "command"
    assert recipe_of(("--pretrain", "m"), "verl") == "builtin"
    assert recipe_of(("sft", "--pretrain", "m"), "command") == "supervised"


OF_PROGRAMS = {
    "ROLLCALL_STEP_PATTERN": r"^step (?P<step>\d+)",
    "ROLLCALL_CHECKPOINTS": "out/c-{step}",
    "ROLLCALL_RESUME_ARGS": "--load {checkpoint}",
}
"""Variables of a head whose jobs are `command` and `torchrun`."""


@pytest.mark.parametrize(
    "job",
    [
        "python3 -m verl.trainer.main_ppo trainer.nnodes=1",
        "python3 -m verl.trainer.main_ppo max_turns=4",
        f"python3 {PPO}",
        "torchrun -m openrlhf.cli.train_sft --bf16",
        "trl sft --model_name_or_path m",
        "sft --pretrain m --dataset d",
    ],
)
@pytest.mark.parametrize("given", ["builtin", "command"])
def test_what_the_head_says_of_any_program_replaces_nothing_that_a_recipe_knows(
    job: str, given: str
) -> None:
    head = {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RECIPE": given}
    bare = settings_for(read_settings(head), job.split())
    settings = settings_for(read_settings({**head, **OF_PROGRAMS}), job.split())
    pattern = recipes.load(bare.recipe).step_pattern(bare)
    if bare.recipe == "command":
        assert settings.step_pattern is not None
        return
    assert recipes.load(settings.recipe).step_pattern(settings) == pattern
    assert (settings.checkpoints, settings.resume_args) == (None, ())


@pytest.mark.parametrize(
    ("job", "given"),
    [
        ("python3 train.py", "builtin"),
        ("torchrun train.py", "builtin"),
        ("torchrun train.py", "trl"),
        ("python3 -m verl.trainer.main_ppo", "verl"),
    ],
)
def test_it_holds_for_any_program_and_for_the_recipe_that_the_head_names(
    job: str, given: str
) -> None:
    head = {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RECIPE": given, **OF_PROGRAMS}
    settings = settings_for(read_settings(head), job.split())
    assert settings.step_pattern is not None
    assert settings.checkpoints == "out/c-{step}"
    assert settings.resume_args == ("--load", "{checkpoint}")
