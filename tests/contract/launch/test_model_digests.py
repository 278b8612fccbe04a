"""A model whose weights were replaced is refused once the run has finished a step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.launch import model_digests
from contract.launch.model_digests import (
    BLOCK_BYTES,
    BLOCKS,
    ModelDigests,
    OtherModelError,
    offsets,
)
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.command.recipe import AnyCommand
from tests.support.tiny_job import tiny_job
from tests.support.world import DIED, World, ends

LARGE = BLOCKS * BLOCK_BYTES + 12_345


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    files = RunFiles(tmp_path / "run")
    files.root.mkdir()
    return files


def model(directory: Path, content: bytes = b"w" * 1000, name: str = "model.safetensors") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(content)
    return directory


def compare(run: RunFiles, *, begun: bool = True, **models: Path) -> None:
    """As a head does that has just started."""
    ModelDigests(run).compare(
        {f"--{flag}": str(path) for flag, path in models.items()}, begun=begun
    )


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_other_weights_of_the_same_size_are_named(run: RunFiles, tmp_path: Path, name: str) -> None:
    pretrain, reward = model(tmp_path / "p", name=name), model(tmp_path / "r", b"r" * 500)
    compare(run, begun=False, pretrain=pretrain, reward_pretrain=reward)
    compare(run, pretrain=pretrain, reward_pretrain=reward)
    model(tmp_path / "p", b"v" * 1000, name)
    with pytest.raises(OtherModelError) as caught:
        compare(run, pretrain=pretrain, reward_pretrain=reward)
    assert str(caught.value).startswith(f"--pretrain {pretrain} has other weights than the run was")
    assert "reward_pretrain" not in str(caught.value)
    model(tmp_path / "p", b"w" * 1000, name)
    compare(run, pretrain=pretrain, reward_pretrain=reward)


def test_the_same_weights_may_lie_elsewhere(run: RunFiles, tmp_path: Path) -> None:
    compare(run, begun=False, pretrain=model(tmp_path / "p"))
    compare(run, pretrain=model(tmp_path / "moved"))


def test_before_the_first_step_another_model_may_be_given(run: RunFiles, tmp_path: Path) -> None:
    compare(run, begun=False, pretrain=model(tmp_path / "p"))
    compare(run, begun=False, pretrain=model(tmp_path / "q", b"q" * 1000))
    with pytest.raises(OtherModelError):
        compare(run, pretrain=tmp_path / "p")


def test_what_is_not_known_yet_is_kept_and_what_is_away_is_not_asked(
    run: RunFiles, tmp_path: Path
) -> None:
    """A run of an older version has no digests; a name on the hub may not be here yet."""
    compare(run, pretrain=model(tmp_path / "p"), critic_pretrain=tmp_path / "away")
    assert list(json.loads(run.models.read_text())) == ["--pretrain"]
    compare(run, pretrain=tmp_path / "away")
    model(tmp_path / "p", b"v" * 1000)
    with pytest.raises(OtherModelError):
        compare(run, pretrain=tmp_path / "p")


def test_a_model_that_the_run_itself_writes_may_change(run: RunFiles) -> None:
    compare(run, begun=False, pretrain=model(run.exported))
    model(run.exported, b"v" * 1000)
    compare(run, pretrain=run.exported)


def test_a_name_on_the_hub_is_its_directory_in_the_cache(
    run: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub/models--org--m/snapshots/main"
    snapshot.mkdir(parents=True)
    model(snapshot)
    compare(run, begun=False, pretrain=Path("org/m"))
    model(snapshot, b"v" * 1000)
    with pytest.raises(OtherModelError, match="--pretrain org/m has other weights"):
        compare(run, pretrain=Path("org/m"))


def test_what_an_earlier_version_has_kept_in_run_json_counts(run: RunFiles, tmp_path: Path) -> None:
    compare(run, begun=False, pretrain=model(tmp_path / "p"))
    run.run.write_text(json.dumps({"run_id": "a", "models": json.loads(run.models.read_text())}))
    run.models.unlink()
    compare(run, pretrain=tmp_path / "p")
    with pytest.raises(OtherModelError):
        compare(run, pretrain=model(tmp_path / "q", b"v" * 1000))


def test_a_damaged_file_counts_as_absent_and_a_deleted_run_directory_is_left_alone(
    run: RunFiles, tmp_path: Path
) -> None:
    run.models.write_text("{")
    compare(run, pretrain=model(tmp_path / "p"))
    with pytest.raises(OtherModelError):
        compare(run, pretrain=model(tmp_path / "q", b"v" * 1000))
    run.models.unlink()
    run.root.rmdir()
    compare(run, pretrain=tmp_path / "p")
    assert not run.root.exists()


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCKS * BLOCK_BYTES, LARGE, 5 * 10**9])
def test_the_blocks_of_a_file_have_its_first_and_its_last_byte(size: int) -> None:
    places = offsets(size)
    assert len(places) <= BLOCKS
    assert places[:1] == ([0] if size else [])
    assert not size or places[-1] <= size <= places[-1] + BLOCK_BYTES
    small = size <= BLOCKS * BLOCK_BYTES
    assert not small or places == list(range(0, size, BLOCK_BYTES)), "all of it"


def test_weights_that_did_not_change_are_not_read_again(
    run: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain = model(tmp_path / "p", os.urandom(LARGE))
    digests, named = ModelDigests(run), {"--pretrain": str(pretrain)}
    digests.compare(named, begun=False)
    monkeypatch.setattr(model_digests, "digest", lambda files: pytest.fail("read again"))
    digests.compare(named, begun=True)


@pytest.mark.parametrize(
    ("recipe", "job", "named"),
    [
        (
            "openrlhf",
            ("python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "/p", "--ref.x", "1"),
            {"--actor.model_name_or_path": "/p"},
        ),
        (
            "openrlhf",
            ("python3", "-m", "openrlhf.cli.train_dpo", "--pretrain", "/p", "--ref_pretrain", "/r"),
            {"--ref.model_name_or_path": "/r", "--model.model_name_or_path": "/p"},
        ),
        (
            "verl",
            ("actor_rollout_ref.model.path='/p q'", "critic.model.path=/c", "data.train_files=x"),
            {"actor_rollout_ref.model.path": "/p q", "critic.model.path": "/c"},
        ),
        (
            "trl",
            ("trl", "dpo", "--model_name_or_path", "/p", "--output_dir=/o"),
            {"--model_name_or_path": "/p"},
        ),
        ("command", ("true",), {}),
        ("torchrun", ("train.py",), {}),
    ],
)
def test_each_recipe_knows_the_models_of_its_job(
    recipe: str, job: Sequence[str], named: dict[str, str], tmp_path: Path
) -> None:
    settings = read_settings({"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(tmp_path)}, job)
    assert recipes.load(recipe).models(settings) == named


def test_the_builtin_trainer_names_policy_critic_and_reward_models(tmp_path: Path) -> None:
    job = ["gae" if word == "reinforce" else word for word in tiny_job(tmp_path, 2)]
    at = job.index("--remote_rm_url")
    words = [*job[:at], *job[at + 2 :], "--reward_pretrain", "org/rm,org/other"]
    own = str(tmp_path / "model")
    given = {"ROLLCALL_RECIPE": "builtin", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given, [*words, "--critic_pretrain", own])
    assert recipes.load("builtin").models(settings) == {
        "--pretrain": own,
        "--critic_pretrain": own,
        "--reward_pretrain (1)": "org/rm",
        "--reward_pretrain (2)": "org/other",
    }


def test_a_supervised_stage_names_its_reference(tmp_path: Path) -> None:
    tiny_job(tmp_path, 2)
    own = str(tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n')
    words = ["dpo", "--pretrain", own, "--ref_pretrain", own, "--dataset", str(rows)]
    given = {"ROLLCALL_RECIPE": "supervised", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given, words)
    assert recipes.load("supervised").models(settings) == {
        "--pretrain": own,
        "--ref_pretrain": own,
    }


class NamesModel(AnyCommand):
    """A framework with a model."""

    def models(self, settings: Settings) -> Mapping[str, str]:
        return {"--pretrain": str(settings.run_dir / "model")}


def test_a_run_whose_model_is_replaced_between_two_attempts_ends_with_64(tmp_path: Path) -> None:
    model(tmp_path / "model")

    def replaces(world: World) -> JobInfo:
        model(tmp_path / "model", b"v" * 1000)
        return ends(DIED, at_step=3)(world)

    world = World(tmp_path, replaces)
    world.context.recipe = NamesModel()
    outcome = world.lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.USAGE)
    assert "--pretrain" in outcome.sentence
    assert len(world.jobs.submitted) == 1
