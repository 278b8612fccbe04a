"""A real Slurm; skipped, with the reason, if this machine has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.slurm_site import SlurmSite, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.get_closest_marker("slurm")]
    if ours and (reason := missing()):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    with SlurmSite(tmp_path_factory.mktemp("slurm")) as site:
        yield site
