"""What the installed OpenRLHF lacks of a command: asked of its real files and its own parser."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from entrypoint.job.recipes import interpreters
from entrypoint.job.recipes.openrlhf import flags as openrlhf_flags
from entrypoint.job.recipes.openrlhf.flags import Flag
from entrypoint.job.recipes.openrlhf.recipe import RECIPE
from entrypoint.job.recipes.recognise import recipe_of
from tests.support.interpreters import python_beside
from tests.support.openrlhf_parser import PACKAGE, options
from tests.support.openrlhf_recipe import SHORT, settings
from tests.support.repository import ROOT

PPO = "openrlhf.cli.train_ppo_ray"
PROGRAMS = ("train_ppo_ray", "train_sft", "train_rm", "train_dpo")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has OpenRLHF 0.11.2."""
    directory = tmp_path_factory.mktemp("environment")
    return str(python_beside(PACKAGE.parent, directory / "python"))


def faults(run: Path, python: str, words: str, **environ: str) -> list[str]:
    return [*RECIPE.faults(settings(run, python, "-m", *shlex.split(words), **environ))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_options_are_those_of_the_released_parser(python: str, program: str) -> None:
    verdict = interpreters.asked(python, PACKAGE / f"cli/{program}.py", ["--nope", "1"])
    assert verdict is not None
    assert {name.lstrip("-") for name in verdict.options} == options(program)
    assert verdict.unknown == ("--nope", "1")


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--actor.model_name_or_path m --ds.zero_stage 3 --actor.adam.betas 0.9 0.95",
        "--pretrain m --zero_stage 3 --adam_betas 0.9 0.95 --flash_attn --bf16",
        "--logger.wandb.run_name=--first",
        "--critic.muon.lr 1e-3 --data.input_template=",
        "--actor.model_name m",
    ],
)
def test_a_command_that_the_parser_takes_is_accepted(
    tmp_path: Path, python: str, flags: str
) -> None:
    assert faults(tmp_path, python, f"{PPO} {' '.join(SHORT[2:])} {flags}") == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--algo.advantage.is_correction_enable",
            "--algo.advantage.is_correction_enable is not a flag of OpenRLHF 0.11.2: give "
            "--algo.advantage.is_correction_level token and "
            "--algo.advantage.is_correction_mode clip",
        ),
        (
            "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop",
            "--algo.advantage.is_correction_type is not a flag of OpenRLHF 0.11.2: give "
            "--algo.advantage.is_correction_mode mask",
        ),
        ("--enable_vllm_is_correction", "give --algo.advantage.is_correction_level token"),
        ("--use_kl_estimator_k3", "give --algo.kl.estimator k3"),
        ("--ptx_coef 0.1", "leave it out: there is no loss on pretraining data"),
        ("--actor.num_node 2 --rollout.batchsize 8", "did you mean --rollout.batch_size?"),
        ("--warp_drive", "--warp_drive is not a flag of OpenRLHF 0.11.2: leave it out"),
        ("--ds.zero_stage three", "refuses the flags: argument --ds.zero_stage: invalid int value"),
        ("--ds.param_dtype fp64", "argument --ds.param_dtype: invalid choice: 'fp64'"),
        ("--actor.adam.betas 0.9", "argument --actor.adam.betas: expected 2 arguments"),
        ("--actor.adam 1", "refuses the flags: ambiguous option: --actor.adam could match"),
        ("--train.colocate_all true", "true belongs to no flag"),
    ],
)
def test_what_the_parser_refuses_is_named_before_anything_starts(
    tmp_path: Path, python: str, flags: str, expected: str
) -> None:
    found = faults(tmp_path, python, f"{PPO} {' '.join(SHORT)} {flags}")
    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize("name", ["train_kto", "train_kd", "train_prm", "train_ppo"])
def test_a_module_that_the_release_lacks_is_named(tmp_path: Path, python: str, name: str) -> None:
    (fault,) = faults(tmp_path, python, f"openrlhf.cli.{name} --data.dataset d")
    programs = "train_dpo, train_ppo_ray, train_rm, train_sft"
    assert fault == f"OpenRLHF 0.11.2 has no openrlhf.cli.{name}, only {programs}"


def test_an_older_release_is_asked_in_its_own_words(tmp_path: Path) -> None:
    release = tmp_path / "site"
    (release / "openrlhf/cli").mkdir(parents=True)
    (release / "openrlhf/cli/train_ppo_ray.py").write_text(
        "import argparse\nimport ray\n\nif __name__ == '__main__':\n"
        "    parser = argparse.ArgumentParser()\n"
        "    for name in ('ckpt_path', 'save_path', 'save_steps', 'pretrain'):\n"
        "        parser.add_argument(f'--{name}')\n    args = parser.parse_args()\n"
    )
    metadata = release / "openrlhf-0.9.10.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: openrlhf\nVersion: 0.9.10\n")
    python = str(python_beside(release, tmp_path / "python"))
    assert faults(tmp_path, python, f"{PPO} --pretrain m --ckpt_path c") == []
    assert faults(tmp_path, python, f"{PPO} --actor.model_name_or_path m --ckpt.path c") == [
        "--actor.model_name_or_path is not a flag of OpenRLHF 0.9.10: give --pretrain",
        "--ckpt.path is not a flag of OpenRLHF 0.9.10: give --ckpt_path",
    ]


def test_a_release_that_the_job_brings_is_not_judged_by_the_installed_one(
    tmp_path: Path, python: str
) -> None:
    strange = f"{PPO} {' '.join(SHORT)} --train.warp_drive"
    for environment in ({"pip": ["openrlhf"]}, {"env_vars": {"PYTHONPATH": "/other"}}):
        brought = json.dumps(environment)
        assert faults(tmp_path, python, strange, ROLLCALL_RUNTIME_ENV=brought) == []
    own = tmp_path / "checkout"
    (own / "openrlhf/cli").mkdir(parents=True)
    source = (PACKAGE / "cli/train_ppo_ray.py").read_text()
    source = source.replace(
        "args = parser", "parser.add_argument('--train.warp_drive')\n    args = parser"
    )
    (own / "openrlhf/cli/train_ppo_ray.py").write_text(source)
    brought = json.dumps({"working_dir": str(own)})
    assert faults(tmp_path, python, f"{strange} 9", ROLLCALL_RUNTIME_ENV=brought) == []
    (fault,) = faults(tmp_path, python, f"{strange} 9 --nope", ROLLCALL_RUNTIME_ENV=brought)
    assert fault == "--nope is not a flag of OpenRLHF: leave it out"


FILE = f"{PACKAGE}/cli/train_ppo_ray.py"


def of_file(run: Path, python: str, file: str, flags: str, **environ: str) -> list[str]:
    given = settings(run, python, file, *SHORT[2:], *shlex.split(flags), **environ)
    return [*RECIPE.faults(given)]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--actor.adam.lr 1e-6 --ds.zero_stage 3", ""),
        ("--zero_stage 3 --adam_betas 0.9 0.95 --flash_attn", ""),
        ("--rollout.batchsize 8", "did you mean --rollout.batch_size?"),
        ("--ds.zero_stage three", "refuses the flags: argument --ds.zero_stage: invalid int"),
    ],
)
def test_a_program_that_is_started_by_its_file_is_judged_by_the_parser_in_it(
    tmp_path: Path, python: str, flags: str, expected: str
) -> None:
    found = of_file(tmp_path, python, FILE, flags)
    assert [expected in one for one in found] == [True] * bool(expected)
    assert recipe_of([python, FILE, "--actor.model_name_or_path", "m"]) == "openrlhf"
    assert recipe_of(["deepspeed", str(PACKAGE / "cli/train_sft.py")]) == "openrlhf"


def test_a_file_of_an_older_release_gets_the_flags_that_it_has(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openrlhf/cli").mkdir(parents=True)
    (tmp_path / "openrlhf/cli/train_ppo_ray.py").write_text(
        "import argparse\nif __name__ == '__main__':\n    p = argparse.ArgumentParser()\n"
        "    for name in ('pretrain', 'prompt_data', 'reward_pretrain', 'ckpt_path', 'save_path',\n"
        "                 'save_steps'):\n"
        "        p.add_argument(f'--{name}')\n    p.parse_args()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--pretrain", "m", "--prompt_data", "d", "--reward_pretrain", "r")
    given = settings(tmp_path, python, "openrlhf/cli/train_ppo_ray.py", *words)
    assert list(RECIPE.faults(given)) == []
    argv = RECIPE.command(given, None).argv
    assert "--pretrain" in argv
    assert not any(word.startswith("--actor.") for word in argv)
    given = settings(tmp_path, python, "openrlhf/cli/train_ppo_ray.py", *words, "--warp", "1")
    (fault,) = RECIPE.faults(given)
    assert fault == "--warp is not a flag of openrlhf/cli/train_ppo_ray.py: leave it out"


def test_a_file_that_is_not_there_is_named(tmp_path: Path, python: str) -> None:
    (fault,) = of_file(tmp_path, python, "openrlhf/cli/train_ppo_ray.py", "")
    assert "openrlhf/cli/train_ppo_ray.py is not a file in" in fault


def test_without_a_release_flags_and_paths_that_are_probably_wrong_are_warned_of(
    tmp_path: Path, python: str
) -> None:
    flags = shlex.split("--learnig_rate 3 --eval_datset x --warp 9 --zero_stag 2 --top_p 1")
    (tmp_path / "here").mkdir()
    data = f"{tmp_path}/here,{tmp_path}/gone.jsonl,owner/name"
    words = (python, "-m", PPO, "--pretrain", "/nosuch/model", "--prompt_data", data, *flags)
    brought = json.dumps({"pip": ["openrlhf"]})
    found = RECIPE.warnings(settings(tmp_path, *words, ROLLCALL_RUNTIME_ENV=brought))
    lacks = "is not a flag of the OpenRLHF releases that Rollcall knows"
    assert [one for one in found if lacks in one] == [
        f"--learnig_rate {lacks}: did you mean --actor_learning_rate?",
        f"--eval_datset {lacks}: did you mean --eval_dataset?",
        f"--warp {lacks}",
    ]
    away = "is not on this machine: every node that trains must have it"
    assert [one for one in found if away in one] == [
        f"--pretrain /nosuch/model {away}",
        f"--prompt_data {tmp_path}/gone.jsonl {away}",
    ]
    assert not any(lacks in one for one in RECIPE.warnings(settings(tmp_path, *words)))


def test_no_flag_of_a_recorded_release_is_strange() -> None:
    lines = (ROOT / "tests/data/openrlhf-0.11.2.tsv").read_text().splitlines()
    names = [line.partition("\t")[0] for line in lines]
    _, *rows = (ROOT / "tests/data/openrlhf-flat-flags.tsv").read_text().splitlines()
    names += [row.partition("\t")[0] for row in rows if "ppo_ray" in row.partition("\t")[2]]
    assert list(openrlhf_flags.strange(map(Flag, names))) == []


def test_what_is_not_judged_is_told(tmp_path: Path, python: str) -> None:
    def told(*words: str, **environ: str) -> list[str]:
        found = RECIPE.warnings(settings(tmp_path, *words, **environ))
        return [one for one in found if "not checked" in one]

    assert told(python, FILE, *SHORT[2:]) == told(python, "-m", PPO, *SHORT[2:]) == []
    (mine,) = told(python, "examples/my_ppo.py", *SHORT[2:])
    assert mine.startswith("examples/my_ppo.py: its flags are not checked before it starts")
    brought = json.dumps({"pip": ["openrlhf"]})
    (sentence,) = told(python, "-m", PPO, *SHORT[2:], ROLLCALL_RUNTIME_ENV=brought)
    assert "the job may bring its own OpenRLHF" in sentence
