"""ROLLCALL_STORAGE: who has the run directory, and what follows for a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.files.child_variables import NODE_DIR
from contract.options import ConfigError
from entrypoint.cluster import reported_differences
from entrypoint.config.check_names import CheckName
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.builtin.recipe import RECIPE
from entrypoint.node import ray_node
from entrypoint.preflight import storage
from entrypoint.preflight.check import Context
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.verdict import Verdict

TOKEN = "a-token-of-all-nodes"


def settings_of(**environ: str) -> Settings:
    return read_settings({"ROLLCALL_TOKEN": TOKEN} | environ)


@pytest.mark.parametrize(
    ("given", "shared", "store"),
    [
        ("", True, None),
        ("shared", True, None),
        ("head", False, None),
        ("s3://bucket/run-1/", False, "s3://bucket/run-1"),
        ("gs://bucket", False, "gs://bucket"),
    ],
)
def test_the_run_directory_is_shared_or_the_head_s(
    given: str, shared: bool, store: str | None
) -> None:
    settings = settings_of(ROLLCALL_STORAGE=given)
    assert (settings.shares_run_dir, settings.store) == (shared, store)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("everywhere", "is not a place for checkpoints"),
        ("/mnt/disk", "is not a place for checkpoints"),
        ("s3://", "names no bucket"),
        ("s4://bucket", "has a scheme that no store has"),
        ("https://bucket", "has a scheme that no store has"),
        ("s3:///prefix", "names no bucket"),
        ("s3://id:key-of-somebody@bucket", "has more than a scheme, a bucket and a prefix"),
        ("s3://bucket?x=1", "has more than a scheme, a bucket and a prefix"),
    ],
)
def test_another_value_is_a_fault(given: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings_of(ROLLCALL_STORAGE=given)
    (fault,) = error.value.faults
    assert fault.problem == problem
    assert "key-of-somebody" not in str(fault)
    if problem == "has a scheme that no store has":
        assert "give s3://BUCKET/PREFIX; other schemes that are known: abfs, " in str(fault)


@pytest.mark.parametrize("given", ["head", "s3://bucket"])
def test_workers_that_cannot_read_the_token_need_it_as_a_variable(given: str) -> None:
    with pytest.raises(ConfigError, match="set the same ROLLCALL_TOKEN on every node"):
        read_settings({"ROLLCALL_STORAGE": given})
    assert read_settings({"ROLLCALL_STORAGE": given, "EXPECTED_WORKERS": "0"}).token is None


def test_a_cluster_that_waits_for_jobs_takes_no_store() -> None:
    waits = {"ROLLCALL_WAIT_FOR_JOBS": "1"}
    assert settings_of(ROLLCALL_STORAGE="head", **waits)
    with pytest.raises(ConfigError, match="uploads the checkpoints of one run, and this cluster"):
        settings_of(ROLLCALL_STORAGE="s3://bucket", **waits)


@pytest.mark.parametrize("given", ["head", "s3://bucket"])
def test_beside_a_ray_that_exists_the_run_directory_is_shared(given: str) -> None:
    beside = {"ROLLCALL_RAY_ADDRESS": "http://10.0.0.9:8265"}
    assert settings_of(ROLLCALL_STORAGE="shared", **beside)
    with pytest.raises(ConfigError, match="the job's driver runs on Ray's head"):
        settings_of(ROLLCALL_STORAGE=given, **beside)


def test_a_store_takes_the_checkpoints_of_the_builtin_recipe_only() -> None:
    command = {"ROLLCALL_RECIPE": "command"}
    assert settings_of(ROLLCALL_STORAGE="head", **command)
    with pytest.raises(ConfigError, match="have the job save to a store itself"):
        settings_of(ROLLCALL_STORAGE="s3://bucket", **command)


def test_only_nodes_that_share_the_directory_are_asked_to_prove_it() -> None:
    assert CheckName.NODES_STORAGE not in reported_differences.skipped_checks(settings_of())
    apart = reported_differences.skipped_checks(settings_of(ROLLCALL_STORAGE="head"))
    assert apart == {CheckName.NODES_STORAGE}


def test_the_trainer_and_rays_processes_learn_who_has_the_directory(tmp_path: Path) -> None:
    shared = settings_of(ROLLCALL_RUN_DIR=str(tmp_path))
    apart = settings_of(ROLLCALL_RUN_DIR=str(tmp_path), ROLLCALL_STORAGE="s3://bucket")
    assert "--storage" not in RECIPE.command(shared, None).argv
    argv = RECIPE.command(apart, None).argv
    assert argv[argv.index("--storage") + 1] == "head"
    assert NODE_DIR not in ray_node.environment(shared, TOKEN)
    assert ray_node.environment(apart, TOKEN)[NODE_DIR] == str(tmp_path)


def test_a_worker_makes_its_own_directory_and_a_head_does_not(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    apart = settings_of(ROLLCALL_RUN_DIR=str(place), ROLLCALL_STORAGE="head")
    on_head = storage.run_dir(Context(Head(1, 1, "a test"), apart))
    assert on_head.verdict is Verdict.FAIL
    assert "mount storage that outlives the head" in on_head.remedy
    alone = storage.run_dir(Context(Head(0, 0, "a test"), apart))
    assert alone.remedy.startswith(f"`mkdir -p {place}`; in a container, mount it")
    checks = [check for check in storage.CHECKS if check.name == CheckName.HOST_RUN_DIR]
    report = run_checks(Worker("10.0.0.1", "a test"), apart, checks)
    assert report.exit_code == ExitCode.FINISHED
    assert place.is_dir()


def test_a_head_with_a_store_makes_its_directory(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    stored = settings_of(ROLLCALL_RUN_DIR=str(place), ROLLCALL_STORAGE="s3://bucket")
    storage.run_dir(Context(Head(1, 1, "a test"), stored))
    assert place.is_dir()
