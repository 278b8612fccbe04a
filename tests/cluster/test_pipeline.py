"""Stages in a row on a real node: two that its head does not outlive, and the example of sums."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.exit_codes import ExitCode
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.processes.programs import program
from env.prepare.__main__ import main as prepare
from tests.support import sums
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head that takes jobs."""
    root = tmp_path_factory.mktemp("pipelines")
    cluster = Cluster(root, workers=0, job=(), ROLLCALL_WAIT_FOR_JOBS="1")
    try:
        cluster.start(HEAD)
        cluster.until_said(HEAD, "the cluster takes jobs", within=200)
        yield cluster
    finally:
        cluster.close()


@pytest.mark.faults
def test_the_second_stage_reads_a_file_of_the_first_and_goes_on_with_the_next_head(
    cluster: Cluster, tmp_path: Path
) -> None:
    go_on, file = tmp_path / "go-on", tmp_path / "pipeline.yaml"
    second = [sys.executable, "-c", READS, "{stage.first.run}/made", str(go_on)]
    stages = [
        {"name": "first", "job": [sys.executable, "-c", MAKES]},
        {"name": "second", "job": second},
    ]
    file.write_text(yaml.safe_dump({"stages": stages}))
    refuses_a_stage_that_is_too_large(cluster, stages[0])
    with subprocess.Popen(
        program(Program.ROLLCALL, "pipeline", str(file)),
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


def refuses_a_stage_that_is_too_large(cluster: Cluster, first: dict[str, Any]) -> None:
    """A pipeline is refused whose last stage the node cannot hold, before its first begins."""
    file, data = cluster.layout.root / "too-large.yaml", cluster.layout.root / "prompts.jsonl"
    data.write_text('{"input": "1+1="}\n')
    words = ["--pretrain", "{stage.first.model}", "--prompt_data", str(data)]
    words += ["--remote_rm_url", "http://none", "--actor_num_gpus_per_node", "999"]
    stages = [first, {"name": "large", "job": words}]
    file.write_text(yaml.safe_dump({"stages": stages}))
    done = subprocess.run(
        program(Program.ROLLCALL, "pipeline", str(file)),
        env=cluster.environment(HEAD),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "stage large: the nodes cannot hold the job: " in done.stderr
    assert not cluster.run.jobs.exists()


@pytest.mark.faults
def test_the_example_of_sums_trains_three_stages_each_with_the_models_before(
    cluster: Cluster, tmp_path: Path
) -> None:
    data, file = tmp_path / "data", tmp_path / "sums.yaml"
    sizes = ("--train-size", "64", "--warmup-size", "64", "--eval-size", "8", "--pairs-size", "64")
    shape = ("--layers", "1", "--hidden-size", "16", "--heads", "2")
    assert prepare(["arithmetic", *sizes, *shape, "--out", str(data)]) == 0
    text = sums.EXAMPLE.read_text().replace("/data/", f"{data}/")
    text = re.sub(r"(_batch_size) \d+", r"\1 12", text)
    file.write_text(re.sub(r"--max_steps \d+", "--max_steps 2", text))
    done = subprocess.run(
        program(Program.ROLLCALL, "pipeline", "--json", str(file)),
        env=cluster.environment(HEAD),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert [(row["stage"], row["state"]) for row in rows] == [
        ("sft", "finished"),
        ("rm", "finished"),
        ("ppo", "finished"),
    ]
    runs = [RunFiles(Path(row["run_dir"])) for row in rows]
    assert str(runs[1].exported) in rows[2]["words"]
    for run in runs:
        assert json.loads(run.result.read_text())["steps"] == 2
        steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
        assert steps[-1] == 2
        assert (run.exported / "model.safetensors").exists()
