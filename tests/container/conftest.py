"""Containers of the built image; skipped, with the reason, where this machine has none."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.container.cluster import Cluster
from tests.container.platform_nodes import Shared
from tests.support.podman import IMAGE, missing, run_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.get_closest_marker("container")]
    if ours and (reason := missing()):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the containers said where a test with a cluster fails."""
    report = yield
    clusters = [value for value in item.funcargs.values() if isinstance(value, Cluster)]
    if report.when == "call" and report.failed and clusters:
        report.sections.append(("containers", clusters[0].report()))
    return report


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arithmetic task with a model that steps in a tenth of a second."""
    out = tmp_path_factory.mktemp("data")
    out.chmod(0o777)
    shape = ("--hidden-size", "32", "--layers", "2", "--heads", "2")
    sizes = ("--train-size", "512", "--eval-size", "32")
    volume, user = f"--volume={out}:/data", "--user=1234"
    make = ("prepare", "arithmetic", "--out", "/data/arithmetic", *shape, *sizes)
    done = run_once(volume, user, IMAGE, *make, within=120)
    assert done.returncode == 0, done.stderr
    return out / "arithmetic"


@pytest.fixture
def shared(tmp_path: Path, data: Path) -> Shared:
    return Shared.make(tmp_path / "shared", data)
