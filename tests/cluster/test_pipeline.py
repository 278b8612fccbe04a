"""Two stages on a real node that waits for jobs; its head is killed while the second runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from entrypoint.processes.programs import program
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

MAKES = "import os; open(os.environ['ROLLCALL_RUN_DIR'] + '/made', 'w').write('of the first')"
READS = """
import pathlib, sys, time
made, go_on = map(pathlib.Path, sys.argv[1:])
print('read', made.read_text(), flush=True)
while not go_on.exists():
    time.sleep(0.1)
"""


def test_the_second_stage_reads_a_file_of_the_first_and_goes_on_with_the_next_head(
    tmp_path: Path,
) -> None:
    go_on, file = tmp_path / "go-on", tmp_path / "pipeline.yaml"
    second = [sys.executable, "-c", READS, "{stage.first.run}/made", str(go_on)]
    stages = [
        {"name": "first", "job": [sys.executable, "-c", MAKES]},
        {"name": "second", "job": second},
    ]
    file.write_text(yaml.safe_dump({"stages": stages}))
    cluster = Cluster(tmp_path / "cluster", workers=0, job=(), ROLLCALL_WAIT_FOR_JOBS="1")
    try:
        cluster.start(HEAD)
        cluster.until_said(HEAD, "the cluster takes jobs", within=200)
        with subprocess.Popen(
            program("entrypoint", "pipeline", str(file)),
            env=cluster.environment(HEAD),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as following:
            log = cluster.run.jobs / "job-2" / "logs" / "attempt-1.log"
            cluster.until(
                lambda: log.exists() and "read of the first" in log.read_text(),
                "second stage",
                within=100,
            )
            cluster.kill(HEAD)
            cluster.start(HEAD)
            go_on.touch()
            said = following.communicate(timeout=150)[0]
        assert following.returncode == 0, said
        assert "read of the first" in said
        started = [event["details"]["job"] for event in cluster.events("job-started")]
        assert started == ["job-1", "job-2", "job-2"]
    finally:
        cluster.close()
