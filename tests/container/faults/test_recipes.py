"""One fault after the other for the job of each recipe; then what it has trained is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.faults import results
from tests.container.faults.fault import newest_step, undergo
from tests.container.faults.recipe_containers import RecipeContainers
from tests.container.faults.shell_loops import ShellLoops
from tests.container.faults.standing import Standing
from tests.container.faults.table_recipes import AGAINST, FAULTS, JOBS, ROWS
from tests.support.podman import missing
from tests.support.recipe_jobs import RecipeJob, losses, write_input

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 180.0
"""A shell loop that is not back by then waits for a timeout of half an hour."""


@pytest.fixture(scope="module")
def job_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    return write_input(tmp_path_factory.mktemp("input"))


@pytest.fixture(scope="module", params=FAULTS)
def job(request: pytest.FixtureRequest) -> RecipeJob:
    return JOBS[request.param]


@pytest.fixture(scope="module")
def standing(
    job: RecipeJob, job_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing[RecipeContainers]]:
    root = tmp_path_factory.mktemp(job.recipe)
    standing = Standing(lambda n: RecipeContainers(root / str(n), job_data, job))
    yield standing
    standing.close()


@pytest.mark.parametrize("row", ROWS)
def test_it_is_survived_in_time_and_the_job_skips_no_step(
    standing: Standing[RecipeContainers], job: RecipeJob, row: str
) -> None:
    fault = FAULTS[job.recipe][row]
    results.keep(fault.sentence, undergo(standing.scene(), fault))


def test_after_all_faults_losses_and_weights_are_an_undisturbed_runs(
    standing: Standing[RecipeContainers],
) -> None:
    cluster = standing.scene()
    cluster.stop()
    assert cluster.faults() == []
    step = newest_step(cluster)
    wanted, weights = cluster.undisturbed(step)
    made = losses(cluster.rows())
    assert list(wanted) == list(range(1, step + 1))
    assert {n: loss for n, loss in made.items() if loss != wanted[n]} == {}
    newest = cluster.checkpoints()[0]
    assert newest.name == f"checkpoint-{step}"
    assert (newest / cluster.job.weights).read_bytes() == weights


@pytest.mark.parametrize("row", AGAINST)
def test_a_shell_loop_shows_what_the_same_loss_costs_there(
    standing: Standing[RecipeContainers], job: RecipeJob, job_data: Path, tmp_path: Path, row: str
) -> None:
    standing.close()
    with ShellLoops(tmp_path / "loops", job_data, job) as loops:
        loops.boot()
        fault = FAULTS[job.recipe][row]
        seconds = loops.seconds(fault, patience=PATIENCE_SECONDS)
    results.keep_loop(fault.name, seconds, PATIENCE_SECONDS)
