"""The recipe `search-r1`: the guide's command as it is typed, and what the driver gets."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from entrypoint.commands import cli
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.search_r1 import recipe as search_r1
from entrypoint.job.recipes.search_r1.recipe import RECIPE
from entrypoint.run.failure_classes import FailureClass
from tests.support.recipe_commands import nodes
from tests.support.repository import DATA, ROOT
from tests.support.search_r1_checkpoints import checkpoint

SCRIPT = (DATA / "guide_scripts/search-r1.sh").read_text()
VARIABLES = {
    "RAY_DASHBOARD_ADDRESS": "10.0.0.2:8265",
    "DATA_DIR": "data/nq_search",
    "BASE_MODEL": "Qwen/Qwen2.5-7B",
    "WAND_PROJECT": "Search-R1-release",
    "EXPERIMENT_NAME": "nq-search-r1-ppo",
    "N_NODES": "2",
}
RETRIEVER = "http://127.0.0.1:8000/retrieve"
START = {
    "ROLLCALL_RETRIEVER_COMMAND": "bash retrieval_launch.sh",
    "ROLLCALL_RETRIEVER_URL": RETRIEVER,
}


def guide() -> list[str]:
    """The words of the guide's `ray job submit`, as a shell gives them; with its `tee`."""
    text = SCRIPT[SCRIPT.index("ray job submit") :].replace("\\\n", " ")
    for name, value in VARIABLES.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text
    return shlex.split(text)


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths of the Pythons that have Search-R1; a test may change it."""
    paths = {sys.executable}
    monkeypatch.setattr(search_r1, "has_module", lambda python, _: python in paths)
    return paths


def settings(run: Path, *job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "search-r1", "ROLLCALL_RUN_DIR": str(run), **environ}
    return read_settings(given, job)


def overrides(given: Settings) -> dict[str, str]:
    """What the driver gets."""
    argv = RECIPE.command(given, RECIPE.latest(given)).argv
    assert argv[:3] == (sys.executable, "-m", "verl.trainer.main_ppo")
    return dict(word.split("=", 1) for word in argv[3:])


def test_the_guides_command_is_accepted_as_it_is_typed(tmp_path: Path) -> None:
    words = guide()
    given = settings(tmp_path, *words, **START)
    assert RECIPE.faults(given) == []
    typed = words[words.index("verl.trainer.main_ppo") + 1 : words.index("2>&1")]
    directory, logger = "trainer.default_local_dir=", "trainer.logger="
    kept = [word for word in typed if not word.startswith((directory, logger))]
    added = [
        f"{directory}{tmp_path}/verl_checkpoints/nq-search-r1-ppo",
        f"{logger}[console,wandb]",
    ]
    command = RECIPE.command(given, None)
    assert command.argv == (sys.executable, "-m", "verl.trainer.main_ppo", *kept, *added)
    placed = RECIPE.placed(given, nodes(8, 8))
    assert (placed.settings, placed.lacking) == (given, ())
    (lacking,) = RECIPE.placed(given, nodes(8, 4)).lacking
    assert lacking == "Search-R1 wants 8 GPUs on each of 2 nodes; the nodes offer 8, 4"
    warnings = "\n".join(recipes.warnings(RECIPE, placed))
    assert (
        "2>&1 | tee nq-search-r1-ppo.log: no effect here; the log is in RUN/logs, and" in warnings
    )
    assert "Search-R1 cannot resume: a new attempt begins with the newest weights" in warnings
    assert "trainer.logger=[wandb]: `console` is added" in warnings
    assert "retriever" not in warnings.partition("Search-R1 cannot")[2]


def test_what_is_left_out_comes_from_the_roll_and_the_run_directory(tmp_path: Path) -> None:
    given = settings(tmp_path, "data.train_batch_size=8", **START)
    assert overrides(RECIPE.placed(given, nodes(8, 0, 4, 8)).settings) == {
        "data.train_batch_size": "8",
        "trainer.nnodes": "3",
        "trainer.n_gpus_per_node": "4",
        "trainer.default_local_dir": str(tmp_path / "search-r1"),
        "trainer.save_freq": "20",
        "trainer.default_hdfs_dir": "null",
        "trainer.logger": "[console]",
        "retriever.url": RETRIEVER,
    }


def test_a_new_attempt_begins_with_the_newest_weights_at_any_number_of_ranks(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path, *guide(), **START)
    directory = tmp_path / "verl_checkpoints/nq-search-r1-ppo"
    for step in (100, 200):
        checkpoint(directory, step)
    checkpoint(directory, 300, "actor")
    assert RECIPE.latest(given) == 200
    found = overrides(given)
    assert found["actor_rollout_ref.model.path"] == f"{directory}/actor/global_step_200"
    assert found["critic.model.path"] == f"{directory}/critic/global_step_200"
    assert found["trainer.default_local_dir"] == f"{directory}/after_200"
    assert found["trainer.total_training_steps"] == "805"
    assert RECIPE.command(given, 200).env["ROLLCALL_RESUME_FROM"] == "200"
    assert RECIPE.placed(given, nodes(8, 8)).lacking == ()
    checkpoint(directory / "after_200", 100)
    assert RECIPE.latest(given) == 300
    found = overrides(given)
    assert found["critic.model.path"] == f"{directory}/after_200/critic/global_step_100"
    assert found["trainer.total_training_steps"] == "705"


def test_the_newest_weights_of_the_actor_are_the_trained_model(tmp_path: Path) -> None:
    given = settings(tmp_path, "data.train_batch_size=8")
    assert RECIPE.exported(given) is None
    checkpoint(tmp_path / "search-r1", 20)
    checkpoint(tmp_path / "search-r1/after_20", 5)
    assert RECIPE.exported(given) == tmp_path / "search-r1/after_20/actor/global_step_5"


def test_a_directory_below_the_home_directory_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = settings(tmp_path, "trainer.default_local_dir=~/out")
    assert overrides(given)["trainer.default_local_dir"] == f"{tmp_path}/home/out"
    assert not any("relative" in warning for warning in RECIPE.warnings(given))


def test_without_a_critic_the_actor_alone_counts(tmp_path: Path) -> None:
    given = settings(tmp_path, "algorithm.adv_estimator=grpo", "do_search=false")
    checkpoint(tmp_path / "search-r1", 20, "actor")
    assert RECIPE.latest(given) == 20
    assert "critic.model.path" not in overrides(given)
    warnings = "\n".join(RECIPE.warnings(given))
    assert "without trainer.total_training_steps, a new attempt trains all epochs" in warnings
    assert "ROLLCALL_RETRIEVER_URL" not in warnings, "it does not search"


def test_a_retriever_that_nothing_waits_for_is_a_warning(tmp_path: Path) -> None:
    warnings = RECIPE.warnings(settings(tmp_path, *guide()))
    assert any("ROLLCALL_RETRIEVER_URL is not set, so the job starts" in one for one in warnings)


def test_the_python_that_has_search_r1_runs_driver_and_actors(
    tmp_path: Path, modules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.touch()
    modules.clear()
    monkeypatch.setattr(search_r1, "others_with", lambda _: [str(python)])
    (fault,) = RECIPE.faults(settings(tmp_path, "a.b=1", **START))
    assert f"{sys.executable} has no Search-R1, and {python} has it: use an image" in fault
    modules.add(str(python))
    given = settings(tmp_path, str(python), "-m", "verl.trainer.main_ppo", "a.b=1", **START)
    assert RECIPE.faults(given) == []
    command = RECIPE.command(given, None)
    assert command.argv[0] == command.runtime_env["py_executable"] == str(python)


@pytest.mark.parametrize(
    ("job", "environ", "fault"),
    [
        ("", {}, "ROLLCALL_RECIPE=search-r1 has nothing to train"),
        ("/none/python -m verl.trainer.main_ppo", {}, "/none/python is not there"),
        ("trainer.resume_mode=auto", {}, "Search-R1's copy of verl has no such key"),
        ("trainer.default_hdfs_dir=hdfs://a", {}, "search-r1 cannot resume from there"),
        ("trainer.nnodes=0", {}, "trainer.nnodes=0 is not a number of 1 or more"),
        (
            "retriever.url=http://[::1",
            {},
            "retriever.url=http://[::1 is not an address of a server",
        ),
        ("python3", {}, "python3 has nothing to run: give a module behind it, such as -m verl."),
        ("a.b=1", {"ROLLCALL_CHECKPOINTS": "c-{step}"}, "the recipe search-r1 knows it"),
        (
            "retriever.url=http://10.0.0.9/retrieve",
            START,
            f"retriever.url=http://10.0.0.9/retrieve and ROLLCALL_RETRIEVER_URL={RETRIEVER} contr",
        ),
        (
            "a.b=1",
            {**START, "ROLLCALL_RETRIEVER_ON": "head"},
            f"starts the retriever on the head alone, and {RETRIEVER} is the server of each node",
        ),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    tmp_path: Path, job: str, environ: dict[str, str], fault: str
) -> None:
    (found,) = RECIPE.faults(settings(tmp_path, *shlex.split(job), **environ))
    assert fault in found


def test_the_lines_of_steps_and_of_wrong_overrides(tmp_path: Path) -> None:
    line = "(main_task pid=7) step:7 - critic/rewards/mean:0.120 - timing_s/step:3.000"
    match = RECIPE.step_pattern(settings(tmp_path, "a.b=1")).search(line.partition(") ")[2])
    assert match
    assert (match["step"], match["reward"], match["step_seconds"]) == ("7", "0.120", "3.000")
    assert RECIPE.failure_in("hydra.errors.ConfigCompositionException") is FailureClass.USAGE
    assert RECIPE.counts_anew


def test_the_argv_of_the_pages_example(tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes/search-r1.md").read_text()
    block = re.search(r"```sh\n# on the head\n(docker run .+?)\n\n", page, re.DOTALL)
    assert block
    words = shlex.split(block[1].replace("\\\n", " "))
    image = words.index("your-image-with-search-r1")
    variables = {key: value for word in words[:image] for key, eq, value in [word.partition("=")]}
    assert {name: variables[name] for name in START} == START
    job = words[image + 1 :]
    assert cli.parse(job, recipe_takes_command=True) == cli.Invocation("up", tuple(job))
    given = settings(tmp_path, *job, **START)
    assert RECIPE.faults(given) == []
    placed = RECIPE.placed(given, nodes(8, 8, 8))
    assert placed.lacking == ()
    assert overrides(placed.settings) == {
        "data.train_files": "/checkpoints/nq/train.parquet",
        "data.val_files": "/checkpoints/nq/test.parquet",
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B",
        "critic.model.path": "Qwen/Qwen2.5-7B",
        "actor_rollout_ref.actor.state_masking": "true",
        "max_turns": "4",
        "trainer.total_training_steps": "1005",
        "trainer.nnodes": "3",
        "trainer.n_gpus_per_node": "8",
        "trainer.default_local_dir": str(tmp_path / "search-r1"),
        "trainer.save_freq": "20",
        "trainer.default_hdfs_dir": "null",
        "trainer.logger": "[console]",
        "retriever.url": RETRIEVER,
    }
