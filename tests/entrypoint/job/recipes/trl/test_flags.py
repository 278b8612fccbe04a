"""Flags of TRL's scripts: those of the installed release's own parsers, without their imports."""

from __future__ import annotations

import importlib
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes.trl.flags import flags_of
from entrypoint.job.recipes.trl.recipe import RECIPE

SPEC = find_spec("trl")
assert SPEC is not None
assert SPEC.submodule_search_locations
PACKAGE = Path(SPEC.submodule_search_locations[0])


SCRIPTS = ("distillation", "dpo", "grpo", "kto", "reward", "rloo", "sft")
"""What the locked release trains with."""


def faults(run: Path, words: str, **more: str) -> list[str]:
    given = {"ROLLCALL_RECIPE": "trl", "ROLLCALL_RUN_DIR": str(run), **more}
    return [*RECIPE.faults(read_settings(given, shlex.split(words)))]


@pytest.mark.slow
def test_the_flags_are_those_of_the_released_parser() -> None:
    for script in SCRIPTS:
        parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
        released = {name.lstrip("-").replace("-", "_") for name in parser._option_string_actions}
        ours = flags_of(PACKAGE, script)
        assert ours is not None
        assert released - ours == {"h"}
        assert ours - released <= {"config", "no_remove_unused_columns"}


@pytest.mark.parametrize(
    "words",
    [
        "trl sft --model_name_or_path m --dataset_name d --learning-rate 2e-5 --bf16 true",
        "trl dpo --accelerate_config zero3 --num_processes 8 --model_name_or_path m --beta=0.1",
        "trl grpo --model_name m --reward_funcs a b --use_vllm --no-shuffle-dataset",
        "trl sft --config /dev/null --model_name_or_path m",
        "trl reward --model_name_or_path m",
        "trl kto --model_name_or_path m --desirable_weight 1 --undesirable_weight=1.5 --use_peft",
        "trl distillation --model_name_or_path m --teacher_model_name_or_path t --max_steps 5",
        "-m trl.scripts.kto --model_name_or_path m --beta 0.1",
        "accelerate launch --num_processes 2 -m trl.scripts.kto --model_name_or_path m",
    ],
)
def test_a_command_that_the_parser_takes_is_accepted(tmp_path: Path, words: str) -> None:
    assert faults(tmp_path, words) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            "trl sft --model_name_or_path m --max_seq_lenght 512",
            "--max_seq_lenght is not a flag of the installed TRL's script sft: did you mean",
        ),
        (
            "trl grpo --model_name_or_path m --warp",
            "--warp is not a flag of the installed TRL's script",
        ),
        ("trl grpo --model m", "script grpo: did you mean --model_name_or_path or --"),
        ("trl sft --model_name_or_path m --reward_funcs=a", "script sft: leave it out"),
        ("trl kto --model_name_or_path m --desirable_wieght 1", "did you mean --desirable_weight?"),
        ("trl distillation --warp 1", "not a flag of the installed TRL's script distillation"),
        ("trl grpo --no-shuffle_dataset", "did you mean --no_shuffle_dataset?"),
        ("trl sft --config=/dev/null", "give --config /dev/null"),
        ("-m trl.scripts.kto --warp 1", "not a flag of the installed TRL's script kto"),
        ("torchrun --nproc-per-node 2 -m trl.scripts.rloo --warp 1", "TRL's script rloo"),
        ("accelerate launch -m trl.scripts.kto --warp 1", "TRL's script kto"),
        (f"accelerate launch {PACKAGE}/scripts/dpo.py --warp 1", "TRL's script dpo"),
        ("trl gkd --warp 1", "trl has no training script gkd: it has distillation, dpo, grpo, kto"),
        ("trl vllm-serve --model m", "trl vllm-serve trains nothing"),
        (
            "trl dpo --model_name_or_path m --lora-rank 8",
            "--lora-rank is not a flag of the installed",
        ),
    ],
)
def test_a_flag_that_the_script_lacks_is_named_before_anything_starts(
    tmp_path: Path, words: str, fault: str
) -> None:
    (found,) = faults(tmp_path, words)
    assert fault in found


def test_a_trl_that_the_job_brings_is_not_judged_by_the_installed_one(tmp_path: Path) -> None:
    brought = '{"pip": ["trl"]}'
    words = "trl sft --model_name_or_path m --warp 9"
    assert faults(tmp_path, words, ROLLCALL_RUNTIME_ENV=brought) == []


def test_what_is_not_judged_is_told(tmp_path: Path) -> None:
    def told(words: str, **more: str) -> list[str]:
        given = {"ROLLCALL_RECIPE": "trl", "ROLLCALL_RUN_DIR": str(tmp_path), **more}
        found = RECIPE.warnings(read_settings(given, shlex.split(words)))
        return [one for one in found if "not checked" in one]

    assert told("trl kto --model_name_or_path m") == []
    (sentence,) = told("trl kto --warp 1", ROLLCALL_RUNTIME_ENV='{"pip": ["trl"]}')
    assert sentence.startswith("trl kto: its flags are not checked before it starts, because")


def test_no_flag_is_judged_where_a_class_cannot_be_found(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/own.py").write_text("dataclass_types = (Absent, Config)\n")
    assert flags_of(tmp_path, "own") is None


def test_of_several_classes_of_one_name_the_imports_say_which(tmp_path: Path) -> None:
    """As TRL's ScriptArguments, which the server of vLLM has too."""
    package = tmp_path / "trl"
    files = {
        "__init__.py": "if TYPE_CHECKING:\n    from .scripts import Config as Config\n",
        "scripts/__init__.py": "from .utils import Own as Config\n",
        "scripts/utils.py": "from ..base import Base\nclass Own(Base):\n    right: int\n",
        "scripts/a_server.py": "class Config:\n    wrong: int\n",
        "scripts/z_server.py": "class Config:\n    wrong: int\n",
        "base.py": "TEXT = '''\nclass Base: wrong = 1\n'''\nclass Base:\n    beside: int\n",
        "scripts/own.py": "from trl import Config\ndataclass_types = (Config,)\n",
        "scripts/circle.py": "from .circle import Config\ndataclass_types = (Config,)\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert flags_of(package, "own") == frozenset({"right", "beside", "config", "help"})
    assert flags_of(package, "circle") is None
