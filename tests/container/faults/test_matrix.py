"""One fault after the other on one cluster that trains; then what it has learned is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.container.faults import results
from tests.container.faults.alone import train_alone
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data, numbers
from tests.container.faults.table import MATRIX
from tests.support.node_cluster import HEAD

pytestmark = [pytest.mark.timeout(400)]

FAST = [pytest.param(f, id=f.name, marks=pytest.mark.cluster) for f in MATRIX if f.fast]
SLOW = [pytest.param(f, id=f.name, marks=pytest.mark.faults) for f in MATRIX if not f.fast]


class Standing:
    """A stage that trains: the one that outlived the fault before, else a new one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = make_data(root / "data")
        self.reward = RewardServer()
        self._stack = ExitStack()
        self._stage: Stage | None = None
        self._count = 0

    def stage(self) -> Stage:
        if self._stage is None or not self._stage.trains() or self._stage.faults():
            self.close()
            self._stack.enter_context(self.reward)
            self._count += 1
            new = Stage(self.root / str(self._count), self.data, self.reward)
            self._stack.callback(new.close)
            new.start(HEAD, 1, 2)
            new.goes_on(within=BOOT_SECONDS)
            new.event("checkpoint", within=60)
            self._stage = new
        return self._stage

    def close(self) -> None:
        self._stack.close()
        self._stage = None


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    standing = Standing(tmp_path_factory.mktemp("faults"))
    yield standing
    standing.close()


@pytest.mark.parametrize("fault", [*FAST, *SLOW])
def test_it_is_survived_in_time_and_the_run_shows_no_scar(
    standing: Standing, fault: Fault[Stage]
) -> None:
    result = undergo(standing.stage(), fault)
    results.keep(fault.sentence, result)


@pytest.mark.cluster
@pytest.mark.faults
def test_sigterm_saves_and_after_all_faults_the_weights_are_an_undisturbed_runs_to_the_bit(
    standing: Standing, tmp_path: Path
) -> None:
    stage = standing.stage()
    stage.terminate(HEAD)
    assert stage.exit_codes(within=40) == {HEAD: 143, 1: 143, 2: 143}
    assert stage.left() == []
    assert stage.faults() == []
    step = stage.step
    assert stage.checkpoints()[0].name == f"global_step_{step}"
    undisturbed = train_alone(standing.data, tmp_path / "undisturbed", step)
    assert numbers(stage.run, step) == undisturbed
