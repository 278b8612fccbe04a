"""A job that prints nothing for minutes, on a real Ray, with a page open: its head says nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support.head_page import page
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(600)]

SECONDS = 355.0
"""Ray's dashboard ends what it passes on after 300 s; a connection that is missed by its pings is
said to be lost at most 51 s later."""
JOB = "import time; print('the job begins', flush=True); time.sleep(1000)"


def test_the_console_of_a_job_that_prints_nothing_stays_empty_for_six_minutes(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "quiet", workers=0, job=(sys.executable, "-c", JOB))
    copy = cluster.run.logs / "attempt-1.log"
    try:
        cluster.start(HEAD)
        cluster.until(lambda: copy.exists() and bool(copy.read_text()), "line", within=120)
        said = cluster.said(HEAD)
        with page(cluster):
            time.sleep(SECONDS)
        assert cluster.said(HEAD) == said
        cluster.terminate(HEAD)
        assert cluster.exit_codes(within=60) == {HEAD: 143}
    finally:
        cluster.close()
